"""The floors that losses and accuracies must pass, from the counts of a store alone."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.doctor.findings import FigureTable
from unmask.objectives.floors import Floor


def floors_table(floors: Sequence[Floor]) -> FigureTable:
    """The floors that an objective gives, with what each means."""
    rows = tuple(
        (floor.figure, floor.label, f"{floor.value:.4f}" if floor.is_loss else f"{floor.value:.2%}", floor.what)
        for floor in floors
    )
    title = "Floors that losses (nats) and accuracies must pass"
    return FigureTable(title, rows, ("figure", "floor", "value", "what has it"))
