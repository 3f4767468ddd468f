"""What the benchmarks share: a peer in a process of its own, alternating rounds, medians and their spread, one table.

Every ratio says how many times as fast as the peer `unmask` is: the median of the peer's rounds over the median of
ours. Its spread is the smallest and the largest ratio of two neighbouring rounds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.packing.planning import PlannedSequence, Planner

# The peers must not use the network, nor draw bars between our lines.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

REPOSITORY = Path(__file__).parents[1]
SAMPLE_TEXT = REPOSITORY / "samples" / "text" / "en-books.jsonl"


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        what: what is measured.
        ours: our figure, None if it was not measured.
        peer: name and version of what we are compared with.
        peer_figure: its figure.
        unit: of both.
        ratio: how many times as fast we are.
        spread: smallest and largest ratio of two neighbouring rounds.
        target: what is claimed.
        met: whether the claim holds here; None if nothing is claimed or nothing was measured.
    """

    what: str
    ours: float | None
    peer: str = ""
    peer_figure: float | None = None
    unit: str = ""
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    target: str = ""
    met: bool | None = None


def compare(
    what: str,
    ours: Sequence[float],
    peer: str,
    theirs: Sequence[float],
    at_least: float | None = None,
    megabytes: float | None = None,
) -> Row:
    """The row of two lists of seconds, one entry per round; shown as MB/s if `megabytes` says how much was done."""
    ratio = median(theirs) / median(ours)
    ratios = [its / our for our, its in zip(ours, theirs, strict=True)]
    figures = [median(ours), median(theirs)]
    if megabytes is not None:
        figures = [megabytes / seconds for seconds in figures]
    return Row(
        what,
        ours=figures[0],
        peer=peer,
        peer_figure=figures[1],
        unit="s" if megabytes is None else "MB/s",
        ratio=ratio,
        spread=(min(ratios), max(ratios)),
        target="" if at_least is None else f"at least {at_least:.2f}x",
        met=None if at_least is None else ratio >= at_least,
    )


def interleave(measures: Mapping[str, Callable[[], float]], rounds: int, unit: str = "s") -> dict[str, list[float]]:
    """Takes every measure once per round, in reversed order each time, so that a slow minute affects all alike.

    `unit` is what the measures return, and what each round is told in.
    """
    figures: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds):
        for name in list(measures)[:: 1 if number % 2 == 0 else -1]:
            figures[name].append(measures[name]())
        told = ", ".join(f"{name} {taken[-1]:.3f} {unit}" for name, taken in figures.items())
        print(f"round {number + 1} of {rounds}: {told}", file=sys.stderr)
    return figures


@contextmanager
def in_own_process(build: Callable[..., Callable[[Any], Any]], *arguments: Any) -> Iterator[Callable[[Any], Any]]:
    """Runs `build(*arguments)` in a fresh process, and yields a function that calls its result there.

    Args:
        build: a function at the top level of a script; it imports what it needs.
        arguments: of `build`; like the requests and the answers they are pickled.

    Raises:
        RuntimeError: from the yielded function: the other process failed; holds its traceback.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, build, arguments))
    process.start()
    there.close()

    def call(request: Any) -> Any:
        with suppress(BrokenPipeError):  # it has failed before: its traceback is still to be received
            here.send((request,))
        try:
            is_answer, answer = here.recv()
        except EOFError:
            raise RuntimeError("the process was killed (out of memory?)") from None
        if not is_answer:
            raise RuntimeError(answer)
        return answer

    try:
        yield call
    finally:
        here.close()  # the other process ends when no more requests can come
        process.join()


def _serve(connection: Connection, build: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    try:
        call = build(*arguments)
        while True:
            try:
                (request,) = connection.recv()
            except EOFError:
                return
            connection.send((True, call(request)))
    except Exception:
        connection.send((False, traceback.format_exc()))


def full_sequences(planner: Planner, longest: int) -> Iterator[tuple[PlannedSequence, int]]:
    """Endless sequences of exactly `longest` tokens of text from the first block of documents, each with its key."""
    from unmask.chance import key

    for copy in count():
        for place, sequence in enumerate(planner.plan_block(copy, block=0)):
            if sum(len(span) for segment in sequence.segments for span in segment) == longest:
                yield sequence, key(planner.seed, copy, place)


def num_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_cores(number: int) -> None:
    """Restricts this process and those it starts to some of the cores, and `tokenizers` to as many threads."""
    os.environ["RAYON_NUM_THREADS"] = str(number)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:number])


def parser(claims: str | None) -> argparse.ArgumentParser:
    """The parser of a script's arguments, with the script's docstring as help, and `--json`."""
    words = argparse.ArgumentParser(description=claims, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--json", type=Path, metavar="FILE", help="also write the table to this file")
    return words


def machine(threads: int) -> dict[str, Any]:
    """The machine on which the figures were taken; `load` is the last minute's running processes, ours included."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    return {
        "processor": _processor_name(),
        "instructions": sorted(name for name, there in capabilities.items() if there is True),
        "cores": num_cores(),
        "threads": threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def report(title: str, rows: Sequence[Row], on: Mapping[str, Any], notes: Sequence[str], file: Path | None) -> None:
    """Prints the table with the machine and the notes, and writes all of it as JSON where `file` is given."""
    from rich.console import Console
    from rich.table import Table

    columns: dict[str, Callable[[Row], str]] = {
        "what": lambda row: row.what,
        "ours": lambda row: _figure(row.ours, row.unit) if row.ours is not None else _absence(row),
        "peer": lambda row: row.peer,
        "peer's figure": lambda row: "" if row.peer_figure is None else _figure(row.peer_figure, row.unit),
        "ratio": lambda row: "" if row.ratio is None else f"{row.ratio:.2f}x",
        "spread": lambda row: "" if row.spread is None else f"{row.spread[0]:.2f}x to {row.spread[1]:.2f}x",
        "target": lambda row: row.target,
        "met": lambda row: "" if row.met is None else "yes" if row.met else "NO",
    }
    table = Table(title=title, title_justify="left")
    for name, cell in columns.items():
        if any(cell(row) for row in rows):
            is_figure = name in ("ours", "peer's figure", "ratio", "spread")
            table.add_column(name, justify="right" if is_figure else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(row) for name, cell in columns.items() if any(cell(other) for other in rows)))
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
    console.print(table)
    for name, value in on.items():
        console.print(f"{name}: {', '.join(value) if isinstance(value, list) else value}", soft_wrap=True)
    for note in notes:
        console.print(note, soft_wrap=True)
    if file is not None:
        from unmask.io.writing import write_json

        write_json(file, {"title": title, "rows": [asdict(row) for row in rows], "machine": on, "notes": list(notes)})


def _absence(row: Row) -> str:
    return "" if row.peer_figure is not None else "not measured"


def _figure(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} {unit}".strip()
