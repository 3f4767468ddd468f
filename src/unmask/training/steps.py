"""What is trained, and the steps of a run on their way to it: their batches get masks and labels, then a number and a
learning rate."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from unmask.batch import Batch


class StepBatches(Protocol):
    """What a loader yields for each optimizer step."""

    @property
    def batches(self) -> list[Batch]:
        """The micro-batches."""

    @property
    def after(self) -> Any:
        """The loader's position after the step."""

    @property
    def epochs(self) -> float:
        """Passes over the data when the step is done."""


@dataclass(frozen=True)
class Learner:
    """A module in training.

    Attributes:
        module: takes a prepared batch, returns its `LossTerm`s.
        counts: the number of targets in a prepared batch, for each loss term that the module may return.
        prepare: draws masks and labels, where the module needs any; called once for each batch.
    """

    module: nn.Module
    counts: Callable[[Batch], dict[str, int]]
    prepare: Callable[[Batch], Batch] = lambda batch: batch


def set_training_mode(module: nn.Module) -> None:
    """Sets training mode, except for frozen parts: they stay in eval mode, so each is a fixed function of its input.

    Their dropout is off (in `transformers`, frozen layers keep theirs), so a frozen encoder gives the same features in
    every epoch, those that `unmask features` writes.
    """
    module.train()
    for part in module.modules():
        parameters = list(part.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            part.eval()


@dataclass(frozen=True)
class PreparedStep:
    """A step's batches with masks and labels.

    Attributes:
        counts: the targets of each loss term in all of them.
        after, epochs: as in `StepBatches`.
    """

    batches: list[Batch]
    counts: dict[str, int]
    after: Any
    epochs: float

    @property
    def num_tokens(self) -> int:
        return sum(batch.num_tokens for batch in self.batches)


class PreparedSteps(Iterator[PreparedStep]):
    """Prepares steps one after another; some may be made ahead of time, or put back to be shown again."""

    def __init__(self, steps: Iterable[StepBatches], learner: Learner) -> None:
        self._steps = iter(steps)
        self._learner = learner
        self._waiting: deque[PreparedStep] = deque()

    def __next__(self) -> PreparedStep:
        return self._waiting.popleft() if self._waiting else self._make()

    def make_next(self) -> bool:
        """Makes the next step now, unless it is there already; returns whether there is one."""
        if not self._waiting and (step := next(self, None)) is not None:
            self._waiting.append(step)
        return bool(self._waiting)

    def put_back(self, steps: Iterable[PreparedStep]) -> None:
        """Makes these the next steps, in their order."""
        self._waiting.extendleft(reversed(list(steps)))

    def _make(self) -> PreparedStep:
        step = next(self._steps)
        batches = [self._learner.prepare(batch) for batch in step.batches]
        counts: dict[str, int] = {}
        for batch in batches:
            for name, count in self._learner.counts(batch).items():
                counts[name] = counts.get(name, 0) + count
        return PreparedStep(batches, counts, step.after, step.epochs)


@dataclass(frozen=True)
class NumberedStep:
    """A step that is being taken.

    Attributes:
        prepared: its batches.
        number: from 1.
        tokens: those shown in the run by its end.
        learning_rate: of its update.
    """

    prepared: PreparedStep
    number: int
    tokens: int
    learning_rate: float
