"""What is trained, and the steps of a run on their way to it: their batches get masks and labels, then a number and a
learning rate.

Where several processes take a step together, each has batches of its own, and the counts of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import torch
from torch import nn

from unmask.batch import IGNORE_INDEX, Batch, StepBatches
from unmask.chance import uniform
from unmask.models.trained import TrainedModule
from unmask.training.distributed import Ranks
from unmask.training.settings import Cut


@dataclass(frozen=True)
class Learner:
    """A module in training.

    Attributes:
        module: takes a prepared batch, returns its `LossTerm`s.
        counts: the number of targets in a prepared batch, for each loss term that the module may return.
        prepare: draws masks and labels, where the module needs any; called once for each batch.
    """

    module: TrainedModule
    counts: Callable[[Batch], dict[str, int]]
    prepare: Callable[[Batch], Batch] = lambda batch: batch


class StepSource(Protocol):
    """The batches of a run's steps, from any position on and in micro-batches of any size, which changes neither the
    sequences nor the masks of a step."""

    @property
    def longest(self) -> int | None:
        """Upper bound on the tokens of a sequence anywhere in the run; None: some batches have sequences of both
        directions, so that no step is captured."""

    def cut(self, position: Any, most_tokens: int | None) -> Cut:
        """How steps are cut; arguments as in `steps`."""

    def steps(
        self, progress: Callable[[], float], position: Any, most_tokens: int | None
    ) -> Iterable[StepBatches[Any]]:
        """The steps from a position on.

        Args:
            progress: returns the share of the budget that is done.
            position: of the next step, or the JSON of one; None: the beginning.
            most_tokens: of a micro-batch, every sequence counted as long as the longest; None: as the recipe says.
        """


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
        batches: those of this process.
        counts: the targets of each loss term in the whole step.
        num_tokens: of the whole step.
        fingerprint: of its examples with their masks, whatever the order and the process of each; see `fingerprint`.
        after, epochs: as in `StepBatches`.
    """

    batches: list[Batch]
    counts: dict[str, int]
    num_tokens: int
    fingerprint: int
    after: Any
    epochs: float


class PreparedSteps(Iterator[PreparedStep]):
    """Prepares steps one after another; the next may be made ahead of time."""

    def __init__(self, steps: Iterable[StepBatches[Any]], learner: Learner, ranks: Ranks) -> None:
        self._steps = iter(steps)
        self._learner = learner
        self._ranks = ranks
        self._ahead: PreparedStep | None = None

    def __next__(self) -> PreparedStep:
        step, self._ahead = self._ahead or self._make(), None
        return step

    def make_next(self) -> bool:
        """Makes the next step now, unless it is there already; returns whether there is one."""
        self._ahead = next(self, None)
        return self._ahead is not None

    def _make(self) -> PreparedStep:
        step = next(self._steps)
        batches = [self._learner.prepare(batch) for batch in step.batches]
        own = [(self._learner.counts(batch), batch.num_tokens, fingerprint(batch)) for batch in batches]
        counts: dict[str, int] = {}
        num_tokens = examples_hash = 0
        for of_batch, tokens, hashed in chain.from_iterable(self._ranks.gather(own)):
            for name, count in of_batch.items():
                counts[name] = counts.get(name, 0) + count
            num_tokens += tokens
            examples_hash += hashed
        return PreparedStep(batches, counts, num_tokens, examples_hash % 2**48, step.after, step.epochs)


def fingerprint(batch: Batch) -> int:
    """A hash of a prepared batch's tokens and labels in their sequences, the sum of its sequences' hashes.

    Returns:
        48 bits, which any program reads from JSON.
    """
    ids, labels = batch.input_ids, batch.columns.get("labels", batch.input_ids)
    if labels.shape != ids.shape or labels.dtype != ids.dtype:  # one of a sequence
        labels = ids
    keys = torch.zeros(batch.num_sequences, dtype=torch.int64) if batch.keys is None else batch.keys
    places = batch.position_ids << 32 | (labels - IGNORE_INDEX)
    draws = uniform(keys[batch.sequence_of_token()] ^ ids, places, stream=0)
    return int((draws * 2.0**48).long().sum()) % 2**48


@dataclass(frozen=True)
class NumberedStep:
    """A step that is being taken.

    Attributes:
        prepared: its batches.
        number: from 1.
        tokens: those shown in the run by its end.
        examples_hash: of all examples shown by its end, in the order of the steps.
        examples_hash_before: that of those shown before it.
        learning_rate: of its update.
    """

    prepared: PreparedStep
    number: int
    tokens: int
    examples_hash: int
    examples_hash_before: int
    learning_rate: float
