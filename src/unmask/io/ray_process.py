"""Ray, in a process of its own.

When Ray's daemon on this machine (the raylet) dies, Ray ends the process that was connected through it at once, without
an exception or a word. It takes over SIGTERM there too, and prints. So that process is none in which we have work.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from unmask.errors import OutputError, SettingsError
from unmask.io.processes import WorkerProcess

P = ParamSpec("P")
Value = TypeVar("Value")

_CONNECT_TIMEOUT_S = 10
_ANSWER_S = 120
"""How long a call may take. Ray itself ends the process when the head has not answered for a minute."""
_CLOSE_S = 10
NO_MACHINE_S = 60
"""How long a cluster may have no machine for our work; a lost one is noticed after some 15 seconds."""


class RayProcess:
    """A connection to a Ray cluster, for use in a `with` statement: all that is still running there ends with it.

    Args:
        address: as for `ray.init`: `auto`, or `HOST:PORT`.
        key: the option that gave it, for messages: `--ray `, `search.ray=`.

    Raises:
        SettingsError: Ray is not installed, or no cluster answers.
    """

    def __init__(self, address: str, key: str) -> None:
        self._named = f"{key}{address}"
        if importlib.util.find_spec("ray") is None:
            raise SettingsError(f"{key.strip(' =')} needs the library Ray: pip install 'unmask[ray]'")
        self._served = time.monotonic()
        try:
            _check_reachable(address)
            self._worker = WorkerProcess(_be_silent)
        except OSError as error:
            raise SettingsError(self._no_answer(error)) from error
        try:
            wrong = self.call(_connect, address)
            if wrong is not None:
                raise SettingsError(self._no_answer(wrong))
        except BaseException:
            self._worker.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        # What still runs is killed soon after. `ray.cancel` may end the process instead (docs/notebook.md).
        with suppress(BrokenProcessPool, TimeoutError):
            self._worker.submit(_disconnect).result(_CLOSE_S)
        self._worker.close()

    def call(self, function: Callable[P, Value], *arguments: P.args, **named: P.kwargs) -> Value:
        """Runs a module-level function in the process, where `ray` is connected.

        Raises:
            OutputError: the connection is lost: Ray has died on this machine, or its head has.
        """
        try:
            return self._worker.submit(function, *arguments, **named).result(_ANSWER_S)
        except BrokenProcessPool as error:
            how = "the connection to the cluster is lost: Ray has ended on this machine, or its head has"
            raise OutputError(f"{self._named}: {how}; see `ray status`, and start it again") from error
        except TimeoutError as error:
            raise OutputError(
                f"{self._named}: the cluster has not answered for {_ANSWER_S} s: see `ray status`, and start it again"
            ) from error

    def count(self, need: Mapping[str, float]) -> int:
        """How many tasks the machines that are there could hold at once, were they idle.

        Args:
            need: what each task takes, by Ray's names of resources: `{"CPU": 1}`.
        """
        return self.call(_count, need)

    def capacity(self, need: Mapping[str, float]) -> int:
        """`count` for tasks that wait for a machine.

        Raises:
            OutputError: none has been there for a minute; or as `call`.
        """
        capacity = self.count(need)
        now = time.monotonic()
        if capacity:
            self._served = now
        elif now - self._served > NO_MACHINE_S:
            wanted = " and ".join(f"{amount:g} {name}" for name, amount in need.items())
            raise OutputError(
                f"{self._named}: for {NO_MACHINE_S} s the cluster has had no machine with {wanted}: see `ray status`; "
                "start Ray on a machine that has"
            )
        return capacity

    def _no_answer(self, error: object) -> str:
        return (
            f"{self._named}: no Ray cluster answers there ({error}): start one, on this machine too, or fix the address"
        )


def _check_reachable(address: str) -> None:
    """Raises OSError at once if nothing listens, where Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()


# In the process


def _be_silent() -> None:
    """Ray writes of what it loses, and so does its C++; messages are the parent's."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)


def _connect(address: str) -> str | None:
    """Returns what is wrong."""
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        return str(error)
    return None


def _disconnect() -> None:
    import ray

    ray.shutdown()


def _count(need: Mapping[str, float]) -> int:
    import ray

    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    return sum(min(int(has.get(name, 0) / amount + 1e-6) for name, amount in need.items()) for has in there)
