"""Whether and when a run's losses and accuracies passed their floors; see `unmask.objectives.floors.Floor`.

BERT's loss stays near the floor of knowing the shown tokens for a long time before context begins to help.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unmask.doctor.findings import Finding
from unmask.objectives.floors import FREQUENCIES, SHOWN, SHOWN_ALONE, UNIGRAM, Floor

Row = Mapping[str, Any]


def recorded_floors(floors: Mapping[str, Mapping[str, float]]) -> list[Floor]:
    """The floors of losses over the vocabulary that a run has written into `results.json`."""
    kinds = {SHOWN: ("no-context", SHOWN_ALONE), UNIGRAM: ("unigram", f"{FREQUENCIES} (unigram entropy)")}
    return [
        Floor(f"{figure.removeprefix('loss/')}-{short}-floor", figure, label, what, values[label])
        for figure, values in floors.items()
        if figure.startswith("loss/")
        for label, (short, what) in kinds.items()
        if label in values
    ]


def check_floor(floor: Floor, rows: Sequence[Row], causes: Sequence[str]) -> Iterator[Finding]:
    """Whether a run passed a floor, and by which step; nothing if no row has the figure.

    Held-out rows decide if there are any, and date it: training rows may mask another share of the tokens.

    Args:
        causes: names of the faults that were found, for the advice to mention.
    """
    held_out = series(rows, floor.held_out_key)
    training = series(rows, floor.figure) if floor.is_loss else []
    deciding = held_out or last_part(training)
    if not deciding:
        return
    value = deciding[-1][1] if held_out else mean_of(deciding)
    form = "{:.3f}" if floor.is_loss else "{:.1%}"
    shown = "not finite" if value is None else form.format(value)
    side = "below" if floor.is_loss else "above"
    if not (is_passed := floor.is_passed_by(value)):
        side = f"not {side}"
    what = f"{floor.held_out_key} of step {deciding[-1][0]:,}" if held_out else f"last {floor.figure}"
    message = f"the {what}, {shown}, is {side} {form.format(floor.value)}, that of {floor.what}"
    if is_passed:
        step = passed_step(held_out or training, floor)
        yield Finding(floor.name, "good", message if step is None else f"{message}; passed by step {step:,}")
        return
    once = next((step for step, value in held_out if floor.is_passed_by(value)), None)
    if once is not None:
        message += f"; it was passed at step {once:,} and lost again"
    advice = floor.advice or "no cause was found: train on more tokens"
    if causes:
        advice = f"the likely cause is given under {', '.join(causes)}"
    yield Finding(floor.name, "warning" if floor.is_needed else "note", message, advice)


def passed_step(values: Sequence[tuple[int, float | None]], floor: Floor) -> int | None:
    """The first step from which on every value is beyond the floor; None if the last one is not."""
    step = None
    for at, value in reversed(values):
        if not floor.is_passed_by(value):
            break
        step = at
    return step


def series(rows: Sequence[Row], key: str | None) -> list[tuple[int, float | None]]:
    """The steps and values of one figure, in order, from the rows that have it; a value of None was not finite."""
    return [(row["step"], row[key]) for row in rows if key is not None and key in row]


def mean_of(values: Sequence[tuple[int, float | None]]) -> float | None:
    """The mean of a part of a series; None if a value is not finite, or there is none."""
    numbers = [value for _, value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(values) else None


def last_part(values: Sequence[tuple[int, float | None]]) -> Sequence[tuple[int, float | None]]:
    """The last quarter of a series, at least one value."""
    return values[-max(1, len(values) // 4) :]
