"""`unmask serve`: an application behind uvicorn, until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import gc
import ipaddress
import logging
import math
import socket
import sys
from collections.abc import Sequence
from contextlib import closing
from types import FrameType
from typing import Any, cast

import uvicorn

from unmask.errors import SettingsError
from unmask.serving.app import build_app
from unmask.serving.connections import Connection, end_most_silent
from unmask.serving.engine.process import EngineProcess
from unmask.serving.guards import Guards
from unmask.serving.settings import Limits

_BACKLOG = 2048
"""Connections that wait to be taken."""

_TAKEN_AT_ONCE = 8
"""How many are taken before `Connection` looks whether there is room; asyncio takes as many as its backlog."""

_NO_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""What taking a connection ends with where the process, or the system, may open no more."""

logger = logging.getLogger("unmask")


def check_address(host: str, token: str | None, insecure: bool) -> None:
    """Refuses a token that no client can send, and to be reached from other machines without one.

    Raises:
        SettingsError: the token has other characters than printable ASCII, or a blank at an end; or `host` is not this
            machine alone, there is no token, and `insecure` is not said.
    """
    if token is not None and (not token.isascii() or not token.isprintable() or token != token.strip()):
        raise SettingsError(
            "UNMASK_TOKEN holds a token that no client can send: expected letters, digits and signs of ASCII, with no "
            "blank at the beginning or end"
        )
    if token is not None or insecure:
        return
    if not _is_local(host):
        raise SettingsError(
            f"--host {host} lets other machines in, and there is no token: set UNMASK_TOKEN, or say --insecure where "
            "something else guards the address"
        )


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def hosts_of(host: str, token: str | None) -> frozenset[str] | None:
    """The names by which a server that only this machine reaches may be asked without a token; None: any.

    A page of another place whose name is made to lead here (DNS rebinding) asks by that name.
    """
    return frozenset({"localhost", "127.0.0.1", "::1", host}) if token is None and _is_local(host) else None


def serve(words: Sequence[str], precision: str, host: str, port: int, *, token: str | None, limits: Limits) -> None:
    """Answers until SIGTERM or Ctrl-C; then takes no new requests and finishes those it has.

    Args:
        words: models, each `DIR` or `NAME=DIR`; those of `unmask.serving.engine.models.default_models` if there are
            none.
        precision: `fp32` or `bf16`.
        token: what clients must send; None: nothing.
        limits: what is accepted.

    Raises:
        SettingsError: the address cannot be used.
        UserError: a model does not load.
        EngineLost: the process that computes has ended.
    """
    with _listen(host, port) as listener, closing(EngineProcess(words, precision, limits)) as engine:
        app = build_app(engine, limits, token, hosts_of(host, token))
        gc.collect()
        gc.freeze()  # what is there now stays: to look through it for garbage makes every answer wait, .2 s at a time
        gc.set_threshold(10_000)  # else a body of millions of small lists takes three times as long to be read
        place = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        print(
            f"{place} answers for {', '.join(engine.models)}; open it in a browser, or see {place}/docs for the "
            "endpoints",
            file=sys.stderr,
            flush=True,
        )
        server = Server(settings_of(app, limits))
        engine.when_lost(server.stop)
        server.run(sockets=[listener])
        if (loss := engine.loss()) is not None:
            raise loss


def settings_of(app: Guards, limits: Limits) -> uvicorn.Config:
    """How the application is run; a client may take `Limits.timeout_s` for everything that it does."""
    seconds = math.ceil(limits.timeout_s)
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_level="error",  # its warnings are of what clients send, with advice that is not for here
        access_log=False,
        server_header=False,
        timeout_keep_alive=seconds,
        timeout_graceful_shutdown=seconds + 5,
        backlog=_TAKEN_AT_ONCE,
    )


class Server(uvicorn.Server):
    """uvicorn's, before which more connections may wait than are taken at once; where the system has no file for one,
    an idle one ends."""

    _has_warned = False

    def stop(self) -> None:
        """Takes no new requests, and ends when those it has are answered."""
        self.should_exit = True

    def handle_exit(self, sig: int, _: FrameType | None) -> None:
        super().handle_exit(sig, _)
        if self.force_exit:
            for task in list(self.server_state.tasks):  # each answers that the server is being stopped
                task.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if number := len(self.server_state.tasks):
            what = "a request under way is" if number == 1 else f"{number:,} requests under way are"
            print(f"{what} answered first; Ctrl-C once more stops at once", file=sys.stderr, flush=True)
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)
        asyncio.get_running_loop().set_exception_handler(self._on_fault)

    def _on_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _NO_FILE:
            loop.default_exception_handler(context)
            return
        end_most_silent(
            cast(set[Connection], self.server_state.connections)
        )  # asyncio takes connections again in a second
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "a connection cannot be taken: %s: idle ones are closed for it; let the process open more files "
                "(ulimit -n)",
                error.strerror,
            )


def _listen(host: str, port: int) -> socket.socket:
    """A socket that is bound now, so that a port that is taken is reported before anything else."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small answers at once (TCP_NODELAY) only on sockets that name their protocol.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)  # who asks before all is ready waits
    except (OSError, OverflowError) as error:
        listener.close()
        raise SettingsError(f"{host}:{port} cannot be used: {error}: choose another --port or --host") from error
    return listener
