"""Steps that have been launched, and whose figures are still to be read.

A GPU that replays captured steps runs ahead of the loop: several are launched, then read together. Any other stepper
has one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from unmask.training.stepper import StepFigures, Stepper
from unmask.training.steps import NumberedStep, PreparedStep


@dataclass(frozen=True)
class ReadStep:
    """The newest step that was read.

    Attributes:
        fault: what is wrong with it, so that it has not been taken; None: it has.
        not_begun: those launched after one that was not taken: they have changed nothing.
    """

    step: NumberedStep
    figures: StepFigures
    fault: str | None
    not_begun: list[PreparedStep]


class LaunchedSteps:
    """Launches steps, and takes their updates up to the first fault.

    Args:
        judge: what is wrong with a step; None: nothing, and it is taken.
    """

    def __init__(self, stepper: Stepper, judge: Callable[[NumberedStep, StepFigures], str | None]) -> None:
        self._stepper = stepper
        self._judge = judge
        self._launched: list[NumberedStep] = []

    def launch(self, step: NumberedStep, *, raises: bool) -> str | None:
        """The forward and backward passes of a step.

        Args:
            raises: an error is raised if it does not fit into the memory.

        Returns:
            The error's message if it does not fit. (The error itself is dropped: its traceback keeps what the step has
            allocated.)
        """
        try:
            self._stepper.launch(step.prepared.batches, step.prepared.counts, step.number)
        except torch.OutOfMemoryError as error:
            if raises:
                raise
            return str(error)
        self._launched.append(step)
        return None

    def read(self) -> ReadStep:
        """Waits for what has been launched; see `Stepper.read`."""
        faults: list[str] = []

        def may_take(place: int, figures: StepFigures) -> bool:
            fault = self._judge(self._launched[place], figures)
            faults.extend([] if fault is None else [fault])
            return fault is None

        read = self._stepper.read(may_take)
        newest, *not_begun = self._launched[len(read) - 1 :]
        self._launched = []
        return ReadStep(newest, read[-1], faults[0] if faults else None, [step.prepared for step in not_begun])
