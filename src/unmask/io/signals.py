"""Ctrl-C and SIGTERM: long work finishes its current part, saves, and stops; a second Ctrl-C stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

from unmask.errors import Interrupted


class Interruption:
    """Notes the first SIGINT or SIGTERM while its `with` block runs; `signal_number` is None until one arrives.

    Outside the main thread, where Python delivers no signals, it notes nothing.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
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
        if self.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = number
