"""An optimizer step as every textbook has it: each batch forward and backward, gradients clipped, then the update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from unmask.batch import Batch, LossTerm
from unmask.training.device import Compute
from unmask.training.optimizers.adamw import AdamW
from unmask.training.optimizers.optimizer import clip_gradients, clipping_divisor
from unmask.training.stepper import Judge, StepFigures


@dataclass
class EagerStepper:
    """Computes every batch as it comes; `read` applies the update.

    Args:
        module: takes a prepared batch, returns its `LossTerm`s.
        optimizer: its groups hold the learning rates of the step.
        max_grad_norm: gradients are scaled down to this norm; None: they are not.
        compute: the device, where the module is, and the precision.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    max_grad_norm: float | None
    compute: Compute
    runs_ahead: bool = False
    prepares_ahead: bool = field(init=False)
    _launched: tuple[Tensor, dict[str, float]] | None = None

    def __post_init__(self) -> None:
        self.prepares_ahead = self.compute.device.type == "cuda"

    def launch(self, batches: Sequence[Batch], counts: Mapping[str, int]) -> None:
        assert self._launched is None, "read comes after every launch"
        totals: dict[str, Tensor] = {}
        coefficients: dict[str, float] = {}
        try:
            for batch in batches:
                with self.compute.autocast():
                    terms: list[LossTerm] = self.module(batch.to(self.compute.device))
                weigh(terms, counts).backward()  # type: ignore[no-untyped-call]
                for term in terms:
                    total = term.total.detach().double()
                    totals[term.name] = totals[term.name] + total if term.name in totals else total
                    coefficients[term.name] = term.coefficient
            figures = torch.stack([*totals.values(), self._clip().double()])
        except torch.OutOfMemoryError:
            self.optimizer.zero_grad(set_to_none=True)
            raise
        self._launched = figures, coefficients

    def read(self, may_take: Judge) -> list[StepFigures]:
        assert self._launched is not None, "launch comes first"
        figures, coefficients = self._launched
        self._launched = None
        *sums, norm = figures.tolist()  # waits for the device
        step = StepFigures(dict(zip(coefficients, sums, strict=True)), norm, coefficients)
        if may_take(0, step):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return [step]

    def _clip(self) -> Tensor:
        """Clips the gradients, or has AdamW clip them in its update; returns their norm before clipping."""
        if not isinstance(self.optimizer, AdamW):
            return clip_gradients(self.module, self.max_grad_norm)
        norm = clip_gradients(self.module, None)
        self.optimizer.grad_scale = clipping_divisor(norm, self.max_grad_norm)
        return norm

    def restart(self, recent_losses: Sequence[float]) -> None:
        """See `Stepper`."""

    def release(self) -> None:
        """See `Stepper`; between steps it holds nothing."""


def weigh(terms: Sequence[LossTerm], counts: Mapping[str, int | Tensor]) -> Tensor:
    """A micro-batch's part of the step's loss: the sum over terms of coefficient x total / count.

    Args:
        counts: the targets of the whole step; one given as a tensor is at least 1.
    """
    loss = sum(term.coefficient * term.total / _at_least_one(counts[term.name]) for term in terms)
    assert isinstance(loss, Tensor)
    return loss


def _at_least_one(count: int | Tensor) -> int | Tensor:
    return count if isinstance(count, Tensor) else max(1, count)
