"""The engine in a process of its own: what computes and what speaks HTTP would share the one lock that Python threads
of a process have, and each wait for the other.

Both send each other their own objects, pickled by `multiprocessing`, through a pair of sockets that nobody else has;
what clients send is plain text and numbers in them.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from unmask.errors import UserError
from unmask.io.cores import quota_of_cores
from unmask.io.processes import how_it_ended, own_process, signals_held_back
from unmask.io.progress import name_levels
from unmask.serving.engine.asks import Answers, Ask, Fault, ModelFacts, Refused, Reply, end
from unmask.serving.settings import Limits


class EngineLost(UserError):  # noqa: N818
    """The process that computes has ended."""

    exit_code = 1


class EngineProcess:
    """An engine in another process; see `unmask.serving.engine.asks.Answers`.

    Args:
        words: models, as `unmask.serving.engine.models.open_models` takes them.
        precision: `fp32` or `bf16`.
        limits: of what it computes.

    Raises:
        UserError: a model does not load.
    """

    def __init__(self, words: Sequence[str], precision: str, limits: Limits) -> None:
        self._on_loss: Callable[[], None] = lambda: None
        self._numbers, self._waiting = itertools.count(), dict[int, Future[Any]]()
        self._is_closed, self._is_lost, self._sending = False, False, threading.Lock()
        context = multiprocessing.get_context("spawn")
        self._connection, its = context.Pipe()
        self._process = context.Process(target=_run, args=(its, tuple(words), precision, limits), daemon=True)
        try:
            with signals_held_back(signal.SIGINT, signal.SIGTERM):  # which are for this process alone
                self._process.start()
            # Where nobody comes to close it, Python would end it by SIGTERM, which it does not take, and wait for it.
            atexit.register(self._process.kill)
            its.close()
            opened = self._connection.recv()
            if isinstance(opened, Exception):
                raise opened
            self.models: Mapping[str, ModelFacts] = opened
            self._receiver = threading.Thread(target=self._receive, name="unmask-replies", daemon=True)
            self._receiver.start()
        except EOFError:
            raise EngineLost(self._how_it_ended()) from None
        except BaseException:  # what it says, Ctrl-C, no thread to be had
            self.close()
            raise

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def takes_work(self) -> bool:
        return not self._is_closed and not self._is_lost

    def ask(self, ask: Ask) -> Future[Reply]:
        return self._send(ask)

    def figures(self) -> Future[bytes]:
        return self._send(None)

    def when_lost(self, function: Callable[[], None]) -> None:
        """Calls a function, in any thread, where the process ends before `close`, or has ended."""
        self._on_loss = function
        if self._is_lost:
            function()

    def loss(self) -> EngineLost | None:
        """Why the process has ended by itself; None if it has not."""
        return EngineLost(self._how_it_ended()) if self._is_lost else None

    def close(self) -> None:
        """Ends the process: who waits for it has an answer already."""
        self._is_closed = True
        if self._process.pid is not None:
            self._process.kill()
            self._process.join()
            atexit.unregister(self._process.kill)
        self._fail_all()

    def _send(self, asked: Ask | None) -> Future[Any]:
        number, future = next(self._numbers), Future[Any]()
        self._waiting[number] = future
        future.add_done_callback(lambda _: self._forget(number))
        try:
            self._write((number, asked))
        except OSError:
            self._fail_all()
        return future

    def _forget(self, number: int) -> None:
        """Of what is over; where it has no reply, nobody waits for one."""
        if self._waiting.pop(number, None) is not None:
            with suppress(OSError):
                self._write((number, _GIVEN_UP))

    def _write(self, message: tuple[int, Any]) -> None:
        with self._sending:
            self._connection.send(message)

    def _receive(self) -> None:
        try:
            with suppress(EOFError, OSError):
                while True:
                    number, outcome = self._connection.recv()
                    if (future := self._waiting.pop(number, None)) is not None:
                        end(future, outcome)
        finally:
            self._is_lost = not self._is_closed
            self._fail_all()
            if self._is_lost:
                self._on_loss()

    def _fail_all(self) -> None:
        for number in list(self._waiting):
            if (future := self._waiting.pop(number, None)) is not None:
                end(future, Refused(503, "the server is being stopped", "stopping", headers={"Connection": "close"}))

    def _how_it_ended(self) -> str:
        self._process.join()
        return f"the process that computes {how_it_ended(self._process.exitcode or 0)}: start the server again"


_GIVEN_UP = "given up"


def _run(connection: Connection, words: Sequence[str], precision: str, limits: Limits) -> None:
    """In the process: loads the models, then answers until the other side is gone."""
    from unmask.serving.engine.engine import Engine
    from unmask.serving.engine.models import default_models, open_models
    from unmask.tokenization.kinds.word_characters import WordTokenizer

    own_process()
    name_levels()
    WordTokenizer.forgets_after_s = 2 * limits.timeout_s  # nothing is under way for longer

    # In bf16 a batch takes so little time that reading and answering its requests needs a core meanwhile.
    given = os.environ.get("OMP_NUM_THREADS")
    shares = precision == "bf16" and given in (None, str(quota_of_cores()))  # which `main` sets
    try:
        engine = Engine(open_models(words or default_models(), precision), limits, shares=shares)
    except (UserError, OSError, MemoryError) as error:
        connection.send(error)
        return
    except Exception:
        connection.send(Fault(traceback.format_exc().rstrip()))
        return
    threading.excepthook = _end_process
    gc.collect()
    gc.freeze()  # what is there now stays: to look through it for garbage makes every answer wait, .2 s at a time
    _Answering(connection, engine).run()


def _end_process(failed: threading.ExceptHookArgs) -> NoReturn:
    """Where a thread of it ends by a fault: without it requests would wait for nothing."""
    traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    sys.stderr.flush()
    os._exit(1)


class _Answering:
    """What is asked of an engine through a connection."""

    def __init__(self, connection: Connection, engine: Answers) -> None:
        self._connection, self._engine = connection, engine
        self._sending, self._asked = threading.Lock(), dict[int, Future[Any]]()

    def run(self) -> NoReturn:
        self._send(self._engine.models)
        while True:
            try:
                number, asked = self._connection.recv()
            except (EOFError, OSError):
                os._exit(0)  # nobody is left to compute for
            if asked == _GIVEN_UP:
                if (future := self._asked.get(number)) is not None:
                    future.cancel()
                continue
            try:
                future = self._engine.figures() if asked is None else self._engine.ask(asked)
            except Exception:  # no thread can be started, say
                self._send((number, Fault(traceback.format_exc().rstrip())))
                continue
            self._asked[number] = future
            future.add_done_callback(partial(self._reply, number))

    def _reply(self, number: int, future: Future[Any]) -> None:
        self._asked.pop(number, None)
        if not future.cancelled():
            try:
                self._send((number, future.exception() or future.result()))
            except Exception:  # what cannot be sent
                self._send((number, Fault(traceback.format_exc().rstrip())))

    def _send(self, message: Any) -> None:
        with self._sending, suppress(OSError):
            self._connection.send(message)
