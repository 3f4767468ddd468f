"""What is shown of the trials of a search.

For trials side by side: on a terminal one bar for all of them and the names of those that are running, elsewhere a line
for each one that has ended. For all trials: warnings about their inputs, once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from unmask.io.progress import human_duration, open_bars, standard_error, write_line
from unmask.training.run.messages import HIDDEN, logging_messages, showing_handlers

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

logger = logging.getLogger("unmask")


class TrialsDisplay:
    """Shows trials that run side by side, for use in a `with` statement. All lines go to the search's log too.

    Args:
        directory: of the search.
        num_trials: how many are to be run.
        parallel: how many at a time, at most.

    Attributes:
        num_ended: trials that have finished or failed; the caller counts them.
    """

    def __init__(self, directory: Path, num_trials: int, parallel: int) -> None:
        self.num_ended = 0
        self._directory = directory
        self._num_trials = num_trials
        self._parallel = parallel
        self._stream = standard_error()
        self._bars: Bars | None = None
        self._running: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        at_a_time = min(self._parallel, self._num_trials)
        self.log(f"{self._num_trials} trials, {at_a_time} at a time; each has a log.txt of its own")
        if (bars := open_bars(self._stream, shows_time=True)) is not None:
            bars.add_task("search", total=self._num_trials, status="")
            bars.start()
            self._bars = bars
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def show(self, running: Collection[str], left_s: float | None) -> None:
        """Shows how far the search is.

        Args:
            running: the names of the trials that are running.
            left_s: seconds until all have ended, if known.
        """
        if self._bars is None:
            return
        left = "" if left_s is None else f" · {human_duration(left_s)} left"
        status = f"{self.num_ended} of {self._num_trials} trials{left}"
        self._bars.update(self._bars.task_ids[0], completed=self.num_ended, status=status)
        for name in self._running.keys() - set(running):
            self._bars.remove_task(self._running.pop(name))
        for name in running:
            if name not in self._running:
                self._running[name] = self._bars.add_task(f"  {name}", total=None, status="")
        self._bars.refresh()

    def log(self, line: str) -> None:
        """Writes a line, above the bars where there are some."""
        self._write(logging.INFO, line, line)

    def warn(self, line: str) -> None:
        """Writes a line that is a warning."""
        self._write(logging.WARNING, line, f"warning: {line}")

    def _write(self, level: int, line: str, shown: str) -> None:
        with logging_messages(self._directory):
            logger.log(level, "%s", line)
        if not showing_handlers():
            write_line(shown, self._bars, self._stream)


@contextmanager
def first_warnings(seen: set[str]) -> Iterator[None]:
    """A block of which only warnings and errors that are not in `seen` are shown and logged; adds them to it."""

    def is_first(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_new = record.levelno >= logging.WARNING and message not in seen
        if is_new:
            seen.add(message)
        return is_new

    with _filtering(is_first):
        yield


@contextmanager
def warning_once(seen: set[str]) -> Iterator[None]:
    """A block that shows a warning only where it is not in `seen`, and adds it; logs opened in it get each one."""

    def mark(record: logging.LogRecord) -> bool:
        if record.levelno == logging.WARNING:
            message = record.getMessage()
            setattr(record, HIDDEN, message in seen)
            seen.add(message)
        return True

    with ExitStack() as filters:
        filters.enter_context(_filtering(mark))
        for handler in showing_handlers():
            filters.enter_context(_filtering(lambda record: not getattr(record, HIDDEN, False), handler))
        yield


@contextmanager
def _filtering(is_wanted: Callable[[logging.LogRecord], bool], place: logging.Filterer = logger) -> Iterator[None]:
    place.addFilter(is_wanted)
    try:
        yield
    finally:
        place.removeFilter(is_wanted)
