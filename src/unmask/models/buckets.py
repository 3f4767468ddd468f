"""Batches padded to buckets: many have the same shape, so that a step over one can be captured once and replayed.

Packed batches differ in their numbers of tokens, sequences and targets. Here each number is padded to a rounded
size: with padding tokens, cut into sequences of their own, none of which is a target. They cost their share of the
step (a few in a hundred tokens, see `bucket_size`) and change no loss and no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from unmask.batch import IGNORE_INDEX, Batch

LAST_TOKEN: Final = "last token"
"""As a `Padding.value`: the place of the last token, which is padding in every padded batch."""
NO_LABEL: Final = "no label"
"""As a `Padding.value`: no label, which is `IGNORE_INDEX`, or NaN in a column of floats."""
IS_PADDING: Final = "is_padding"
"""The column (tokens,) bool that is True for padding; a module that names it finds it in padded batches."""
TOKENS: Final = "tokens"
SEQUENCES: Final = "sequences"

_FINEST, _COARSEST = 32, 512


@dataclass(frozen=True)
class Padding:
    """How a column of a batch is padded.

    Attributes:
        axis: what the column has one entry for: each of the `tokens`, of the `sequences`, or of another name that
            columns which grow together share.
        value: what the added entries hold.
    """

    axis: str
    value: float | bool | str


Paddings = Mapping[str, Padding]
"""The padding of every column that a module reads, by the column's name."""


def bucket_size(size: int) -> int:
    """`size` rounded up, always to more than `size`. The step is 1/32 to 1/16 of `size`, at least 32, at most 512."""
    granule = _granule(size)
    return (size // granule + 1) * granule


def _granule(size: int) -> int:
    return min(_COARSEST, max(_FINEST, 1 << max(0, size.bit_length() - 5)))


@dataclass(frozen=True)
class Shape:
    """The sizes of padded batches.

    Attributes:
        longest: the most tokens that any sequence may have.
        left_to_right: whether all sequences are read from left to right, whatever the encoder.
    """

    sizes: tuple[tuple[str, int], ...]
    longest: int
    left_to_right: bool = False

    def __getitem__(self, axis: str) -> int:
        return dict(self.sizes)[axis]


@dataclass(frozen=True)
class Shapes:
    """Chooses the shapes of a run's batches: few shapes, none much larger than the batch that it is for.

    A batch's shape does not depend on the batches before it. Dropout draws as many numbers as there are tokens, targets
    and sequences, so a resumed run would draw others if it had to learn its shapes anew.

    Attributes:
        paddings: of the module's columns.
        longest: the most tokens that any sequence of the run may have.
    """

    paddings: Paddings
    longest: int

    def choose(self, batch: Batch) -> Shape:
        """The shape for a batch, all of one direction: every size is larger than the batch's own."""
        assert batch.max_length <= self.longest, f"a sequence of {batch.max_length} tokens, over {self.longest}"
        assert len(set(batch.left_to_right)) < 2, "sequences of both directions"
        num_tokens = bucket_size(batch.num_tokens)
        # The most sequences that the padding is cut into. One of them is in any case added by rounding up.
        padding_sequences = -(-_granule(num_tokens - 1) // self.longest)
        sizes = {TOKENS: num_tokens, SEQUENCES: bucket_size(batch.num_sequences + padding_sequences - 1)}
        for name, padding in self.paddings.items():
            if padding.axis not in sizes:
                sizes[padding.axis] = bucket_size(len(batch.columns[name]))
        return Shape(tuple(sorted(sizes.items())), self.longest, any(batch.left_to_right))


def pad_batch(batch: Batch, shape: Shape, paddings: Paddings) -> Batch:
    """The batch padded to the sizes of a shape, with only those of its columns that `paddings` names.

    Empty sequences come between those of the batch and those of padding. Padding is entry 0 of the vocabulary,
    whatever that is: nothing reads its outputs.

    Args:
        batch: smaller than the shape; on the CPU.
        paddings: of its columns. One for `IS_PADDING` creates that column.
    """
    num_tokens, num_real = shape[TOKENS], batch.num_tokens
    num_added = num_tokens - num_real
    assert num_added > 0, "a padded batch has at least one token of padding"
    whole, rest = divmod(num_added, shape.longest)
    added = torch.tensor([shape.longest] * whole + [rest] * bool(rest))
    num_empty = shape[SEQUENCES] - batch.num_sequences - len(added)
    assert num_empty >= 0, "too few sequences"
    empty = batch.bounds.new_full((num_empty,), num_real)
    bounds = torch.cat([batch.bounds, empty, (num_real + torch.cumsum(added, 0)).int()])
    columns = {
        name: _pad(column, shape[paddings[name].axis], _value(paddings[name].value, column, num_tokens))
        for name, column in ((name, _column(batch, name)) for name in paddings)
    }
    return replace(
        batch,
        input_ids=_pad(batch.input_ids, num_tokens, 0),
        token_type_ids=_pad(batch.token_type_ids, num_tokens, 0),
        position_ids=torch.cat([batch.position_ids, torch.arange(num_added) % shape.longest]),
        bounds=bounds,
        lengths=(),
        keys=None,
        columns=columns,
        left_to_right=(True,) if shape.left_to_right else (),
        longest=shape.longest,
    )


def only_padding(batch: Batch, shapes: Shapes) -> Batch:
    """A small padded batch with the columns of `batch` and none of its content: a pass over it costs next to nothing,
    and shows which terms a loss has and which parameters get a gradient."""
    read = {name: column for name, column in batch.columns.items() if name in shapes.paddings}
    empty = replace(batch, columns=read).map(lambda tensor: tensor[:0])
    nothing = replace(empty, bounds=batch.bounds[:1], lengths=(), longest=shapes.longest)
    return pad_batch(nothing, shapes.choose(nothing), shapes.paddings)


def _column(batch: Batch, name: str) -> Tensor:
    return torch.zeros(batch.num_tokens, dtype=torch.bool) if name == IS_PADDING else batch.columns[name]


def _value(value: float | bool | str, column: Tensor, num_tokens: int) -> float | bool:
    if value == NO_LABEL:
        return math.nan if column.is_floating_point() else IGNORE_INDEX
    if value == LAST_TOKEN:
        return num_tokens - 1
    assert not isinstance(value, str), value
    return value


def _pad(column: Tensor, size: int, value: float | bool) -> Tensor:
    return torch.cat([column, column.new_full((size - len(column), *column.shape[1:]), value)])
