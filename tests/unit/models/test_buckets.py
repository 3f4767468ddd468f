"""Padded batches: nothing of a batch is lost, what is added is padding, and few shapes hold all."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unmask.batch import IGNORE_INDEX, Batch, pack
from unmask.models.buckets import (
    IS_PADDING,
    LAST_TOKEN,
    NO_LABEL,
    SEQUENCES,
    TOKENS,
    Padding,
    Paddings,
    Shapes,
    bucket_size,
    only_padding,
    pad_batch,
)

PADDINGS: Paddings = {
    "labels": Padding(TOKENS, NO_LABEL),
    "target_positions": Padding("targets", LAST_TOKEN),
    "fractions": Padding("targets", 0.5),
    "scores": Padding(SEQUENCES, NO_LABEL),
    "many": Padding(SEQUENCES, NO_LABEL),
    IS_PADDING: Padding(TOKENS, True),
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
    shape = Shapes(PADDINGS, longest).choose(batch)
    padded = pad_batch(batch, shape, PADDINGS)
    size, sequences = batch.num_tokens, batch.num_sequences
    # what was there is there
    for name in ("input_ids", "token_type_ids", "position_ids"):
        assert torch.equal(getattr(padded, name)[:size], getattr(batch, name))
    assert torch.equal(padded.bounds[: sequences + 1], batch.bounds)
    for name, padding in PADDINGS.items():
        if name != IS_PADDING:
            column = batch.columns[name]
            assert torch.equal(padded.columns[name][: len(column)], column)
            assert padded.columns[name].dtype == column.dtype
        assert len(padded.columns[name]) == shape[padding.axis]
    assert padded.columns.keys() == PADDINGS.keys()
    # sizes are those of the shape, and over the batch's
    assert (padded.num_tokens, padded.num_sequences) == (shape[TOKENS], shape[SEQUENCES])
    assert padded.num_tokens > size
    assert padded.num_sequences > sequences
    assert (padded.is_padded, padded.max_length, padded.lengths) == (True, longest, ())
    # padding: whole sequences of it, none too long, some empty
    lengths = (padded.bounds[1:] - padded.bounds[:-1]).tolist()
    assert sum(lengths) == padded.num_tokens
    assert min(lengths) >= 0
    assert max(lengths) <= longest
    assert padded.bounds.dtype == torch.int32
    assert int(padded.bounds[-1]) == padded.num_tokens
    starts = torch.repeat_interleave(padded.bounds[:-1], padded.bounds[1:] - padded.bounds[:-1])
    assert torch.equal(padded.position_ids, torch.arange(padded.num_tokens) - starts)
    assert padded.sequence_of_token().tolist() == np.repeat(np.arange(len(lengths)), lengths).tolist()
    assert int(padded.first_tokens.max()) < padded.num_tokens
    # which no target stands on
    added = {name: column[len(batch.columns.get(name, ())) :] for name, column in padded.columns.items()}
    assert (padded.columns["labels"][size:] == IGNORE_INDEX).all()
    assert (added["target_positions"] == padded.num_tokens - 1).all()
    assert (added["fractions"] == 0.5).all()
    assert added["scores"].isnan().all()
    assert added["many"].isnan().all()
    assert padded.columns[IS_PADDING].tolist() == [False] * size + [True] * (padded.num_tokens - size)


@given(batches())
def test_a_shape_follows_from_the_batch_alone(drawn: tuple[Batch, int]) -> None:
    """A run that continues from a checkpoint has the shapes, and with them the dropout, of one that never stopped."""
    batch, longest = drawn
    shapes = Shapes(PADDINGS, longest)
    alone = shapes.choose(batch)
    shapes.choose(make([longest] * 99, 50))
    assert shapes.choose(batch) == alone == Shapes(PADDINGS, longest).choose(batch)
    assert hash(alone) == hash(Shapes(PADDINGS, longest).choose(batch))


@given(batches())
def test_a_batch_of_padding_alone_is_small_and_has_no_target(drawn: tuple[Batch, int]) -> None:
    batch, longest = drawn
    batch = batch.with_columns(rate=torch.tensor(0.5))  # of the whole batch, and read before it is padded
    padding = only_padding(batch, Shapes(PADDINGS, longest))
    assert padding.num_tokens == 32
    assert padding.max_length == longest
    assert padding.columns.keys() == PADDINGS.keys()
    dtypes = {name: batch.columns[name].dtype for name in PADDINGS if name != IS_PADDING} | {IS_PADDING: torch.bool}
    assert {name: column.dtype for name, column in padding.columns.items()} == dtypes
    lengths = padding.bounds.diff()
    assert int(lengths.sum()) == 32
    assert int(lengths.max()) <= longest
    assert (padding.columns["labels"] == IGNORE_INDEX).all()
    assert padding.columns["scores"].isnan().all()
    assert padding.columns[IS_PADDING].all()
    assert (padding.columns["target_positions"] == 31).all()


@given(st.integers(0, 2**20))
def test_a_rounded_size_is_over_the_size_by_little(size: int) -> None:
    rounded = bucket_size(size)
    assert size < rounded <= size + max(32, min(512, size // 8))
    assert rounded % 32 == 0
    assert bucket_size(rounded - 1) == rounded


@pytest.mark.parametrize("size", [31, 32, 511, 512, 1023, 1024, 4095, 4096, 65535, 65536])
def test_no_padded_batch_has_more_padding_than_its_sequences_hold(size: int) -> None:
    """At the edges of the rounding, where a size gets the most; sequences of one token take the most of them, and there
    is room for one beside 31 sequences."""
    for longest in (1, 2, 31, 512, -(-size // 31)):
        lengths = [longest] * (size // longest) + [size % longest] * bool(size % longest)
        batch = make(lengths, 3)
        padded = pad_batch(batch, Shapes(PADDINGS, longest).choose(batch), PADDINGS)
        padding = padded.bounds[batch.num_sequences :].diff()
        assert int(padding.sum()) == padded.num_tokens - size > 0
        assert int(padding.min()) >= 0
        assert int(padding.max()) <= longest


def test_batches_of_a_run_have_few_shapes() -> None:
    """Thirty-two sequences of 10 to 100 tokens, 15 % of them targets: 400 batches in some dozen shapes."""
    draw = random.Random(0)
    shapes = Shapes(PADDINGS, 100)
    seen, sizes, padded_sizes = set(), 0, 0
    for number in range(400):
        lengths = [draw.randint(10, 100) for _ in range(32)]
        batch = make(lengths, sum(draw.random() < 0.15 for _ in range(sum(lengths))), number)
        shape = shapes.choose(batch)
        seen.add(shape)
        sizes, padded_sizes = sizes + batch.num_tokens, padded_sizes + shape[TOKENS]
    assert len(seen) < 60
    assert padded_sizes < 1.06 * sizes


def test_a_sequence_longer_than_the_longest_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="a sequence of 9 tokens, over 8"):
        Shapes(PADDINGS, 8).choose(make([9], 1))


def test_a_batch_that_is_not_smaller_than_its_shape_is_our_mistake() -> None:
    batch = make([8] * 8, 1)
    shape = Shapes(PADDINGS, 8).choose(batch)
    with pytest.raises(AssertionError, match="at least one token of padding"):
        pad_batch(make([8] * 12, 1), shape, PADDINGS)
    few = replace(shape, sizes=tuple({**dict(shape.sizes), SEQUENCES: 63}.items()))
    with pytest.raises(AssertionError, match="too few sequences"):
        pad_batch(make([1] * 63, 1), few, PADDINGS)
