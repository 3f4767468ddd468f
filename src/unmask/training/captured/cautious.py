"""Captured steps that may turn out not to be possible on a device."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch

from unmask.batch import Batch
from unmask.training.captured.capture import random_state, set_random_state, type_and_line
from unmask.training.captured.stepper import CapturedStepper
from unmask.training.stepping.eager import EagerStepper
from unmask.training.stepping.protocol import Accept, StepFigures, Stepper

logger = logging.getLogger("unmask")


class CautiousStepper:
    """Replays captured steps or, where the first one cannot be captured, computes all of them as they come."""

    def __init__(self, captured: CapturedStepper, eager: EagerStepper) -> None:
        self._captured, self._eager = captured, eager
        self._chosen: Stepper = captured
        self._has_begun = False

    @property
    def runs_ahead(self) -> bool:
        return self._chosen.runs_ahead

    @property
    def prepares_ahead(self) -> bool:
        return self._chosen.prepares_ahead

    @property
    def num_graphs(self) -> int:
        """How many shapes are captured."""
        return self._captured.num_graphs

    def launch(self, batches: Sequence[Batch], counts: Mapping[str, int], number: int = 0) -> None:
        if self._has_begun:
            self._chosen.launch(batches, counts, number)
            return
        random, device = random_state(self._eager.compute.device), self._eager.compute.device
        why_not = None  # what is wrong, in words: the error itself would keep memory
        try:
            self._captured.launch(batches, counts)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            why_not = type_and_line(error)
        if why_not is not None:
            how = "computed as they come, as with train.capture_steps=false"
            logger.warning("steps cannot be captured as CUDA graphs here, and are %s: %s", how, why_not)
            self._captured.leave()
            set_random_state(random, device)  # a replay may have drawn from the generator
            self._chosen = self._eager
            self._chosen.launch(batches, counts, number)
        self._has_begun = True

    def read(self, accept: Accept) -> list[StepFigures]:
        return self._chosen.read(accept)

    def restart(self, recent_losses: Mapping[str, Sequence[float]]) -> None:
        self._chosen.restart(recent_losses)

    def release(self) -> None:
        self._chosen.release()
