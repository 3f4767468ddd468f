"""What passes between data, objectives, models and the loop: a packed `Batch`, a step's `StepBatches`, a `LossTerm`.

A batch holds no padding: the tokens of all its sequences are stored one after another, and `bounds` says where each
sequence begins and ends. A loss is a sum, divided by a count that is known before the forward pass, so that the
loss of an optimizer step does not depend on how the step was cut into micro-batches, or dealt out to processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

IGNORE_INDEX = -100
"""The label of a position that is not a target, as everywhere in PyTorch."""

Place = TypeVar("Place", covariant=True)
"""A place in the order of what a loader reads."""


@dataclass(frozen=True)
class Batch:
    """Sequences packed end to end.

    Attributes:
        input_ids: (tokens,) int64.
        token_type_ids: (tokens,) int64, the segment of each token: 0 for A, 1 for B.
        position_ids: (tokens,) int64, from 0 in every sequence.
        bounds: (sequences + 1,) int32, the first token of each sequence, then the number of tokens.
        lengths: the sequences' lengths as Python integers, known without asking the device; all at least 1. Empty in
            a batch padded to a bucket (`unmask.models.buckets`), whose lengths only the device knows.
        keys: (sequences,) int64, the key from which all randomness of a sequence is drawn (see `unmask.chance`);
            None where nothing is drawn.
        columns: whatever else an objective or a task needs, by name: `special_tokens_mask` (tokens,) bool, `labels`
            (tokens,) int64, `target_positions` (targets,) int64, `next_sentence_label` (sequences,) int64; or one
            number for the whole batch, such as a share of targets that changes over the run ...
        left_to_right: for each sequence, whether its tokens see only those before them, whatever the encoder; empty:
            all are read as the encoder reads. In a padded batch one entry stands for all.
        longest: of a padded batch, the most tokens that any sequence may have; None in any other batch.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    bounds: Tensor
    lengths: tuple[int, ...]
    keys: Tensor | None = None
    columns: dict[str, Tensor] = field(default_factory=dict)
    left_to_right: tuple[bool, ...] = ()
    longest: int | None = None

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def num_sequences(self) -> int:
        return self.bounds.shape[0] - 1

    @property
    def is_padded(self) -> bool:
        """Whether it is padded to a shape that other batches share (`unmask.models.buckets`)."""
        return self.longest is not None

    @property
    def max_length(self) -> int:
        """The length of the longest sequence; in a padded batch, an upper bound on it."""
        return max(self.lengths) if self.longest is None else self.longest

    @property
    def first_tokens(self) -> Tensor:
        """(sequences,) int64: the place of each sequence's first token, `[CLS]` for BERT."""
        return self.bounds[:-1].long()

    @property
    def last_tokens(self) -> Tensor:
        """(sequences,) int64: the place of each sequence's last token, the only one that sees all of it under a causal
        mask."""
        return self.bounds[1:].long() - 1

    def sequence_of_token(self) -> Tensor:
        """(tokens,) int64: which sequence each token belongs to."""
        lengths = (self.bounds[1:] - self.bounds[:-1]).long()
        sequences = torch.arange(self.num_sequences, device=lengths.device)
        return torch.repeat_interleave(sequences, lengths, output_size=self.num_tokens)

    def with_columns(self, **columns: Tensor) -> Batch:
        """The same batch with more columns, or with some replaced."""
        return replace(self, columns={**self.columns, **columns})

    def with_input_ids(self, input_ids: Tensor) -> Batch:
        """The same batch with other token ids in the same places."""
        return replace(self, input_ids=input_ids)

    def to(self, device: torch.device) -> Batch:
        """The same batch on `device`; copies from pinned memory are asynchronous."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch with each of its tensors changed."""
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self.tensors().items()}
        columns = {name: changed.pop(f"columns.{name}") for name in self.columns}
        return replace(self, **changed, columns=columns)

    def tensors(self) -> dict[str, Tensor]:
        """All of its tensors by name, a column's as `columns.NAME`."""
        keys = {} if self.keys is None else {"keys": self.keys}
        return {
            "input_ids": self.input_ids,
            "token_type_ids": self.token_type_ids,
            "position_ids": self.position_ids,
            "bounds": self.bounds,
            **keys,
            **{f"columns.{name}": column for name, column in self.columns.items()},
        }


def pack(sequences: list[list[int]], segments: list[list[int]] | None = None, keys: list[int] | None = None) -> Batch:
    """Packs lists of token ids into a batch.

    Args:
        sequences: token ids, one list per sequence, none of them empty.
        segments: the segment of each token, in the same shape; all 0 where left out.
        keys: one key per sequence, in the range of int64.
    """
    lengths = tuple(len(sequence) for sequence in sequences)
    assert all(length > 0 for length in lengths), "an empty sequence"
    sizes = torch.tensor(lengths)
    bounds = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    bounds[1:] = torch.cumsum(sizes, 0)
    total = int(bounds[-1])
    starts = torch.repeat_interleave(bounds[:-1].long(), sizes, output_size=total)
    return Batch(
        input_ids=torch.tensor([token for sequence in sequences for token in sequence]),
        token_type_ids=(
            torch.zeros(total, dtype=torch.int64)
            if segments is None
            else torch.tensor([segment for sequence in segments for segment in sequence])
        ),
        position_ids=torch.arange(total) - starts,
        bounds=bounds,
        lengths=lengths,
        keys=None if keys is None else torch.tensor(keys, dtype=torch.int64),
    )


@dataclass(frozen=True)
class StepBatches(Generic[Place]):
    """The batches of one optimizer step.

    Attributes:
        batches: this process's part of the step, see `unmask.packing.sharing`; all of it in a run of one process.
        after: the loader's position after the step, for a checkpoint.
        epochs: passes over the data when the step is done.
    """

    batches: list[Batch]
    after: Place
    epochs: float


_PART_TOKENS = 8192
"""Where memory must not grow with a unit, such as a long text in windows, so many tokens are computed at a time."""


def in_parts(batch: Batch) -> Iterator[Batch]:
    """A batch's sequences in order, in batches without columns: each holds one sequence, or as many as have at most
    `_PART_TOKENS` tokens when padded to the longest."""
    bounds, first = [*accumulate(batch.lengths, initial=0)], 0
    for end in range(1, batch.num_sequences + 1):
        with_next = batch.lengths[first : end + 1]
        if end < batch.num_sequences and len(with_next) * max(with_next) <= _PART_TOKENS:
            continue
        tokens = slice(bounds[first], bounds[end])
        yield Batch(
            batch.input_ids[tokens],
            batch.token_type_ids[tokens],
            batch.position_ids[tokens],
            batch.bounds[first : end + 1] - bounds[first],
            batch.lengths[first:end],
        )
        first = end


@dataclass(frozen=True)
class LossTerm:
    """One term of a loss, as a sum. What it is divided by, the number of targets, is counted before the forward pass.

    The loss of an optimizer step is the sum over terms of coefficient x (sum of totals / sum of counts), the sums taken
    over all micro-batches of the step.

    Attributes:
        name: as in `metrics.jsonl` after `loss/`: `mlm`, `nsp`, `task` ...
        total: () float32, the summed loss over the targets of this micro-batch, with its gradient.
        coefficient: the weight of the term.
    """

    name: str
    total: Tensor
    coefficient: float = 1.0
