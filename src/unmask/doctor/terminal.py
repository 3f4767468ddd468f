"""A diagnosis on a terminal, within 100 columns; nothing depends on colour alone."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.bar import Bar
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from unmask.doctor.findings import Diagnosis, FigureTable, Finding, Histogram, Level, Sample, SampleToken, are_numbers

WIDTH = 100
_BAR_WIDTH = 50
LEVEL_STYLES: dict[Level, str] = {"fault": "bold red", "warning": "yellow", "note": "cyan", "good": "green"}
SEGMENT_STYLES = ("blue", "magenta")
_LEGEND = {"segments": "A and B are the segments", "targets": "targets are ‹what is shown=what is to be predicted›"}


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Writes a diagnosis for people to standard output; colours only on a terminal."""
    with _open_console() as console:
        _print(console, diagnosis)


def print_tables(tables: Iterable[FigureTable]) -> None:
    """Writes tables alone; see `print_diagnosis`."""
    with _open_console() as console:
        for table in tables:
            _print_table(console, table)


@contextmanager
def _open_console() -> Iterator[Console]:
    console = Console(highlight=False, markup=False, emoji=False)
    console.width = min(WIDTH, console.width) if console.is_terminal else WIDTH
    with console.capture() as captured:
        yield console
    lines = captured.get().splitlines()  # rich pads every line to the width
    print("\n".join(line.rstrip() for line in lines))


def _print(console: Console, diagnosis: Diagnosis) -> None:
    console.print(f"{diagnosis.target}: a {diagnosis.kind}", style="bold", soft_wrap=True)
    figures = [f"{name} {value}".replace(" ", "\N{NO-BREAK SPACE}") for name, value in diagnosis.headline]
    for line in textwrap.wrap(" · ".join(figures), console.width, break_on_hyphens=False):
        console.print(line.replace("\N{NO-BREAK SPACE}", " "))
    console.print()
    console.print(_findings(diagnosis.findings))
    for table in diagnosis.tables:
        _print_table(console, table)
    for title, text in diagnosis.listings:
        console.print(f"\n{title}", style="bold")
        console.print(Padding(Text(text), (0, 0, 0, 2)), soft_wrap=True)
    for histogram in diagnosis.histograms:
        _print_section(console, f"{histogram.title} ({histogram.counted} by {histogram.unit})", _bars(histogram))
    if diagnosis.samples:
        console.print("\nSequences as the model sees them", style="bold")
        legend = [_LEGEND[kind] for kind in diagnosis.legend if kind in _LEGEND]
        if legend:
            console.print(Padding(Text("; ".join(legend), style="dim"), (0, 0, 0, 2)))
        for number, sample in enumerate(diagnosis.samples, start=1):
            _print_sample(console, number, sample, "segments" in diagnosis.legend)


def _print_table(console: Console, table: FigureTable) -> None:
    _print_section(console, table.title, _grid(table))
    if table.note:
        console.print(Padding(Text(table.note, style="dim"), (0, 0, 0, 2)))


def _print_section(console: Console, title: str, grid: Grid) -> None:
    console.print(f"\n{title}", style="bold")
    console.print(Padding(grid, (0, 0, 0, 2)))


def _findings(findings: Iterable[Finding]) -> Grid:
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for finding in findings:
        text = Text(f"{finding.name}: {finding.message}")
        if finding.advice:
            text.append(f"\n→ {finding.advice}", style="dim")
        grid.add_row(Text(finding.level, style=LEVEL_STYLES[finding.level]), text)
    return grid


def _grid(table: FigureTable) -> Grid:
    num_columns = max([len(table.columns), *(len(row) for row in table.rows)])
    has_head = any(table.columns)
    grid = Grid(box=None, show_header=has_head, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for place in range(num_columns):
        cells = [row[place] for row in table.rows if place < len(row)]
        is_narrow = max((cell_len(cell) for cell in cells), default=0) <= WIDTH // 3
        grid.add_column(
            table.columns[place] if has_head else "",
            justify="right" if place and are_numbers(cells) else "left",
            no_wrap=is_narrow,
            overflow="fold",
        )
    for row in table.rows:
        grid.add_row(*(Text(cell, style="dim" if not has_head and not place else "") for place, cell in enumerate(row)))
    return grid


def _bars(histogram: Histogram) -> Grid:
    grid = Grid.grid(padding=(0, 2, 0, 0))
    for justify in ("right", "left", "right", "right"):
        grid.add_column(justify=justify, no_wrap=True)
    most, total = max(1, *histogram.counts), max(1, sum(histogram.counts))
    for place, count in enumerate(histogram.counts):
        bar = Bar(most, 0, count, width=_BAR_WIDTH, color="blue")
        grid.add_row(histogram.label(place), bar, f"{count:,}", f"{count / total:.1%}")
    return grid


def _print_sample(console: Console, number: int, sample: Sample, has_segments: bool) -> None:
    console.print(Padding(Text(f"sequence {number}: {sample.facts()}"), (0, 0, 0, 2)))
    if not has_segments:
        console.print(Padding(_segment(sample.tokens, ""), (0, 0, 0, 4)))
        return
    grid = Grid.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for segment in sorted({token.segment for token in sample.tokens}):
        tokens = [token for token in sample.tokens if token.segment == segment]
        grid.add_row(Text("AB"[segment], style="bold"), _segment(tokens, SEGMENT_STYLES[segment]))
    console.print(Padding(grid, (0, 0, 0, 4)))


def _segment(tokens: Iterable[SampleToken], style: str) -> Text:
    text = Text(overflow="fold")
    for token in tokens:
        if token.label is not None:
            text.append(f"‹{token.shown}={token.label}›", style="reverse")
        else:
            text.append(token.shown, style="bold" if token.special else style)
        text.append(" ")
    return text
