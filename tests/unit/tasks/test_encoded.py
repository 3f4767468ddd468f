"""Flat arrays of examples: batches, order, and going on from any position."""

from __future__ import annotations

from itertools import chain, islice

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from unmask.batch import pack
from unmask.tasks.encoded import EncodedExamples, ExampleLoader, concatenate

lists_of_ids = st.lists(st.lists(st.integers(0, 99), min_size=2, max_size=9), min_size=1, max_size=12)


def encode(ids: list[list[int]]) -> EncodedExamples:
    """Segment B begins in the middle of each; the label is its number."""
    columns = {"labels": np.arange(len(ids))}
    return EncodedExamples.from_lists(ids, [len(sequence) // 2 for sequence in ids], unit_columns=columns)


@given(lists_of_ids, st.data())
def test_a_batch_is_what_pack_makes_of_its_sequences(ids: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(ids) - 1), min_size=1))
    batch = encode(ids).batch(chosen)
    expected = pack(
        [ids[i] for i in chosen], [[int(place >= len(ids[i]) // 2) for place in range(len(ids[i]))] for i in chosen]
    )
    for name in ("input_ids", "token_type_ids", "position_ids", "bounds"):
        assert torch.equal(getattr(batch, name), getattr(expected, name)), name
        assert getattr(batch, name).dtype == getattr(expected, name).dtype, name
    assert batch.lengths == expected.lengths
    assert batch.columns["labels"].tolist() == chosen


@given(lists_of_ids, st.integers(0, 12))
def test_parts_put_together_are_the_whole(ids: list[list[int]], cut: int) -> None:
    parts = [encode(part) for part in (ids[:cut], ids[cut:]) if part]
    whole, together = encode(ids), concatenate(parts)
    assert np.array_equal(together.input_ids, whole.input_ids)
    assert np.array_equal(together.bounds, whole.bounds)
    assert np.array_equal(together.second_starts, whole.second_starts)


@given(lists_of_ids, st.integers(1, 40))
def test_batches_by_length_show_every_example_once_within_the_budget(ids: list[list[int]], budget: int) -> None:
    seen = []
    for indices, batch in encode(ids).batches_by_length(budget):
        assert batch.num_tokens <= budget or batch.num_sequences == 1
        assert batch.lengths == tuple(len(ids[index]) for index in indices)
        seen += indices.tolist()
    assert sorted(seen) == list(range(len(ids)))


def test_every_epoch_shows_every_example_once_in_another_order() -> None:
    loader = ExampleLoader(encode([[1, 2]] * 10), seed=3, batch_size=4, micro_batch_size=3)
    steps = list(islice(loader.steps(loader.start()), 6))
    assert [[batch.num_sequences for batch in step.batches] for step in steps] == [[2, 2], [2, 2], [1, 1]] * 2
    labels = [torch.cat([batch.columns["labels"] for batch in step.batches]).tolist() for step in steps]
    first, second = [*chain(*labels[:3])], [*chain(*labels[3:])]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert [step.epochs for step in steps] == [0.4, 0.8, 1.0, 1.4, 1.8, 2.0]


@given(st.integers(0, 9))
def test_going_on_shows_what_would_have_come(stop: int) -> None:
    loader = ExampleLoader(encode([[1, 2]] * 7), seed=0, batch_size=3, micro_batch_size=3)
    steps = list(islice(loader.steps(loader.start()), 12))
    resumed = islice(loader.steps(steps[stop].after), 2)
    for step, expected in zip(resumed, steps[stop + 1 :], strict=False):
        assert torch.equal(step.batches[0].columns["labels"], expected.batches[0].columns["labels"])
        assert step.after == expected.after
        assert step.epochs == expected.epochs


def test_checksums_tell_other_examples_apart() -> None:
    same = encode([[1, 2], [3, 4, 5]])
    assert same.checksum() == encode([[1, 2], [3, 4, 5]]).checksum()
    others = [
        encode([[1, 2, 3], [4, 5]]),
        encode([[1, 2], [3, 4, 6]]),
        EncodedExamples.from_lists([[1, 2], [3, 4, 5]], [1, 1], unit_columns={"labels": np.array([1, 0])}),
        EncodedExamples.from_lists(
            [[1, 2], [3, 4, 5]], [1, 1], rows_of_units=[2], unit_columns={"labels": np.array([0])}
        ),
    ]
    assert same.checksum() not in [other.checksum() for other in others]


# ---- Units of several rows, examples of several units, and columns


def grouped(ids: list[list[int]], sizes: list[int]) -> EncodedExamples:
    """Units of some rows each; every token has its own id as target, and its place in all tokens beside it."""
    flat = np.array([*chain(*ids)])
    return EncodedExamples.from_lists(
        ids,
        [len(sequence) for sequence in ids],
        rows_of_units=sizes,
        unit_columns={"labels": np.arange(len(sizes)), "both": np.arange(2 * len(sizes)).reshape(-1, 2)},
        token_columns={"targets": flat},
        alignment={"places": np.arange(len(flat))},
    )


sizes_of_units = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@given(sizes_of_units, st.data())
def test_the_rows_of_a_unit_stay_together(sizes: list[int], data: st.DataObject) -> None:
    count = sum(sizes)
    ids = data.draw(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=5), min_size=count, max_size=count))
    chosen = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=8))
    units = grouped(ids, sizes)
    firsts = np.cumsum([0, *sizes])
    rows = [[*range(firsts[unit], firsts[unit + 1])] for unit in chosen]
    batch = units.batch(chosen)
    expected = pack([ids[row] for row in chain(*rows)])
    assert torch.equal(batch.input_ids, expected.input_ids)
    assert batch.lengths == expected.lengths
    assert batch.columns["targets"].tolist() == batch.input_ids.tolist()
    assert batch.columns["labels"].tolist() == chosen
    assert batch.columns["both"].tolist() == [[2 * unit, 2 * unit + 1] for unit in chosen]
    assert "places" not in batch.columns
    if len([*chain(*rows)]) > len(chosen):
        assert batch.columns["unit_bounds"].tolist() == np.cumsum([0, *map(len, rows)]).tolist()
    else:
        assert "unit_bounds" not in batch.columns
    places = np.concatenate([units.alignment["places"][units.tokens_of(unit)] for unit in chosen])
    assert units.token_numbers(np.array(chosen)).tolist() == places.tolist()
    assert units.input_ids[places].tolist() == batch.input_ids.tolist()
    assert units.lengths[chosen].tolist() == [sum(len(ids[row]) for row in unit_rows) for unit_rows in rows]


def test_examples_of_several_units_are_numbered_on() -> None:
    first = EncodedExamples.from_lists([[1], [2], [3]], [1, 1, 1], examples=[0, 0, 2])
    second = EncodedExamples.from_lists([[4], [5]], [1, 1], examples=[0, 1])
    together = concatenate([first, second])
    assert together.examples.tolist() == [0, 0, 2, 3, 4]


def test_what_is_only_for_decoding_can_be_left_out() -> None:
    units = grouped([[1, 2], [3]], [1, 1])
    assert units.without_alignment().alignment == {}
    assert units.without_alignment().checksum() == units.checksum()
