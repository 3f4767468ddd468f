"""One optimizer step of a module: forward and backward passes, the check of loss and gradient, the update.

`EagerStepper` computes every batch as it comes. `unmask.training.recorded.stepper` records a step once and replays it.
Both take a step only if nothing is wrong with it, and report the same figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from unmask.batch import Batch, LossTerm
from unmask.training.device import Compute
from unmask.training.optimizers.adamw import AdamW
from unmask.training.optimizers.optimizer import clip_gradients, clipping_divisor


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


Judge = Callable[[int, StepFigures], bool]
"""Decides whether a step may be taken, from its place among those launched and its figures."""


class Stepper(Protocol):
    """Takes the steps of one run, in order."""

    @property
    def runs_ahead(self) -> bool:
        """Whether another step may be launched before the figures of those launched are read."""

    @property
    def prepares_ahead(self) -> bool:
        """Whether the next step's batches are made before the figures are read, which keeps a GPU busy."""

    def launch(self, batches: Sequence[Batch], counts: Mapping[str, int]) -> None:
        """Begins a step, on a GPU without waiting for its end.

        Args:
            batches: prepared, on the CPU.
            counts: the targets of each loss term in the whole step; may include terms that the module does not return.

        Raises:
            torch.OutOfMemoryError: the step does not fit; nothing of it is left, and those launched before are
                unaffected.
        """

    def read(self, may_take: Judge) -> list[StepFigures]:
        """Waits for the steps launched since it was last called, and returns their figures.

        A step that `may_take` refuses is the last one returned: neither its update nor any after it is taken.
        """

    def restart(self, recent_losses: Sequence[float]) -> None:
        """To be called when module or optimizer have been given other weights, or a step has not been taken.

        Args:
            recent_losses: of the last steps taken, the newest last.
        """

    def release(self) -> None:
        """Frees memory that the next step can allocate again; to be called between steps."""


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
        """See `Stepper`."""
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
        """See `Stepper`."""
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
