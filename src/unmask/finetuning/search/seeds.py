"""Whether two recipes, or two configurations of a search, differ by more than their seeds do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t that 2.5 % exceed, of 1 to 30 degrees of freedom; of more it is nearer to 1.96, so this is safe."""


@dataclass(frozen=True)
class Difference:
    """Of a figure between the runs of one recipe and those of a first one, over the seeds that both have.

    Attributes:
        mean: this one's less the first one's.
        low, high: the ends of its interval of 95 %, by Student's t of the paired differences; None of a single pair.
        pairs: how many seeds both have; without any there is no difference.
    """

    mean: float
    low: float | None
    high: float | None
    pairs: int


def difference_over_seeds(first: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """The difference of a figure, given by seed for each of two recipes; None where they have no seed in common."""
    differences = [other[seed] - first[seed] for seed in first if seed in other]
    number = len(differences)
    if not number:
        return None
    mean = fmean(differences)
    if number == 1:
        return Difference(mean, None, None, 1)
    within = T_975[min(number - 1, len(T_975)) - 1] * stdev(differences) / number**0.5
    return Difference(mean, mean - within, mean + within, number)
