"""Filled batches: the shapes of one are those of many others, so that a step over it can be recorded once and replayed.

A packed batch has another number of tokens, sequences and targets every time. Here it gets some more of each, up to
rounded sizes: tokens of padding, cut into sequences of their own, that no target stands on. They cost their share of
the step (a few in a hundred tokens, see `rounded_up`) and change no loss and no gradient.
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
"""As a value: the place of the last token, which is one of padding in every filled batch."""
NO_LABEL: Final = "no label"
"""As a value: what says that there is no label, `IGNORE_INDEX`, or NaN in a column of floats."""
IS_FILLER: Final = "is_filler"
"""The column (tokens,) bool that is True for what no text has; a module that asks for it finds it in filled batches."""
TOKENS: Final = "tokens"
SEQUENCES: Final = "sequences"

_FINEST, _COARSEST = 32, 512


@dataclass(frozen=True)
class Filling:
    """How a column of a batch grows.

    Attributes:
        axis: what the column has an entry for each of: `tokens`, `sequences`, or another name, which all columns share
            that grow together.
        value: of the entries that are added.
    """

    axis: str
    value: float | bool | str


Fillings = Mapping[str, Filling]
"""Of every column that a module reads, by its name."""


def rounded_up(size: int) -> int:
    """The next multiple, over `size`, of about a sixteenth of it: at least of 32 and at most of 512."""
    granule = min(_COARSEST, max(_FINEST, 1 << max(0, size.bit_length() - 5)))
    return (size // granule + 1) * granule


@dataclass(frozen=True)
class Shape:
    """The sizes of filled batches.

    Attributes:
        sizes: of each axis.
        longest: tokens that no sequence has more of.
    """

    sizes: tuple[tuple[str, int], ...]
    longest: int

    def __getitem__(self, axis: str) -> int:
        return dict(self.sizes)[axis]


@dataclass(frozen=True)
class Shapes:
    """Chooses the shapes of a run's batches: few, and none much larger than its batches.

    A batch has the same shape whatever came before it. Dropout draws as many numbers as there are tokens, targets and
    sequences, so a run that goes on from a checkpoint would draw others if its shapes had to be learnt anew.

    Attributes:
        fillings: of the module's columns.
        longest: tokens that no sequence of the run has more of.
    """

    fillings: Fillings
    longest: int

    def choose(self, batch: Batch) -> Shape:
        """The shape for a batch, each size over its own."""
        assert batch.max_length <= self.longest, f"a sequence of {batch.max_length} tokens, told {self.longest}"
        num_tokens = rounded_up(batch.num_tokens)
        # The tokens that are added take at most one sequence more than whole ones of them would.
        filled_sequences = -(-_most_added(num_tokens) // self.longest)
        sizes = {TOKENS: num_tokens, SEQUENCES: rounded_up(batch.num_sequences + filled_sequences - 1)}
        for name, filling in self.fillings.items():
            if filling.axis not in sizes:
                sizes[filling.axis] = rounded_up(len(batch.columns[name]))
        return Shape(tuple(sorted(sizes.items())), self.longest)


def _most_added(num_tokens: int) -> int:
    """Tokens that are added to a batch at most, to have this rounded number of them."""
    return min(_COARSEST, max(_FINEST, 1 << max(0, (num_tokens - 1).bit_length() - 5)))


def fill(batch: Batch, shape: Shape, fillings: Fillings) -> Batch:
    """A batch with the sizes of a shape, and of its columns those that are named.

    Sequences without a token stand between those of the batch and those of padding. Padding is entry 0 of the
    vocabulary, whatever that is: nothing reads what becomes of it.

    Args:
        batch: smaller than the shape; on the CPU.
        fillings: of its columns. One for `IS_FILLER` makes that column.
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
    """A small filled batch of the same columns, with nothing of the batch in it: a pass over it costs next to nothing,
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
