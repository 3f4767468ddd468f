"""Progress of long work on standard error: a bar on a terminal, lines elsewhere, nothing within the first two seconds.

Also how counts, durations, sizes and lists of names are formatted, here and wherever else they are shown.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

Item = TypeVar("Item")

Advance = Callable[[float], None]
"""Is given how much more has been done since the last call; who calls it says of what."""

FIRST_SHOWN_S = 2.0
LINE_EVERY_S = 10.0
BAR_EVERY_S = 0.25
WINDOW_S = 30.0
"""The rate and the time left come from the last `WINDOW_S` seconds, so that a slow start is soon forgotten.

They are not rich's own, which need two samples within that time, and have one count only: here the end may be measured
in steps and the rate in tokens. A log shows the same text."""

_NARROW = 90
"""A terminal of fewer columns has no bar, which would take the room of the text beside it."""


class _Sample(NamedTuple):
    at: float
    fraction: float
    units: float


class Progress:
    """Shows how far a long task has come, for use in a `with` statement.

    Call `advance` if the end is a number of the counted units, `update` if the end and the rate are measured in
    different things (a budget of steps or minutes, a rate in tokens).

    Args:
        what: the task, with which the line begins: "pre-training".
        total: how much there is in all, in `unit`; None where unknown.
        unit: what is counted; "bytes" are written as KiB, MiB ...
        start_count: what earlier sessions of a resumed task have done; it is not part of the rate.
        start_fraction: the fraction that they have done, where it is not `start_count / total`.
        stream: where to write; left out, the standard error of the moment.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        what: str,
        total: float | None = None,
        unit: str = "tokens",
        *,
        start_count: float = 0,
        start_fraction: float | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._count = start_count
        self._fraction = start_fraction
        self._start_count = start_count
        self._stream = standard_error() if stream is None else stream
        self._clock = clock
        self._started = 0.0
        self._due = math.inf
        self._samples: deque[_Sample] = deque()
        self._bar: Bars | None = None

    def __enter__(self) -> Self:
        self._started = self._clock()
        self._samples.append(_Sample(self._started, self._fraction_done() or 0.0, self._count))
        self._due = self._started + FIRST_SHOWN_S
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._due = math.inf
        elapsed = self._clock() - self._started
        if elapsed >= FIRST_SHOWN_S:
            fraction = self._fraction_done()
            done = "done" if kind is None else "stopped" if fraction is None else f"stopped at {_percent(fraction)}"
            own = self._count - self._start_count
            of_session = f", {self._number(own)} of them in this session" if self._start_count else ""
            amount, rate = self._amount(self._count) + of_session, self._amount(own / elapsed)
            self.note(f"{self._what}: {done} · {amount} · {human_duration(elapsed)} · {rate}/s")

    def advance(self, count: float = 1) -> None:
        """Adds to what is done."""
        self._count += count
        self._show_if_due()

    def counting(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items, each of which is done as it is taken."""
        for item in items:
            self.advance()
            yield item

    def update(self, fraction: float | None, count: float) -> None:
        """Sets how far the task is.

        Args:
            fraction: of the whole task, 0 to 1, earlier sessions included; None where unknown.
            count: units done, earlier sessions included.
        """
        self._fraction = fraction
        self._count = count
        self._show_if_due()

    @contextmanager
    def aside(self, what: str, total: float, unit: str) -> Iterator[Progress]:
        """Other work in the middle of the task, which is shown in its place; its time is no part of the task's rate."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        began = self._clock()
        try:
            with Progress(what, total, unit, stream=self._stream, clock=self._clock) as other:
                yield other
        finally:
            spent = self._clock() - began
            self._started += spent
            self._samples = deque(sample._replace(at=sample.at + spent) for sample in self._samples)

    def note(self, text: str) -> None:
        """Writes a separate line at once, above the bar if there is one."""
        write_line(text, self._bar, self._stream)

    def _show_if_due(self) -> None:
        now = self._clock()
        if now < self._due:
            return
        self._samples.append(_Sample(now, self._fraction_done() or 0.0, self._count))
        while len(self._samples) > 2 and self._samples[1].at <= now - WINDOW_S:
            self._samples.popleft()
        if self._bar is None and (bar := open_bars(self._stream)) is not None:
            bar.add_task(self._what, total=None if self._fraction_done() is None else 1.0, status="")
            bar.start()
            self._bar = bar
        status = " · ".join(self._status())
        if self._bar is None:
            self.note(f"{self._what}: {status}")
            self._due = now + LINE_EVERY_S
        else:
            completed = min(1.0, self._fraction_done() or 0.0)
            self._bar.update(self._bar.task_ids[0], completed=completed, status=status, refresh=True)
            self._due = now + BAR_EVERY_S

    def _status(self) -> list[str]:
        """The parts of the line that describe the present state, in order."""
        first, last = self._samples[0], self._samples[-1]
        seconds = last.at - first.at
        of_total = "" if self._total is None else f" of {self._number(self._total)}"
        parts = [
            self._amount(math.floor(self._count), of_total),
            f"{self._amount((last.units - first.units) / seconds)}/s",
        ]
        if (fraction := self._fraction_done()) is not None:
            parts.insert(0, _percent(fraction))
        if last.fraction > first.fraction:
            left_s = (1.0 - min(last.fraction, 1.0)) * seconds / (last.fraction - first.fraction)
            parts.append(f"{human_duration(left_s)} left")
        return parts

    def _fraction_done(self) -> float | None:
        if self._fraction is not None:
            return self._fraction
        return self._count / self._total if self._total else None

    def _number(self, count: float) -> str:
        return human_bytes(count) if self._unit == "bytes" else human_count(count)

    def _amount(self, count: float, of_total: str = "") -> str:
        """A count with its unit: 3 MiB, 400k of 10M tokens."""
        return self._number(count) + of_total + ("" if self._unit == "bytes" else f" {self._unit}")


def open_bars(stream: TextIO, *, shows_time: bool = False) -> Bars | None:
    """Bars of `rich`, not yet shown: each has a task's description, how much of it is done, and its field `status`; a
    narrow terminal shows the texts alone.

    Returns:
        None if the stream is not a terminal, or is one that cannot move its cursor.
    """
    is_terminal: Callable[[], bool] = getattr(stream, "isatty", bool)  # which what only writes to a log may lack
    if not is_terminal():
        return None
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    console = Console(file=stream, force_jupyter=False)
    if not console.is_interactive:
        return None
    return Bars(
        TextColumn("{task.description}", markup=False),
        *([BarColumn(bar_width=24)] if console.width >= _NARROW else []),
        *([TimeElapsedColumn()] if shows_time else []),
        TextColumn("{task.fields[status]}", markup=False, table_column=Column()),  # which may take a second line
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,  # results go to standard output untouched
        redirect_stderr=False,
    )


def standard_error() -> TextIO:
    """Where progress and messages are shown; nowhere in a process that has no such stream, such as a service."""
    return sys.stderr or _nowhere()


@cache
def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def write_line(text: str, bars: Bars | None, stream: TextIO) -> None:
    """Writes a line at once: above `bars` if there are any, else to `stream`."""
    if bars is not None:
        bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        print(text, file=stream, flush=True)


class NamingLevel(logging.Formatter):
    """Messages as they are shown: a warning or an error begins with that word."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return f"{record.levelname.lower()}: {text}" if record.levelno >= logging.WARNING else text


def name_levels() -> None:
    """Has Python show the warnings and errors of this process so, where it has no other handler for them."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(NamingLevel())


def not_shown(done: float) -> None:
    """An `Advance` that shows no progress."""


def human_count(value: float) -> str:
    """A number in three digits and a letter: 950, 12.3k, 1.23M, 110M, 3.3B (10^9), 2T."""
    return _scaled(value, 1000, ("", "k", "M", "B", "T"))


def human_bytes(value: float) -> str:
    """A size in three digits and a binary unit: 512 B, 1.5 KiB, 417 MiB."""
    return _scaled(value, 1024, (" B", " KiB", " MiB", " GiB", " TiB"))


def human_duration(seconds: float) -> str:
    """A duration in its one or two largest units: 35 ms, 4.2 s, 48 s, 3 min 20 s, 12 min, 2 h 05 min, 3 d 4 h."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    whole_seconds = round(seconds)
    if whole_seconds < 600:
        minutes, rest = divmod(whole_seconds, 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    whole_minutes = round(seconds / 60)
    if whole_minutes < 60:
        return f"{whole_minutes} min"
    if whole_minutes < 24 * 60:
        return f"{whole_minutes // 60} h {whole_minutes % 60:02d} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours} h"


def human_number(value: Any) -> str:
    """A result: a fraction in four digits, whole and large numbers with thousands separated; a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def figures_in_a_line(figures: Mapping[str, float | None]) -> str:
    """Results by name, in a line: `accuracy 0.8125 · f1 0.75`."""
    return " · ".join(f"{name} {human_number(value)}" for name, value in figures.items())


def counted(count: int, what: str) -> str:
    """`1 file`, `1,234 files`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def named(labels: Iterable[str]) -> str:
    """Labels in a line; one with a comma in it is between quotes."""
    return ", ".join(repr(label) if "," in label else label for label in labels)


def listed(items: Sequence[str], most: int = 10) -> str:
    """The first few of some items, for a message: `a, b and 3 more`."""
    shown_items = named(items[:most])
    return shown_items if len(items) <= most else f"{shown_items} and {len(items) - most:,} more"


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    place = 0
    while value >= base - 0.5 and place < len(units) - 1:  # 999.7 is written as 1k, not as 1000
        value /= base
        place += 1
    digits = f"{value:.3g}" if value < 999.5 else f"{value:.0f}"
    return digits + units[place]


def _percent(fraction: float) -> str:
    """A percentage, rounded down, so that nothing is at 100 % before its end."""
    return f"{math.floor(min(fraction, 1.0) * 100)} %"
