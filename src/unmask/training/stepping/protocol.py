"""What takes an optimizer step of a module: forward and backward passes, the check of loss and gradient, the update.

`EagerStepper` (`eager.py`) computes every batch as it comes, `CapturedStepper` (`training/captured`) captures a step
once and replays it. Both take a step only if nothing is wrong with it, and report the same figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from unmask.batch import Batch
from unmask.training.distributed import Ranks, in_halves


@dataclass(frozen=True)
class StepFigures:
    """The figures of a step.

    Attributes:
        sums: of each loss term, its total over the step.
        gradient_norm: before clipping.
        coefficients: of each loss term.
    """

    sums: dict[str, float]
    gradient_norm: float
    coefficients: dict[str, float]

    def means(self, counts: Mapping[str, int]) -> dict[str, float]:
        """The mean of each loss term that has targets."""
        return {name: total / counts[name] for name, total in self.sums.items() if counts[name]}

    def loss(self, counts: Mapping[str, int]) -> float:
        """The sum over terms of coefficient x mean; a term without targets adds nothing."""
        return sum(self.coefficients[name] * (total / max(1, counts[name])) for name, total in self.sums.items())


def joined_figures(
    sums: dict[str, float], coefficients: dict[str, float], gradient_norm: float, ranks: Ranks
) -> StepFigures:
    """The figures of a step from those of each process's part; the norm is of the whole."""
    gathered = ranks.gather([sums, coefficients])
    coefficients = {name: value for _, of_part in gathered for name, value in of_part.items()}
    parts = {name: [of_part[name] for of_part, _ in gathered if name in of_part] for name in coefficients}
    totals = {name: in_halves(each, float.__add__) for name, each in parts.items()}
    return StepFigures(totals, gradient_norm, coefficients)


Accept = Callable[[int, StepFigures], bool]
"""Whether a step is taken, by its place among those launched and its figures. Called once for each step, in order: what
is taken counts when later ones are looked at."""


class Stepper(Protocol):
    """Takes the steps of one run, in order."""

    @property
    def runs_ahead(self) -> bool:
        """Whether another step may be launched before the figures of those launched are read."""

    @property
    def prepares_ahead(self) -> bool:
        """Whether the next step's batches are made before the figures are read, which keeps a GPU busy."""

    def launch(self, batches: Sequence[Batch], counts: Mapping[str, int], number: int = 0) -> None:
        """Begins a step, on a GPU without waiting for its end.

        Args:
            batches: prepared, on the CPU; this process's part of the step.
            counts: the targets of each loss term in the whole step; may include terms that the module does not return.
            number: of the step, which dropout may draw from.

        Raises:
            torch.OutOfMemoryError: the step does not fit; nothing of it is left, and those launched before are
                unaffected.
        """

    def read(self, accept: Accept) -> list[StepFigures]:
        """Waits for the steps launched since it was last called, and returns their figures.

        A step that `accept` refuses is the last one returned: neither its update nor any after it is taken.
        """

    def restart(self, recent_losses: Mapping[str, Sequence[float]]) -> None:
        """To be called when module or optimizer have been given other weights, or a step has not been taken.

        Args:
            recent_losses: of the last steps taken, by `terms_with_targets`, the newest last.
        """

    def release(self) -> None:
        """Frees memory that the next step can allocate again; to be called between steps."""
