"""Cutting a step into micro-batches, and dealing these out to the processes that take the step together.

The micro-batches follow from the step alone, and each process takes a run of neighbours. So as long as their number is
the same, one process computes what two or four do, and gradients can be summed in the same order.

An example: steps of five sequences in micro-batches of at most two, for one process and for the second of two.

>>> step, lengths = ["a", "b", "c", "d", "e"], [9, 3, 5, 8, 4]
>>> WHOLE.deal(step, lengths, batch_size=5, most=2)
[['a'], ['b', 'd'], ['c', 'e']]
>>> Share(rank=1, size=2).deal(step, lengths, batch_size=5, most=2)
[['c'], ['b', 'e']]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Share:
    """The part of every step that one process computes.

    Attributes:
        rank: of the process, from 0.
        size: how many processes there are.
    """

    rank: int = 0
    size: int = 1

    def deal(self, step: Sequence[Item], lengths: Sequence[int], batch_size: int, most: int) -> list[list[Item]]:
        """The micro-batches of this process; fewer, down to none, where the step has fewer sequences than there are
        micro-batches.

        All micro-batches of the step have about as many tokens: the longest sequence goes to the first one, the next to
        the second, and back again from the last one. Within one the order of the step stays.

        Args:
            step: its sequences.
            lengths: the tokens of each.
            batch_size: of the run's steps; the last one of an epoch may have fewer, and has as many micro-batches.
            most: sequences of a micro-batch.
        """
        number = self.size * -(-batch_size // (most * self.size))
        bins: list[list[int]] = [[] for _ in range(number)]
        for turn, place in enumerate(sorted(range(len(step)), key=lambda place: -lengths[place])):
            there, offset = divmod(turn, number)
            bins[number - 1 - offset if there % 2 else offset].append(place)
        own = bins[self.rank * number // self.size : (self.rank + 1) * number // self.size]
        return [[step[place] for place in sorted(places)] for places in own if places]

    def lanes(self, num_lanes: int, most: int) -> list[range]:
        """The same for lanes, which stay with their process from step to step: neighbours, of equal length.

        Of n lanes, process r has those from r n / size on, whatever `most` is (`Ranks.join_slices` relies on it).
        """
        number = self.size * -(-num_lanes // (most * self.size))
        bounds = [num_lanes * place // number for place in range(number + 1)]
        own = range(self.rank * number // self.size, (self.rank + 1) * number // self.size)
        return [range(bounds[place], bounds[place + 1]) for place in own if bounds[place] < bounds[place + 1]]


WHOLE = Share()
