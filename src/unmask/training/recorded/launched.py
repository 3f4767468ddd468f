"""Steps that have been launched, and whose figures are still to be read.

A GPU that replays captured steps runs ahead of the loop: several are launched, then read together. Any other stepper
has one at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from unmask.training.stepper import StepFigures, Stepper
from unmask.training.steps import NumberedStep


class LaunchedSteps:
    """Launches steps, and takes their updates up to the first fault.

    Args:
        judge: what is wrong with a step; None: nothing, and it is taken.
    """

    def __init__(self, stepper: Stepper, judge: Callable[[NumberedStep, StepFigures], str | None]) -> None:
        self._stepper = stepper
        self._judge = judge
        self._launched: list[NumberedStep] = []

    def launch(self, step: NumberedStep) -> str | None:
        """The forward and backward passes of a step.

        Returns:
            The error's message if it does not fit into the memory. (The error itself is dropped: its traceback keeps
            what the step has allocated.)
        """
        try:
            self._stepper.launch(step.prepared.batches, step.prepared.counts, step.number)
        except torch.OutOfMemoryError as error:
            return str(error)
        self._launched.append(step)
        return None

    def read(self) -> tuple[NumberedStep, StepFigures, str | None]:
        """Waits for what has been launched, see `Stepper.read`. Of several steps those after a fault have changed
        nothing, and are forgotten.

        Returns:
            The newest step that was read, its figures, and what is wrong with it, so that it has not been taken; None:
            it has.
        """
        faults: list[str] = []

        def may_take(place: int, figures: StepFigures) -> bool:
            fault = self._judge(self._launched[place], figures)
            faults.extend([] if fault is None else [fault])
            return fault is None

        read = self._stepper.read(may_take)
        newest, self._launched = self._launched[len(read) - 1], []
        return newest, read[-1], faults[0] if faults else None
