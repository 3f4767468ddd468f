"""A diagnosis as one HTML page that needs nothing from the network, in the style of a run's report.

Samples and tables are HTML in the reader's own fonts, so that every script can be shown; pictures are drawn with CSS.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unmask.doctor.findings import Diagnosis, FigureTable, Sample, are_numbers
from unmask.reports.layout import write_page


def write_diagnosis(path: Path, diagnosis: Diagnosis, overwrite: bool) -> None:
    """Writes the page; raises OutputError as `unmask.reports.layout.write_page` does."""
    legend = _legend(diagnosis.samples)
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
        legend=legend,
        has_segments="segments" in legend,
    )


def _kind(table: FigureTable) -> str:
    """A table's class in the style sheet."""
    if not any(table.columns):
        return "cells" if table.columns else "plain"
    return "figures" if are_numbers(cell for row in table.rows for cell in row[1:]) else "list"


def _legend(samples: Sequence[Sample]) -> list[str]:
    """What the samples have that needs to be explained."""
    tokens = [token for sample in samples for token in sample.tokens]
    has = {
        "segments": any(token.segment for token in tokens),
        "special": any(token.special for token in tokens),
        "targets": any(token.label is not None for token in tokens),
    }
    return [kind for kind, is_there in has.items() if is_there]
