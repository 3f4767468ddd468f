"""Packed batches: every column against plain lists."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unmask.batch import IGNORE_INDEX, Batch, in_parts, pack

Sequences = list[list[int]]

sequences_of_tokens = st.lists(st.lists(st.integers(0, 30_000), min_size=1, max_size=12), min_size=1, max_size=8)


def test_a_hand_worked_batch() -> None:
    batch = pack([[2, 10, 3], [2, 11, 12, 3, 13, 3]], segments=[[0, 0, 0], [0, 0, 0, 0, 1, 1]], keys=[-5, 7])
    assert batch.input_ids.tolist() == [2, 10, 3, 2, 11, 12, 3, 13, 3]
    assert batch.token_type_ids.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5]
    assert batch.bounds.tolist() == [0, 3, 9]
    assert batch.lengths == (3, 6)
    assert batch.keys is not None
    assert batch.keys.tolist() == [-5, 7]
    assert (batch.num_tokens, batch.num_sequences) == (9, 2)
    assert batch.first_tokens.tolist() == [0, 3]
    assert batch.sequence_of_token().tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1]
    assert (batch.first_tokens.tolist(), batch.last_tokens.tolist()) == ([0, 3], [2, 8])


@given(sequences_of_tokens)
def test_nothing_is_lost_or_padded(sequences: Sequences) -> None:
    batch = pack(sequences)
    assert [part.tolist() for part in batch.input_ids.split(batch.lengths)] == sequences
    assert [part.tolist() for part in batch.position_ids.split(batch.lengths)] == [
        list(range(len(sequence))) for sequence in sequences
    ]
    numbered = [[number] * len(sequence) for number, sequence in enumerate(sequences)]
    assert [part.tolist() for part in batch.sequence_of_token().split(batch.lengths)] == numbered
    assert not batch.token_type_ids.any()
    assert batch.keys is None


@given(sequences_of_tokens)
def test_parts_hold_all_sequences_and_few_tokens(sequences: Sequences) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("unmask.batch._PART_TOKENS", 20)
        parts = list(in_parts(pack(sequences, [[len(each)] * len(each) for each in sequences])))
    again = [row.tolist() for part in parts for row in part.input_ids.split(part.lengths)]
    assert again == sequences
    for part in parts:
        alone = pack([row.tolist() for row in part.input_ids.split(part.lengths)])
        assert torch.equal(part.bounds, alone.bounds)
        assert torch.equal(part.position_ids, alone.position_ids)
        assert part.token_type_ids.tolist() == [length for length in part.lengths for _ in range(length)]
        assert part.num_sequences == 1 or part.num_sequences * part.max_length <= 20
    for part, after in pairwise(parts):
        longest = max(part.max_length, after.lengths[0])
        assert (part.num_sequences + 1) * longest > 20, "no smaller than they need to be"


def test_types_are_those_that_the_docstring_names() -> None:
    batch = pack([[1, 2], [3]], keys=[2**63 - 1, -(2**63)])
    assert batch.keys is not None
    for column in (batch.input_ids, batch.token_type_ids, batch.position_ids, batch.first_tokens, batch.keys):
        assert column.dtype == torch.int64
    assert batch.bounds.dtype == torch.int32


def test_an_empty_sequence_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="an empty sequence"):
        pack([[1], []])


def test_changes_leave_the_batch_as_it_was() -> None:
    batch = pack([[1, 2], [3]]).with_columns(labels=torch.tensor([1, IGNORE_INDEX, 2]))
    changed = batch.with_columns(labels=torch.tensor([0, 0, 0]), other=torch.tensor([1])).with_input_ids(
        torch.tensor([7, 8, 9])
    )
    assert batch.columns.keys() == {"labels"}
    assert batch.columns["labels"].tolist() == [1, IGNORE_INDEX, 2]
    assert batch.input_ids.tolist() == [1, 2, 3]
    assert changed.columns["labels"].tolist() == [0, 0, 0]
    assert changed.columns["other"].tolist() == [1]
    assert changed.input_ids.tolist() == [7, 8, 9]
    assert changed.bounds is batch.bounds


def test_all_tensors_move() -> None:
    batch = pack([[1, 2], [3]], keys=[1, 2]).with_columns(labels=torch.tensor([1, 2, 3]))
    moved = batch.to(torch.device("meta"))
    assert moved.keys is not None
    for tensor in (moved.input_ids, moved.token_type_ids, moved.position_ids, moved.bounds, moved.keys):
        assert tensor.device.type == "meta"
    assert moved.columns["labels"].device.type == "meta"
    assert moved.lengths == batch.lengths
    assert Batch.to(pack([[1]]), torch.device("meta")).keys is None
