"""The table of the fault drill."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from measure import machine, num_cores


@dataclass
class Row:
    """A line of the table; `notes` says what the faults met, or why none was brought about."""

    fault: str
    tries: int
    survived: int = 0
    lost: int = 0
    notes: str = ""
    losses: list[str] = field(default_factory=list)


def report(rows: list[Row], seconds: float, file: Path | None) -> None:
    """Prints the table and each loss, and writes all of it as JSON where `file` is given."""
    from rich.console import Console
    from rich.table import Table

    from unmask.io.writing import write_json

    table = Table(title="Faults, and the same command with --resume", title_justify="left")
    for name in ("fault", "tries", "survived", "lost", "notes"):
        table.add_column(name, justify="right" if name in ("tries", "survived", "lost") else "left", overflow="fold")
    for row in rows:
        table.add_row(row.fault, str(row.tries), str(row.survived), str(row.lost), row.notes)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
    console.print(table)
    on = machine(num_cores()) | {"an unbroken run, seconds": round(seconds, 2)}
    for name, value in on.items():
        console.print(f"{name}: {', '.join(value) if isinstance(value, list) else value}", soft_wrap=True)
    for row in rows:
        for loss in row.losses:
            console.print(f"{row.fault}: {loss}", soft_wrap=True)
    if file is not None:
        write_json(file, {"rows": [asdict(row) for row in rows], "machine": on})
