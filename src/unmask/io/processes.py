"""Worker processes, which leave signals to their parent and end with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import ParamSpec, TypeVar

from unmask.errors import SettingsError

P = ParamSpec("P")
Value = TypeVar("Value")


class WorkerProcess:
    """A process that runs one function at a time: a pool of its own, since a killed process breaks its whole pool.

    Ctrl-C, which a terminal sends to all processes at once, and SIGTERM are for the parent alone, unless the process
    unblocks them.

    Args:
        initializer: a module-level function, called first in the process with `arguments`.

    Attributes:
        process: what `multiprocessing` knows of it.

    Raises:
        SettingsError: this process is one of a `multiprocessing.Pool`, which may have none of its own.
    """

    def __init__(self, initializer: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> None:
        if multiprocessing.current_process().daemon:
            raise SettingsError("a worker of a multiprocessing.Pool may start no processes: use a ProcessPoolExecutor")
        self._executor = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(initializer, arguments, named)
        )
        with signals_held_back(signal.SIGINT, signal.SIGTERM):
            self._executor.submit(os.getpid)  # starts the process
        (self.process,) = self._executor._processes.values()
        # Now the process alone can write to the pipe of answers. If it is killed in the middle of an answer, the pool's
        # thread gets to the end of the pipe; it would wait for the rest for ever.
        self._executor._result_queue._writer.close()  # type: ignore[attr-defined]  # a SimpleQueue of multiprocessing
        # Nor does anyone else read the pipe of calls: what is still being written to it when the process is killed ends
        # with an error. (Python itself closes it then, from 3.11.5 on.)
        self._executor._call_queue._reader.close()  # type: ignore[attr-defined]

    def submit(self, function: Callable[P, Value], *arguments: P.args, **named: P.kwargs) -> Future[Value]:
        """Runs a module-level function; the future of a process that was killed raises BrokenProcessPool."""
        try:
            return self._executor.submit(function, *arguments, **named)
        except BrokenProcessPool as error:  # it was killed before
            future: Future[Value] = Future()
            future.set_exception(error)
            return future

    def exit_code(self) -> int:
        """How the process, which has died, has ended: minus the number of the signal that killed it, if one did.

        The pool's own thread waits for the process, too, and the system reports an end to one of them only: so that
        thread ends first.
        """
        self._executor.shutdown()
        self.process.join()
        return self.process.exitcode or 0

    def how_it_ended(self) -> str:
        """The same in words; with what to do where it ended as it began, by running the script that started it."""
        code = self.exit_code()
        needs = ': a script in which there are workers needs `if __name__ == "__main__":` before what it does'
        return how_it_ended(code) + needs * (code == 1 and not is_own_process())

    def close(self) -> None:
        """Kills the process: an idle one has nothing to save, and would take seconds to free its memory."""
        self.process.kill()
        self._executor.shutdown()


def how_it_ended(code: int) -> str:
    """How a process ended, by its exit code, or minus the number of the signal that killed it; for messages."""
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}{' (out of memory?)' * (code == -signal.SIGKILL)}"


@contextmanager
def signals_held_back(*numbers: signal.Signals) -> Iterator[None]:
    """Blocks signals for processes started meanwhile, in which they stay blocked."""
    resource_tracker.ensure_running()  # which the first process would start, and with it unblock Ctrl-C and SIGTERM
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_is_own = False


def own_process() -> None:
    """Says that no other program's work is done in this process: it is a command, a server or a worker of ours."""
    global _is_own
    _is_own = True


def is_own_process() -> bool:
    """Whether `own_process` has been called here."""
    return _is_own


def end_with_parent() -> None:
    """Makes this worker end once its parent is gone: a killed parent stops none of its workers; they would run on."""
    threading.Thread(target=_await_parent, daemon=True).start()


def _await_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _begin(initializer: Callable[..., object], arguments: tuple[object, ...], named: dict[str, object]) -> None:
    end_with_parent()
    own_process()
    initializer(*arguments, **named)
