"""Encoded examples as flat arrays, and the batches of a fine-tuning run made from them.

What comes when depends on the seed and the position alone: example `i` of epoch `e` is that of a keyed permutation.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.batch import Batch
from unmask.chance import Permutation


@dataclass(frozen=True)
class EncodedExamples:
    """Examples as token ids, 4 bytes a token.

    Attributes:
        input_ids: (tokens,) int32, all examples one after another.
        bounds: (examples + 1,) int64, where each begins, then the number of tokens.
        second_starts: (examples,) int64, where segment B begins in each example; its length where there is none.
        labels: (examples,) int64, -100 where there is none.
    """

    input_ids: NDArray[np.int32]
    bounds: NDArray[np.int64]
    second_starts: NDArray[np.int64]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(examples,) int64, in tokens."""
        return np.diff(self.bounds)

    def batch(self, indices: Sequence[int]) -> Batch:
        """The examples at some indices, packed, with the column `labels` (sequences,) int64."""
        chosen = np.asarray(indices)
        lengths = self.lengths[chosen]
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)  # of each token in its example
        tokens = self.input_ids[np.repeat(self.bounds[chosen], lengths) + places]
        segments = places >= np.repeat(self.second_starts[chosen], lengths)
        return Batch(
            input_ids=torch.from_numpy(tokens.astype(np.int64)),
            token_type_ids=torch.from_numpy(segments.astype(np.int64)),
            position_ids=torch.from_numpy(places),
            bounds=torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
            lengths=tuple(lengths.tolist()),
            columns={"labels": torch.from_numpy(self.labels[chosen])},
        )

    def batches_by_length(self, max_tokens: int) -> Iterator[tuple[NDArray[np.int64], Batch]]:
        """Every example once, the longest first, in batches of at most `max_tokens` tokens (or one example).

        Yields:
            (sequences,) int64, the examples' indices, and their batch.
        """
        order = np.argsort(-self.lengths, kind="stable")
        start = 0
        while start < len(order):
            most = max(1, max_tokens // int(self.lengths[order[start]]))
            indices = order[start : start + most]
            yield indices, self.batch(indices.tolist())
            start += most

    def checksum(self) -> int:
        """32 bits by which other examples are told apart from these."""
        sums = 0
        for array in (self.input_ids, self.bounds, self.second_starts, self.labels):
            sums = zlib.crc32(np.ascontiguousarray(array).data, sums)
        return sums


def concatenate(parts: Sequence[EncodedExamples]) -> EncodedExamples:
    """All examples of some parts, in order; there is at least one part."""
    starts = np.cumsum([0, *(len(part.input_ids) for part in parts)])
    bounds = [part.bounds[:-1] + start for part, start in zip(parts, starts, strict=False)]
    return EncodedExamples(
        np.concatenate([part.input_ids for part in parts]),
        np.concatenate([*bounds, starts[-1:]]),
        np.concatenate([part.second_starts for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )


@dataclass(frozen=True)
class Position:
    """A place in the order of all examples: the next one to be shown.

    Attributes:
        epoch: which pass over the examples.
        index: how many of the pass have been shown.
        data: the checksum of the examples; a resumed run must find the same ones.
    """

    epoch: int = 0
    index: int = 0
    data: int = 0


@dataclass(frozen=True)
class LoadedStep:
    """The batches of one optimizer step; see `unmask.training.loop.StepBatches`."""

    batches: list[Batch]
    after: Position
    epochs: float


@dataclass(frozen=True)
class ExampleLoader:
    """Makes the batches of a fine-tuning run.

    Args:
        examples: encoded.
        seed: of the order.
        batch_size: examples in a step; the last step of an epoch takes what is left.
        micro_batch_size: examples in a batch.
    """

    examples: EncodedExamples
    seed: int
    batch_size: int
    micro_batch_size: int

    def start(self) -> Position:
        """Where a new run begins."""
        return Position(data=self.examples.checksum())

    def steps(self, start: Position) -> Iterator[LoadedStep]:
        """Steps without end, from `start` on."""
        count, epoch, index = len(self.examples), start.epoch, start.index
        while True:
            order = Permutation(count, self.seed, epoch)
            while index < count:
                step = [order[place] for place in range(index, min(count, index + self.batch_size))]
                cuts = range(0, len(step), self.micro_batch_size)
                batches = [self.examples.batch(step[cut : cut + self.micro_batch_size]) for cut in cuts]
                index += len(step)
                yield LoadedStep(batches, Position(epoch, index, start.data), epoch + index / count)
            epoch, index = epoch + 1, 0


def encoded(ids: Sequence[Sequence[int]], second_starts: Sequence[int], labels: Sequence[int]) -> EncodedExamples:
    """Flat arrays from lists, one entry an example."""
    bounds = np.cumsum([0, *(len(sequence) for sequence in ids)], dtype=np.int64)
    flat: Any = (token for sequence in ids for token in sequence)
    return EncodedExamples(
        np.fromiter(flat, dtype=np.int32, count=int(bounds[-1])),
        bounds,
        np.array(second_starts, dtype=np.int64),
        np.array(labels, dtype=np.int64),
    )
