"""An optimizer step as every textbook has it: each batch forward and backward, gradients clipped, then the update.

Which process computes a micro-batch does not matter: dropout draws from (seed, step, its tokens), and on the CPU
gradients are summed by halves, as several processes would. (On a GPU one after another, which takes less memory.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from unmask.batch import Batch, LossTerm
from unmask.chance import key
from unmask.models.trained import TrainedModule
from unmask.training.device import Compute
from unmask.training.distributed import ALONE, Ranks
from unmask.training.optimizers.adamw import AdamW
from unmask.training.optimizers.optimizer import clip_gradients, clipping_divisor
from unmask.training.stepping.protocol import Accept, StepFigures, joined_figures


@dataclass
class EagerStepper:
    """Computes every batch as it comes; `read` applies the update.

    Args:
        module: takes a prepared batch, returns its `LossTerm`s.
        optimizer: its groups hold the learning rates of the step.
        max_grad_norm: gradients are scaled down to this norm; None: they are not.
        compute: the device, where the module is, and the precision.
        seed: of dropout; None: it draws on from where PyTorch's generators are.
        ranks: the processes that take the step together.
        is_divided: whether they divide the module among them (`train.shard`). It then averages gradients over the
            processes itself, so the loss is multiplied by their number.
    """

    module: TrainedModule
    optimizer: torch.optim.Optimizer
    max_grad_norm: float | None
    compute: Compute
    seed: int | None = None
    ranks: Ranks = ALONE
    is_divided: bool = False

    runs_ahead: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._launched: tuple[Tensor, list[str]] | None = None
        self._coefficients: dict[str, float] = {}
        self.prepares_ahead = self.compute.device.type == "cuda" and self.ranks.size == 1

    def launch(self, batches: Sequence[Batch], counts: Mapping[str, int], number: int = 0) -> None:
        """Forward and backward passes of a step; see `Stepper`."""
        assert self._launched is None, "read comes after every launch"
        self._coefficients = {}
        # A divided module communicates within the passes, which no process can leave alone: it ends the run.
        agreeing = nullcontext if self.is_divided else self.ranks.agreeing_on_memory
        try:
            with agreeing():
                totals = self._sum_gradients(batches, counts, number) if batches else {}
                joined = None if self.is_divided else self.ranks.join_gradients(self._trained())
            if joined is not None:
                self.ranks.sum_gradients(joined)
            with agreeing():
                figures = torch.stack([*totals.values(), self._clip().double()])
        except torch.OutOfMemoryError:
            self.optimizer.zero_grad(set_to_none=True)
            raise
        self._launched = figures, list(totals)

    def _sum_gradients(self, batches: Sequence[Batch], counts: Mapping[str, int], number: int) -> dict[str, Tensor]:
        """Adds the gradients of batches; returns their loss terms, () float64."""
        if len(batches) == 1:
            return self._forward_backward(batches[0], counts, number)
        half = len(batches) // 2
        totals = self._sum_gradients(batches[:half], counts, number)
        parameters = self._trained() if self.compute.device.type == "cpu" else []
        of_first_half = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        for name, total in self._sum_gradients(batches[half:], counts, number).items():
            totals[name] = totals[name] + total if name in totals else total
        for parameter, first in zip(parameters, of_first_half, strict=True):
            if first is not None:
                parameter.grad = first if parameter.grad is None else first.add_(parameter.grad)
        return totals

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def _forward_backward(self, batch: Batch, counts: Mapping[str, int], number: int) -> dict[str, Tensor]:
        """Forward and backward passes of a micro-batch."""
        if self.seed is not None:
            generator = torch.default_generator if self.compute.device.type == "cpu" else torch.cuda
            generator.manual_seed(key(self.seed, number, int(batch.input_ids.sum())))
        with self.compute.autocast():
            terms: list[LossTerm] = self.module(batch.to(self.compute.device))
        loss = weigh(terms, counts) * (self.ranks.size if self.is_divided else 1)
        loss.backward()  # type: ignore[no-untyped-call]
        self._coefficients |= {term.name: term.coefficient for term in terms}
        return {term.name: term.total.detach().double() for term in terms}

    def read(self, accept: Accept) -> list[StepFigures]:
        """The step's figures, and its update if it is accepted; see `Stepper`."""
        assert self._launched is not None, "launch comes first"
        figures, names = self._launched
        self._launched = None
        *sums, norm = figures.tolist()  # waits for the device
        step = joined_figures(dict(zip(names, sums, strict=True)), self._coefficients, norm, self.ranks)
        if accept(0, step):
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

    def restart(self, recent_losses: Mapping[str, Sequence[float]]) -> None:
        """See `Stepper`."""

    def release(self) -> None:
        """See `Stepper`; between steps it holds nothing."""


def weigh(terms: Sequence[LossTerm], counts: Mapping[str, int | Tensor]) -> Tensor:
    """A micro-batch's part of the step's loss: the sum over terms of coefficient x total / count.

    Args:
        counts: the targets of the whole step; one given as a tensor is at least 1.
    """
    divisors = {name: count if isinstance(count, Tensor) else max(1, count) for name, count in counts.items()}
    loss = sum(term.coefficient * term.total / divisors[term.name] for term in terms)
    assert isinstance(loss, Tensor)
    return loss
