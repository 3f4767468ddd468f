"""A run in phases, each with sequences and batches of its own: short sequences first, then long ones (Devlin et al.
2019, appendix A.2), or batches that grow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from unmask.batch import StepBatches
from unmask.packing.loader import Position, SequenceLoader
from unmask.packing.stream import StreamLoader


def phased_steps(
    loaders: Sequence[SequenceLoader | StreamLoader],
    untils: Sequence[float],
    start: Position,
    progress: Callable[[], float],
    on_phase: Callable[[int], None],
) -> Iterator[StepBatches[Position]]:
    """Endless steps from `start` on, each of the phase that is due when the step is requested.

    A new phase begins with the next block of documents, and the remaining sequences of the present block are skipped,
    so nothing is shown twice in an epoch. Where less is done than before, as when a run rolls back, an earlier phase
    begins again in the same way: the text only ever goes forward.

    Args:
        loaders: one per phase, all of the same split and seed; a stream has a single phase.
        untils: the share of the budget done when each phase ends, ascending.
        start: the first step's position, with its phase.
        progress: returns the share of the budget done, from 0 to 1. It is called once for each step, when that step is
            requested and before it is made. A caller that requests steps before training the earlier ones must count
            those in it, so that phases change at the same steps as without prefetching.
        on_phase: called with the number of each phase that begins, from 0; not for the phase of `start`.
    """
    assert len(loaders) == len(untils) > start.phase, "each phase has a loader and an end"
    position = start
    steps = loaders[position.phase].steps(position)
    while True:
        due = min(bisect_right(untils, progress()), len(untils) - 1)
        if due != position.phase:
            loader = loaders[position.phase]
            assert isinstance(loader, SequenceLoader), "a stream has a single phase"
            position = replace(loader.after_block(position), phase=due)
            steps = loaders[due].steps(position)
            on_phase(due)
        step = next(steps)
        position = step.after
        yield step
