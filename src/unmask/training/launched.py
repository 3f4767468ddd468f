"""Steps that have been launched, and whose figures are still to be read.

A GPU that replays captured steps runs ahead of the loop: several are launched, then read together. Any other stepper
has one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from unmask.training.divergence import BadStep, divergence_fault
from unmask.training.settings import TrainSettings
from unmask.training.state import StepResult, TrainState
from unmask.training.stepper import StepFigures, Stepper
from unmask.training.steps import NumberedStep, PreparedSteps


@dataclass(frozen=True)
class OutOfMemory:
    """A step did not fit into the device's memory. (The error's traceback would keep what the step has allocated.)"""

    message: str


@dataclass
class StepsUnderWay:
    """Launches steps, and takes their updates up to the first fault.

    Args:
        state: of the run; moved to the end of each step that is launched, and back to that of a bad one. The losses of
            steps that are taken are added to it.
        is_due: whether the steps are read although the stepper could run ahead.
        looks_for_faults: whether a step in which `divergence_fault` finds one is left out; else all are taken.
    """

    stepper: Stepper
    state: TrainState
    settings: TrainSettings
    is_due: Callable[[TrainState], bool]
    looks_for_faults: bool
    _launched: list[NumberedStep] = field(default_factory=list)

    def take(self, step: NumberedStep, following: PreparedSteps) -> StepResult | BadStep | OutOfMemory | None:
        """Forward and backward passes of a step, then its figures, and its update if nothing is wrong with them.

        Args:
            following: the steps after it, of which the next is prepared while the device computes.

        Returns:
            What came of the step; of several that were read together, of the first bad one, or the newest. Those after
            a bad one have changed nothing. None: it is under way, to be read with later ones.
        """
        stepper, state, settings = self.stepper, self.state, self.settings
        try:
            stepper.launch(step.prepared.batches, step.prepared.counts, step.number)
        except torch.OutOfMemoryError as error:
            return OutOfMemory(str(error))
        self._launched.append(step)
        state.move_to_end_of(step)
        is_last = state.is_over(settings) or (stepper.prepares_ahead and not following.make_next())
        if stepper.runs_ahead and not is_last and not self.is_due(state):
            return None
        return self._read()

    def _read(self) -> StepResult | BadStep:
        """Waits for what has been launched, see `Stepper.read`."""
        faults: list[str] = []

        def accept(place: int, figures: StepFigures) -> bool:
            step = self._launched[place]
            counts, recent = step.prepared.counts, self.state.recent_losses
            loss, norm, factor = figures.loss(counts), figures.gradient_norm, self.settings.spike_factor
            if self.looks_for_faults and (fault := divergence_fault(step.number, loss, norm, recent, factor)):
                faults.append(fault)
                return False
            self.state.add_losses(figures.sums, counts, loss)
            return True

        read = self.stepper.read(accept)
        step, figures = self._launched[len(read) - 1], read[-1]
        self._launched.clear()
        if faults:
            self.state.move_to_end_of(step)
            return BadStep(step, figures, faults[0], tuple(self.state.recent_losses))
        return StepResult(step.learning_rate, figures.gradient_norm, step.prepared.num_tokens, figures.coefficients)
