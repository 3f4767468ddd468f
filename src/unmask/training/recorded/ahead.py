"""Reading the results of steps that a device was given ahead of time.

A device that takes captured steps decides by itself whether a step is taken, so the loop may launch many of them before
it reads their figures. A step that is not taken is then noticed late: those launched after it have changed nothing, and
are shown again. Steps that are computed as they come are read one by one, in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unmask.training.divergence import BadStep
from unmask.training.stepper import StepFigures, Stepper
from unmask.training.steps import NumberedStep, PreparedStep

Check = Callable[[NumberedStep, StepFigures], str | None]
"""Says what is wrong with a step; None where it may be taken."""


@dataclass(frozen=True)
class Outcome:
    """The result of the steps that were launched.

    Attributes:
        step: the last one that was taken or, where `fault` says why not, the first that was not.
        fault: what is wrong with it, in words; None where nothing is.
        not_begun: those launched after it, none of which has been taken.
    """

    step: NumberedStep
    figures: StepFigures
    fault: str | None
    not_begun: list[PreparedStep]

    def bad_step(self, recent_losses: list[float]) -> BadStep:
        """The step that was not taken."""
        assert self.fault is not None
        return BadStep(self.step, self.figures, self.fault, tuple(recent_losses))


def read_launched(stepper: Stepper, launched: list[NumberedStep], check: Check) -> Outcome:
    """Waits for all steps launched, checks them one after another, and takes those before the first fault."""
    faults: list[str | None] = []

    def may_take(place: int, figures: StepFigures) -> bool:
        faults.append(check(launched[place], figures))
        return faults[-1] is None

    figures = stepper.read(may_take)
    newest, *after = launched[len(figures) - 1 :]
    return Outcome(newest, figures[-1], faults[-1], [step.prepared for step in after])
