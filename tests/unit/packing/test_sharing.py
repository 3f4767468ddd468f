"""Micro-batches of a step, and which process computes which of them."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from unmask.packing.sharing import WHOLE, Share

LENGTHS = st.lists(st.integers(1, 512), min_size=1, max_size=40)


@given(lengths=LENGTHS, most=st.integers(1, 12), size=st.integers(1, 6))
def test_every_sequence_is_in_one_micro_batch_of_one_process(lengths: list[int], most: int, size: int) -> None:
    step = list(range(len(lengths)))
    dealt = [Share(rank, size).deal(step, lengths, len(step), most) for rank in range(size)]
    assert sorted(chain(*chain(*dealt))) == step
    assert all(1 <= len(each) <= most for each in chain(*dealt))
    assert all(each == sorted(each) for each in chain(*dealt))


@given(lengths=LENGTHS, halves=st.integers(0, 3))
def test_the_same_number_of_micro_batches_is_the_same_micro_batches(lengths: list[int], halves: int) -> None:
    """For one process, two, four and eight, where the step has at least eight sequences."""
    step, size = list(range(len(lengths) * 8)), 2**halves
    lengths = lengths * 8
    most = len(lengths)  # of one micro-batch a process
    joined = [*chain(*(Share(rank, size).deal(step, lengths, len(step), most) for rank in range(size)))]
    assert joined == WHOLE.deal(step, lengths, len(step), -(-len(lengths) // size))


@given(lengths=st.lists(st.integers(1, 512), min_size=16, max_size=64), size=st.sampled_from([2, 4]))
def test_micro_batches_have_about_as_many_tokens(lengths: list[int], size: int) -> None:
    """They differ by less than the longest sequence."""
    step = list(range(len(lengths)))
    dealt = chain(*(Share(rank, size).deal(step, lengths, len(step), len(step)) for rank in range(size)))
    sums = [sum(lengths[place] for place in each) for each in dealt]
    assert max(sums) - min(sums) <= max(lengths)


@given(lanes=st.integers(1, 64), most=st.integers(1, 64), size=st.integers(1, 6))
def test_lanes_stay_together_and_are_all_read(lanes: int, most: int, size: int) -> None:
    dealt = [Share(rank, size).lanes(lanes, most) for rank in range(size)]
    assert [*chain(*chain(*dealt))] == list(range(lanes))
    assert all(len(each) <= most for each in chain(*dealt))
    for rank, own in enumerate(dealt):  # whatever `most` is, which may be halved in the course of a run
        assert [*chain(*own)] == list(range(lanes * rank // size, lanes * (rank + 1) // size))
