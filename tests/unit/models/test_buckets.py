"""Filled batches: nothing of a batch is lost, what is added is padding, and few shapes hold all."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unmask.batch import IGNORE_INDEX, Batch, pack
from unmask.models.buckets import (
    IS_FILLER,
    LAST_TOKEN,
    NO_LABEL,
    SEQUENCES,
    TOKENS,
    Filling,
    Fillings,
    Shapes,
    fill,
    only_padding,
    rounded_up,
)

FILLINGS: Fillings = {
    "labels": Filling(TOKENS, NO_LABEL),
    "target_positions": Filling("targets", LAST_TOKEN),
    "fractions": Filling("targets", 0.5),
    "scores": Filling(SEQUENCES, NO_LABEL),
    "many": Filling(SEQUENCES, NO_LABEL),
    IS_FILLER: Filling(TOKENS, True),
}


def make(lengths: list[int], num_targets: int, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    rows = [torch.randint(1, 99, (length,), generator=draw).tolist() for length in lengths]
    batch = pack(rows, [[1] * length for length in lengths], keys=list(range(len(lengths))))
    places = torch.randperm(batch.num_tokens, generator=draw)[:num_targets].sort().values
    labels = torch.full((batch.num_tokens,), IGNORE_INDEX)
    labels[places] = 7
    return batch.with_columns(
        labels=labels,
        target_positions=places,
        fractions=torch.rand(len(places), generator=draw),
        scores=torch.rand(len(lengths), generator=draw),
        many=torch.ones(len(lengths), 3),
        not_asked_for=torch.zeros(4),
    )


@st.composite
def batches(draw: st.DrawFn) -> tuple[Batch, int]:
    """A batch, and the longest sequence of its run."""
    longest = draw(st.integers(1, 80))
    lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=60))
    return make(lengths, draw(st.integers(0, sum(lengths)))), longest


@given(batches())
def test_every_sequence_is_kept_and_what_is_added_is_padding(drawn: tuple[Batch, int]) -> None:
    batch, longest = drawn
    shape = Shapes(FILLINGS, longest).choose(batch)
    filled = fill(batch, shape, FILLINGS)
    size, sequences = batch.num_tokens, batch.num_sequences
    # what was there is there
    for name in ("input_ids", "token_type_ids", "position_ids"):
        assert torch.equal(getattr(filled, name)[:size], getattr(batch, name))
    assert torch.equal(filled.bounds[: sequences + 1], batch.bounds)
    for name, filling in FILLINGS.items():
        if name != IS_FILLER:
            column = batch.columns[name]
            assert torch.equal(filled.columns[name][: len(column)], column)
            assert filled.columns[name].dtype == column.dtype
        assert len(filled.columns[name]) == shape[filling.axis]
    assert filled.columns.keys() == FILLINGS.keys()
    # sizes are those of the shape, and over the batch's
    assert (filled.num_tokens, filled.num_sequences) == (shape[TOKENS], shape[SEQUENCES])
    assert filled.num_tokens > size
    assert filled.num_sequences > sequences
    assert (filled.is_filled, filled.max_length, filled.lengths) == (True, longest, ())
    # padding: whole sequences of it, none too long, some empty
    lengths = (filled.bounds[1:] - filled.bounds[:-1]).tolist()
    assert sum(lengths) == filled.num_tokens
    assert min(lengths) >= 0
    assert max(lengths) <= longest
    assert filled.bounds.dtype == torch.int32
    assert int(filled.bounds[-1]) == filled.num_tokens
    starts = torch.repeat_interleave(filled.bounds[:-1], filled.bounds[1:] - filled.bounds[:-1])
    assert torch.equal(filled.position_ids, torch.arange(filled.num_tokens) - starts)
    assert filled.sequence_of_token().tolist() == [
        number for number, length in enumerate(lengths) for _ in range(length)
    ]
    assert int(filled.first_tokens.max()) < filled.num_tokens
    # which no target stands on
    added = {name: column[len(batch.columns.get(name, ())) :] for name, column in filled.columns.items()}
    assert (filled.columns["labels"][size:] == IGNORE_INDEX).all()
    assert (added["target_positions"] == filled.num_tokens - 1).all()
    assert (added["fractions"] == 0.5).all()
    assert added["scores"].isnan().all()
    assert added["many"].isnan().all()
    assert filled.columns[IS_FILLER].tolist() == [False] * size + [True] * (filled.num_tokens - size)


@given(batches())
def test_a_shape_follows_from_the_batch_alone(drawn: tuple[Batch, int]) -> None:
    """A run that goes on from a checkpoint has the shapes, and with them the dropout, of one that never stopped."""
    batch, longest = drawn
    shapes = Shapes(FILLINGS, longest)
    alone = shapes.choose(batch)
    shapes.choose(make([longest] * 99, 50))
    assert shapes.choose(batch) == alone == Shapes(FILLINGS, longest).choose(batch)
    assert hash(alone) == hash(Shapes(FILLINGS, longest).choose(batch))


@given(batches())
def test_a_batch_of_padding_alone_is_small_and_has_no_target(drawn: tuple[Batch, int]) -> None:
    batch, longest = drawn
    padding = only_padding(batch, Shapes(FILLINGS, longest))
    assert padding.num_tokens == 32
    assert padding.max_length == longest
    assert padding.columns.keys() == FILLINGS.keys()
    assert {name: column.dtype for name, column in padding.columns.items()} == {
        name: batch.columns[name].dtype if name != IS_FILLER else torch.bool for name in FILLINGS
    }
    lengths = padding.bounds.diff()
    assert int(lengths.sum()) == 32
    assert int(lengths.max()) <= longest
    assert (padding.columns["labels"] == IGNORE_INDEX).all()
    assert padding.columns["scores"].isnan().all()
    assert padding.columns[IS_FILLER].all()
    assert (padding.columns["target_positions"] == 31).all()


@given(st.integers(0, 2**20))
def test_a_rounded_size_is_over_the_size_by_little(size: int) -> None:
    rounded = rounded_up(size)
    assert size < rounded <= size + max(32, min(512, size // 8))
    assert rounded % 32 == 0
    assert rounded_up(rounded - 1) == rounded


@pytest.mark.parametrize("size", [31, 32, 511, 512, 1023, 1024, 4095, 4096, 65535, 65536])
def test_no_filled_batch_has_more_padding_than_its_sequences_hold(size: int) -> None:
    """At the edges of the rounding, where a size gets the most; sequences of one token take the most of them, and there
    is room for one beside 31 sequences."""
    for longest in (1, 2, 31, 512, -(-size // 31)):
        lengths = [longest] * (size // longest) + [size % longest] * bool(size % longest)
        batch = make(lengths, 3)
        filled = fill(batch, Shapes(FILLINGS, longest).choose(batch), FILLINGS)
        padding = filled.bounds[batch.num_sequences :].diff()
        assert int(padding.sum()) == filled.num_tokens - size > 0
        assert int(padding.min()) >= 0
        assert int(padding.max()) <= longest


def test_batches_of_a_run_have_few_shapes() -> None:
    """Thirty-two sequences of 10 to 100 tokens, 15 % of them targets: 400 batches in some dozen shapes."""
    draw = random.Random(0)
    shapes = Shapes(FILLINGS, 100)
    seen, sizes, filled_sizes = set(), 0, 0
    for number in range(400):
        lengths = [draw.randint(10, 100) for _ in range(32)]
        batch = make(lengths, sum(draw.random() < 0.15 for _ in range(sum(lengths))), number)
        shape = shapes.choose(batch)
        seen.add(shape)
        sizes, filled_sizes = sizes + batch.num_tokens, filled_sizes + shape[TOKENS]
    assert len(seen) < 60
    assert filled_sizes < 1.06 * sizes


def test_a_sequence_longer_than_was_told_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="a sequence of 9 tokens, told 8"):
        Shapes(FILLINGS, 8).choose(make([9], 1))


def test_a_batch_that_is_not_smaller_than_its_shape_is_our_mistake() -> None:
    batch = make([8] * 8, 1)
    shape = Shapes(FILLINGS, 8).choose(batch)
    with pytest.raises(AssertionError, match="at least one token of padding"):
        fill(make([8] * 12, 1), shape, FILLINGS)
    with pytest.raises(AssertionError, match="too few sequences"):
        fill(make([1] * 63, 1), replace(shape, sizes=tuple({**dict(shape.sizes), SEQUENCES: 63}.items())), FILLINGS)


def test_labels_that_are_floats_are_missing_as_nan() -> None:
    batch = make([3], 1)
    filled = fill(batch, Shapes(FILLINGS, 3).choose(batch), FILLINGS)
    assert math.isnan(filled.columns["scores"][-1])
    integers: Tensor = filled.columns["labels"]
    assert int(integers[-1]) == IGNORE_INDEX
