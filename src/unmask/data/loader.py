"""Planned sequences to packed batches, from any position on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from unmask.batch import Batch
from unmask.chance import key
from unmask.data.packing import PairPlanner, SegmentPair
from unmask.data.store import TokenStore

_MASKS = 4
"""The last part of a sequence's key; the planner's keys end in 1 to 3."""


@dataclass(frozen=True)
class Position:
    """A place in the order of all sequences: the next one to be shown."""

    epoch: int = 0
    block: int = 0
    sequence: int = 0


@dataclass(frozen=True)
class LoadedStep:
    """The batches of one optimizer step.

    Attributes:
        batches: its micro-batches.
        after: the position of the next step, for a checkpoint.
        epochs: passes over the documents when this step is done.
    """

    batches: list[Batch]
    after: Position
    epochs: float


@dataclass(frozen=True)
class PairLoader:
    """Makes the batches of segment pairs.

    Args:
        planner: what plans the blocks.
        cls_id: id of `[CLS]`.
        sep_id: id of `[SEP]`.
        batch_size: sequences in a step.
        micro_batch_size: sequences in a batch.
        plan_copies: epoch e has the sequences of epoch e modulo this number; None draws new ones in every epoch.
        mask_copies: the same for the keys that masks are drawn from.
    """

    planner: PairPlanner
    cls_id: int
    sep_id: int
    batch_size: int
    micro_batch_size: int
    plan_copies: int | None = None
    mask_copies: int | None = None

    def steps(self, start: Position = Position()) -> Iterator[LoadedStep]:
        """Steps without end, from `start` on; a step may hold the end of one epoch and the beginning of the next."""
        sequences = self._sequences(start)
        while True:
            step = list(islice(sequences, self.batch_size))
            micro_batches = [step[i : i + self.micro_batch_size] for i in range(0, len(step), self.micro_batch_size)]
            batches = [self._pack([item[:2] for item in micro_batch]) for micro_batch in micro_batches]
            _, _, after, epochs = step[-1]
            yield LoadedStep(batches, after, epochs)

    def epoch(self, most: int) -> Iterator[Batch]:
        """The first `most` sequences of the first copy, in batches of `micro_batch_size`: what an evaluation reads."""
        planned = (
            (pair, key(self.planner.seed, 0, block, place, _MASKS))
            for block in range(self.planner.num_blocks)
            for place, pair in enumerate(self.planner.plan_block(0, block))
        )
        sequences = islice(planned, most)
        while micro_batch := list(islice(sequences, self.micro_batch_size)):
            yield self._pack(micro_batch)

    def _sequences(self, start: Position) -> Iterator[tuple[SegmentPair, int, Position, float]]:
        """Each sequence with its key, the position after it, and the epochs done with it."""
        planner, epoch, block, sequence = self.planner, start.epoch, start.block, start.sequence
        num_documents = planner.split.store.num_documents
        while True:
            pairs = planner.plan_block(_copy(epoch, self.plan_copies), block)
            copy = _copy(epoch, self.mask_copies)
            documents = planner.places(block)
            for place in range(sequence, len(pairs)):
                done = epoch + (documents.start + len(documents) * (place + 1) / len(pairs)) / num_documents
                after = Position(epoch, block, place + 1)
                yield pairs[place], key(planner.seed, copy, block, place, _MASKS), after, done
            sequence, block = 0, block + 1
            if block == planner.num_blocks:
                epoch, block = epoch + 1, 0

    def _pack(self, planned: Sequence[tuple[SegmentPair, int]]) -> Batch:
        return pack_pairs(planned, self.planner.split.store, self.cls_id, self.sep_id)


def pack_pairs(planned: Sequence[tuple[SegmentPair, int]], store: TokenStore, cls_id: int, sep_id: int) -> Batch:
    """Packs `[CLS] A [SEP] B [SEP]` sequences.

    Args:
        planned: sequences, each with its key.
        store: where their tokens are.
        cls_id: id of `[CLS]`.
        sep_id: id of `[SEP]`.

    Returns:
        A batch with the columns `special_tokens_mask` (tokens,) bool and `next_sentence_label` (sequences,) int64.
    """
    lengths = np.array([(len(pair.a), len(pair.b)) for pair, _ in planned])
    ends = np.cumsum(lengths.sum(1) + 3)
    starts = ends - lengths.sum(1) - 3
    middles = starts + lengths[:, 0] + 2  # the first token of B
    total = int(ends[-1])
    input_ids = np.empty(total, dtype=np.int64)
    for (pair, _), start, middle, end in zip(planned, starts.tolist(), middles.tolist(), ends.tolist(), strict=True):
        input_ids[start + 1 : middle - 1] = store.tokens(pair.a.document, pair.a.start, pair.a.end)
        input_ids[middle : end - 1] = store.tokens(pair.b.document, pair.b.start, pair.b.end)
    special = np.zeros(total, dtype=bool)
    for places, token in ((starts, cls_id), (middles - 1, sep_id), (ends - 1, sep_id)):
        input_ids[places] = token
        special[places] = True
    segments = np.zeros(total + 1, dtype=np.int64)
    segments[middles] = 1
    segments[ends] -= 1
    sizes = ends - starts
    return Batch(
        input_ids=torch.from_numpy(input_ids),
        token_type_ids=torch.from_numpy(np.cumsum(segments[:-1])),
        position_ids=torch.from_numpy(np.arange(total) - np.repeat(starts, sizes)),
        bounds=torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
        lengths=tuple(sizes.tolist()),
        keys=torch.tensor([chance_key for _, chance_key in planned], dtype=torch.int64),
        columns={
            "special_tokens_mask": torch.from_numpy(special),
            "next_sentence_label": torch.tensor([pair.next_sentence_label for pair, _ in planned]),
        },
    )


def _copy(epoch: int, copies: int | None) -> int:
    return epoch if copies is None else epoch % copies
