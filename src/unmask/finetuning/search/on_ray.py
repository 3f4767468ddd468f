"""Trials of a search on the machines of a Ray cluster, which share a folder with this one.

Each is run by an actor, which keeps a process like those of this machine: that process takes signals, and a run that is
killed is distinguished from a machine that is lost. The trial of a lost machine is given back, to begin again
elsewhere.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import AnotherProcess, OutputError, SettingsError, UserError
from unmask.finetuning.search.trial import Ended, Runs, Trial, TrialProcess, read_results
from unmask.io.paths import TRIALS
from unmask.io.ray_process import RayProcess
from unmask.io.writing import alone_in, sha256
from unmask.training.run.environment import ENVIRONMENT, installed_versions

_PATIENCE_S = 60
"""How long a network folder may hide what another machine has written, and what is left of a lost trial may hold its
directory."""
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class _Driver:
    """The machine that searches, as the others have to agree with it.

    Attributes:
        folder: it works in; settings name files relative to it.
        mark: the SHA-256 of a file of the search that has just been written.
        versions: of the libraries on which results depend.
    """

    folder: Path
    mark: str
    versions: dict[str, str | None]


class RayMachines:
    """The machines of a cluster, for `unmask.finetuning.search.parallel`.

    Args:
        address: `auto`, or HOST:PORT.
        parallel: trials that share a GPU; the CPUs of a trial are the threads that `runs` gives it.
        device: of the recipe; with `auto` each trial takes a GPU where the cluster has any.

    Raises:
        SettingsError: Ray is not installed, or no cluster answers.
    """

    def __init__(self, address: str, parallel: int, device: str, runs: Runs) -> None:
        self._runs = runs
        self._unseen: dict[str, tuple[Ended, float]] = {}  # trials, and until when their results are waited for
        self._driver = _Driver(Path.cwd(), sha256(runs.directory / ENVIRONMENT), installed_versions())
        self._cluster = RayProcess(address, "search.ray=")
        try:
            on_gpu = device == "cuda" or (device == "auto" and self._cluster.count({"GPU": 1}) > 0)
        except BaseException:
            self._cluster.close()
            raise
        self._need = {"CPU": 1.0, "GPU": 1 / parallel} if on_gpu else {"CPU": float(runs.num_threads)}

    def capacity(self) -> int:
        """Raises OutputError if there has been none for a minute, or the cluster is lost."""
        return self._cluster.capacity(self._need)

    def begin(self, trial: Trial) -> None:
        self._cluster.call(_begin, trial, self._need, self._runs, self._driver)

    def ended(self, timeout_s: float) -> list[tuple[str, Ended]]:
        """One that has ended well on its machine counts once this machine sees its results."""
        wait_s = min(timeout_s, _LOOK_EVERY_S) if self._unseen else timeout_s
        for name, ended in self._cluster.call(_ended, wait_s):
            self._unseen[name] = ended, time.monotonic() + _PATIENCE_S
        known = {name: seen for name in self._unseen if (seen := self._seen(name)) is not None}
        for name in known:
            del self._unseen[name]
        return list(known.items())

    def stop(self) -> None:
        self._cluster.call(_stop)

    def close(self) -> None:
        self._cluster.close()

    def _seen(self, name: str) -> Ended | None:
        """How a trial has ended; None while its results may still come."""
        ended, until = self._unseen[name]
        place = self._runs.directory / TRIALS / name
        if not ended.is_well or read_results(place) is not None:
            return ended
        if time.monotonic() > until:
            return Ended(error=OutputError(f"{place}: its results, made on another machine, are not seen here"))
        return None


# In the process that is connected to the cluster

_idle: list[Any] = []
"""Actors whose trial has just ended."""
_under_way: dict[str, tuple[Any, Any, Any]] = {}
"""The actor of each trial, and Ray's references: that the actor is there, and how the trial has ended."""


def _begin(trial: Trial, need: dict[str, float], runs: Runs, driver: _Driver) -> None:
    import ray

    if _idle:
        actor = _idle.pop()
    else:
        options = {"num_cpus": need["CPU"], "num_gpus": need.get("GPU", 0), "max_concurrency": 3}
        actor = ray.remote(_Machine).options(**options).remote(driver)
    _under_way[trial.name] = (actor, actor.is_there.remote(), actor.run.remote(trial, runs))


def _ended(timeout_s: float) -> list[tuple[str, Ended]]:
    import ray

    for actor in _idle:  # no trial has begun since: it only takes the place of one that waits for a machine
        ray.kill(actor)
    _idle.clear()
    if not _under_way:
        time.sleep(timeout_s)
        return []
    references = {reference: name for name, (_, _, reference) in _under_way.items()}
    ready, _ = ray.wait(list(references), timeout=timeout_s)
    return [(references[reference], _end(references[reference])) for reference in ready]


def _end(name: str) -> Ended:
    import ray

    actor, _, reference = _under_way.pop(name)
    try:
        ended: Ended = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        ended = Ended(error=RuntimeError(f"{name}, on its machine:\n{error}"))
    except ray.exceptions.RayError:
        ended = Ended(lost="its machine is lost, or Ray has ended its process")
    if ended.lost is None:
        _idle.append(actor)
    else:
        ray.kill(actor)
    return ended


def _stop() -> None:
    import ray

    for actor, is_there, _ in _under_way.values():
        if ray.wait([is_there], timeout=0)[0]:
            actor.stop.remote()
        else:  # it waits for a machine
            ray.kill(actor)


# On a machine of the cluster


class _Machine:
    """The actor. Its methods run in threads, and its trial in a process of its own."""

    def __init__(self, driver: _Driver) -> None:
        self._driver = driver
        self._process: TrialProcess | None = None
        self._is_stopping = False

    def is_there(self) -> None:
        pass

    def run(self, trial: Trial, runs: Runs) -> Ended:
        try:
            self._agree(runs.directory)
            _wait_until_free(runs.directory / TRIALS / trial.name)
        except UserError as error:
            return Ended(error=error)
        if self._process is None or not self._process.is_alive:
            self._process = TrialProcess(runs)
        future = self._process.begin(trial)
        if self._is_stopping:
            self._process.stop()
        ended = self._process.ended(future)
        if ended.is_stopped and not self._is_stopping:
            return Ended(lost="its process was ended by SIGTERM")
        return ended

    def stop(self) -> None:
        self._is_stopping = True
        if self._process is not None:
            self._process.stop()

    def _agree(self, directory: Path) -> None:
        """Refuses a machine that does not see the search, or has other libraries."""
        driver, here = self._driver, f"search.ray: the machine {socket.gethostname()}"
        share = "give every machine the same folders under the same names"
        try:
            os.chdir(driver.folder)
        except OSError as error:
            raise OutputError(
                f"{here} does not see {driver.folder}, in which the search was started: {share}"
            ) from error
        try:
            is_shared = sha256(directory / ENVIRONMENT) == driver.mark
        except OSError:
            is_shared = False
        if not is_shared:
            raise OutputError(f"{here} does not see what was just written in {directory}: {share}")
        for name, version in installed_versions().items():
            if (wanted := driver.versions.get(name)) != version:
                raise SettingsError(f"{here} runs {name} {version}, and this one {wanted}: install the same everywhere")


def _wait_until_free(place: Path) -> None:
    """Where the trial has been under way on a machine that was lost, its process there may still be ending."""
    until = time.monotonic() + _PATIENCE_S
    while place.is_dir():
        try:
            with alone_in(place):
                return
        except AnotherProcess:
            if time.monotonic() > until:
                raise
        time.sleep(_LOOK_EVERY_S)
