"""Filled batches: padded so that many have the same shapes, and a step over one can be recorded once and replayed.

Packed batches differ in their numbers of tokens, sequences and targets. Here each number is filled up to a rounded
size: with padding tokens, cut into sequences of their own, none of which is a target. They cost their share of the
step (a few in a hundred tokens, see `rounded_up`) and change no loss and no gradient.
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
"""As a `Filling.value`: the place of the last token, which is padding in every filled batch."""
NO_LABEL: Final = "no label"
"""As a `Filling.value`: no label, which is `IGNORE_INDEX`, or NaN in a column of floats."""
IS_FILLER: Final = "is_filler"
"""The column (tokens,) bool that is True for padding; a module that asks for it finds it in filled batches."""
TOKENS: Final = "tokens"
SEQUENCES: Final = "sequences"

_FINEST, _COARSEST = 32, 512


@dataclass(frozen=True)
class Filling:
    """How a column of a batch grows.

    Attributes:
        axis: what the column has one entry for: each of the `tokens`, of the `sequences`, or of another name that
            columns which grow together share.
        value: what the added entries hold.
    """

    axis: str
    value: float | bool | str


Fillings = Mapping[str, Filling]
"""The filling of every column that a module reads, by the column's name."""


def rounded_up(size: int) -> int:
    """The next multiple above `size` of about a sixteenth of it: of 32 at least and of 512 at most."""
    granule = min(_COARSEST, max(_FINEST, 1 << max(0, size.bit_length() - 5)))
    return (size // granule + 1) * granule


@dataclass(frozen=True)
class Shape:
    """The sizes of filled batches.

    Attributes:
        sizes: the size of each axis.
        longest: the most tokens that any sequence may have.
    """

    sizes: tuple[tuple[str, int], ...]
    longest: int

    def __getitem__(self, axis: str) -> int:
        return dict(self.sizes)[axis]


@dataclass(frozen=True)
class Shapes:
    """Chooses the shapes of a run's batches: few shapes, none much larger than the batch that it is for.

    A batch's shape does not depend on the batches before it. Dropout draws as many numbers as there are tokens, targets
    and sequences, so a resumed run would draw others if it had to learn its shapes anew.

    Attributes:
        fillings: of the module's columns.
        longest: the most tokens that any sequence of the run may have.
    """

    fillings: Fillings
    longest: int

    def choose(self, batch: Batch) -> Shape:
        """The shape for a batch: every size is larger than the batch's own."""
        assert batch.max_length <= self.longest, f"a sequence of {batch.max_length} tokens, told {self.longest}"
        num_tokens = rounded_up(batch.num_tokens)
        # The most sequences that the padding is cut into. One of them is in any case added by rounding up.
        filled_sequences = -(-_most_added(num_tokens) // self.longest)
        sizes = {TOKENS: num_tokens, SEQUENCES: rounded_up(batch.num_sequences + filled_sequences - 1)}
        for name, filling in self.fillings.items():
            if filling.axis not in sizes:
                sizes[filling.axis] = rounded_up(len(batch.columns[name]))
        return Shape(tuple(sorted(sizes.items())), self.longest)


def _most_added(num_tokens: int) -> int:
    """The most padding tokens that a batch filled up to `num_tokens` tokens can have."""
    return min(_COARSEST, max(_FINEST, 1 << max(0, (num_tokens - 1).bit_length() - 5)))


def fill(batch: Batch, shape: Shape, fillings: Fillings) -> Batch:
    """The batch filled up to the sizes of a shape, with only those of its columns that `fillings` names.

    Empty sequences stand between those of the batch and those of padding. Padding is entry 0 of the vocabulary,
    whatever that is: nothing reads its outputs.

    Args:
        batch: smaller than the shape; on the CPU.
        fillings: of its columns. One for `IS_FILLER` creates that column.
    """
    num_tokens, num_real = shape[TOKENS], batch.num_tokens
    num_added = num_tokens - num_real
    assert num_added > 0, "a filled batch has at least one token of padding"
    whole, rest = divmod(num_added, shape.longest)
    added = torch.tensor([shape.longest] * whole + [rest] * bool(rest))
    num_empty = shape[SEQUENCES] - batch.num_sequences - len(added)
    assert num_empty >= 0, "too few sequences"
    empty = batch.bounds.new_full((num_empty,), num_real)
    bounds = torch.cat([batch.bounds, empty, (num_real + torch.cumsum(added, 0)).int()])
    columns = {
        name: _grown(column, shape[fillings[name].axis], _value(fillings[name].value, column, num_tokens))
        for name, column in ((name, _column(batch, name)) for name in fillings)
    }
    return replace(
        batch,
        input_ids=_grown(batch.input_ids, num_tokens, 0),
        token_type_ids=_grown(batch.token_type_ids, num_tokens, 0),
        position_ids=torch.cat([batch.position_ids, torch.arange(num_added) % shape.longest]),
        bounds=bounds,
        lengths=(),
        keys=None,
        columns=columns,
        longest=shape.longest,
    )


def only_padding(batch: Batch, shapes: Shapes) -> Batch:
    """A small filled batch with the columns of `batch` and none of its content: a pass over it costs next to nothing,
    and shows which terms a loss has and which parameters get a gradient."""
    nothing = replace(
        batch,
        input_ids=batch.input_ids[:0],
        token_type_ids=batch.token_type_ids[:0],
        position_ids=batch.position_ids[:0],
        bounds=batch.bounds[:1],
        lengths=(),
        columns={name: column[:0] for name, column in batch.columns.items()},
        longest=shapes.longest,
    )
    return fill(nothing, shapes.choose(nothing), shapes.fillings)


def _column(batch: Batch, name: str) -> Tensor:
    return torch.zeros(batch.num_tokens, dtype=torch.bool) if name == IS_FILLER else batch.columns[name]


def _value(value: float | bool | str, column: Tensor, num_tokens: int) -> float | bool:
    if value == NO_LABEL:
        return math.nan if column.is_floating_point() else IGNORE_INDEX
    if value == LAST_TOKEN:
        return num_tokens - 1
    assert not isinstance(value, str), value
    return value


def _grown(column: Tensor, size: int, value: float | bool) -> Tensor:
    return torch.cat([column, column.new_full((size - len(column), *column.shape[1:]), value)])
