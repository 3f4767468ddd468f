"""A diagnosis as one HTML page that needs nothing from the network, in the style of a run's report.

Samples and tables are HTML in the reader's own fonts, so that every script can be shown; pictures are drawn with CSS.
"""

from __future__ import annotations

from pathlib import Path

from unmask.doctor.findings import Diagnosis, FigureTable, are_numbers
from unmask.reports.layout import write_page


def write_diagnosis(path: Path, diagnosis: Diagnosis, overwrite: bool) -> None:
    """Writes the page; raises OutputError as `unmask.reports.layout.write_page` does."""
    write_page(
        path,
        "doctor.html",
        overwrite,
        title=f"{diagnosis.target}: doctor",
        above=f"a {diagnosis.kind}, examined",
        heading=diagnosis.target,
        tiles=diagnosis.headline,
        diagnosis=diagnosis,
        tables=[(table, _kind(table)) for table in diagnosis.tables],
    )


def _kind(table: FigureTable) -> str:
    """A table's class in the style sheet."""
    if not any(table.columns):
        return "cells" if table.columns else "plain"
    return "figures" if are_numbers(cell for row in table.rows for cell in row[1:]) else "list"
