"""A run in phases, each with sequences and batches of its own: short sequences first, then long ones (Devlin et al.
2019, appendix A.2), or batches that grow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from unmask.data.loader import LoadedStep, Position, SequenceLoader


def phased_steps(
    loaders: Sequence[SequenceLoader],
    untils: Sequence[float],
    start: Position,
    progress: Callable[[], float],
    on_phase: Callable[[int], None],
) -> Iterator[LoadedStep]:
    """Steps without end, from `start` on, each of the phase that is due when it is asked for.

    A new phase goes on with the block of documents after the present one, whose other sequences are passed over, so
    nothing is shown twice in an epoch. Phases only ever go forward.

    Args:
        loaders: of each phase, all of one split and one seed.
        untils: the share of the budget that is done when each phase ends, ascending.
        start: the first step's position, with its phase.
        progress: the share of the budget that is done, from 0 to 1. It is asked once for each step, when that step is
            asked for and before anything of it is made. Who takes steps before the ones before them are trained has to
            count those in it: then the phases change at the same steps as without.
        on_phase: told the number of each phase that begins, from 0; not of the one that `start` is in.
    """
    assert len(loaders) == len(untils) > start.phase, "each phase has a loader and an end"
    position = start
    steps = loaders[position.phase].steps(position)
    while True:
        due = min(bisect_right(untils, progress()), len(untils) - 1)
        if due > position.phase:
            position = replace(loaders[position.phase].after_block(position), phase=due)
            steps = loaders[due].steps(position)
            on_phase(due)
        step = next(steps)
        position = step.after
        yield step
