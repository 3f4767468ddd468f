"""Random sequences, and a small module for which a batch of them may be too much."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from unmask.batch import IGNORE_INDEX, Batch, LossTerm, StepBatches, pack
from unmask.models.buckets import NO_LABEL, TOKENS, Padding
from unmask.models.trained import TrainedModule
from unmask.packing.loader import Position
from unmask.training.settings import Cut

LONGEST = 32


@dataclass
class Sequences:
    """Steps of random sequences of 20 to 32 tokens, and of 32 the first."""

    batch_size: int = 8
    micro_batch_size: int = 8
    opened: list[tuple[int, int | None]] = field(default_factory=list)
    longest: None = None

    def cut(self, position: Any, most_tokens: int | None) -> Cut:
        return Cut(self.batch_size, self.micro_batch_size, LONGEST).at_most(most_tokens)

    def steps(
        self, progress: Callable[[], float], position: Any, most_tokens: int | None
    ) -> Iterator[StepBatches[Position]]:
        start = position if isinstance(position, Position) else Position(**(position or {}))
        self.opened.append((start.sequence, most_tokens))
        size, first = self.cut(position, most_tokens).micro_batch_size, start.sequence
        while True:
            rows = [self.sequence(number) for number in range(first, first + self.batch_size)]
            batches = [_labelled(rows[place : place + size]) for place in range(0, len(rows), size)]
            first += self.batch_size
            yield StepBatches(batches, Position(sequence=first), first / 100)

    def sequence(self, number: int) -> list[int]:
        generator = torch.Generator().manual_seed(number)
        length = LONGEST - int(torch.randint(13, (), generator=generator)) * (number % self.batch_size > 0)
        return torch.randint(1, 50, (length,), generator=generator).tolist()


def _labelled(rows: list[list[int]]) -> Batch:
    batch = pack(rows)
    return batch.with_columns(labels=batch.input_ids % 7)


class Tagger(TrainedModule):
    """Raises what a GPU would where a batch has more tokens than fit: before, or amid, its backward pass."""

    paddings: ClassVar = {"labels": Padding(TOKENS, NO_LABEL)}
    error = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB. Of the memory ..."

    def __init__(self, most_tokens: int = 10**9, raises_in_backward: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Parameter(torch.randn(50, 4, generator=generator))
        self.weight = nn.Parameter(torch.randn(7, 4, generator=generator))
        self.most_tokens, self.raises_in_backward = most_tokens, raises_in_backward
        self.num_failures = 0
        self.seen: list[int] = []

    def forward(self, batch: Batch) -> list[LossTerm]:
        self.seen.append(batch.num_tokens)
        hidden = torch.tanh(self.embedding[batch.input_ids])
        if batch.num_tokens > self.most_tokens:
            if not self.raises_in_backward:
                self._fail()
            hidden.register_hook(self._fail)  # type: ignore[no-untyped-call]
        losses = nn.functional.cross_entropy(
            hidden @ self.weight.T, batch.columns["labels"], ignore_index=IGNORE_INDEX, reduction="sum"
        )
        return [LossTerm("task", losses)]

    def _fail(self, _: Tensor | None = None) -> None:
        self.num_failures += 1
        raise torch.OutOfMemoryError(self.error)
