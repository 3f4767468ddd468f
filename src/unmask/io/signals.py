"""Ctrl-C and SIGTERM: long work finishes its current part, saves, and stops; a second Ctrl-C stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from unmask.errors import Interrupted


class Interruption:
    """Notes the first SIGINT or SIGTERM while its `with` block runs; `signal_number` is None until one arrives.

    Outside the main thread, where Python delivers no signals, it notes nothing.

    Args:
        at_once: True raises KeyboardInterrupt at the first signal already, which passes through code of others that
            catches every `Exception`.
    """

    def __init__(self, at_once: bool = False) -> None:
        self.signal_number: int | None = None
        self._at_once = at_once
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._former = _handle(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raises Interrupted if a signal has been noted."""
        if self.signal_number is not None:
            name = "Ctrl-C" if self.signal_number == signal.SIGINT else "SIGTERM"
            raise Interrupted(f"stopped by {name}", self.signal_number)

    def _note(self, number: int, _: FrameType | None) -> None:
        is_second = self.signal_number is not None and number == signal.SIGINT
        if not is_second:
            self.signal_number = number
        if is_second or self._at_once:
            raise KeyboardInterrupt


@contextmanager
def saying_when_stopped(what: Callable[[], str]) -> Iterator[None]:
    """A block whose interruption says more than what has stopped it.

    Args:
        what: what is kept, and how to continue.
    """
    try:
        yield
    except Interrupted as error:
        raise Interrupted(f"{error}; {what()}", error.signal_number) from error


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """A block that waits within a library, where Python handles no signals: Ctrl-C and SIGTERM end the process at once.

    Nothing has been written by then.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = _handle(signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _handle(handler: Any) -> dict[int, Any]:
    """Handles Ctrl-C and SIGTERM so; the former handlers. One that was set outside Python, in whose place nothing could
    be put back, stays."""
    ours = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not None]
    return {number: signal.signal(number, handler) for number in ours}
