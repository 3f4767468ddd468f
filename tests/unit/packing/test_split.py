"""The split of a store into documents to train on and documents held out, and random documents from a part."""

from __future__ import annotations

from collections import Counter

import pytest
from scipy import stats

from support.stores import IMPROBABLE, numbered_store
from unmask.chance import Draws
from unmask.packing.split import Split


def test_a_random_segment_comes_from_every_other_document_of_its_part_alike() -> None:
    store = numbered_store([[5] * 20] * 12, hashes=[2**31] * 5 + [0, 0] + [2**31] * 5)
    split = Split(store, 0.25, False)
    draws = Draws(1)
    counts = Counter(split.draw_other(3, draws) for _ in range(9000))
    assert sorted(counts) == [0, 1, 2, 4, 7, 8, 9, 10, 11]
    assert stats.chisquare(list(counts.values())).pvalue > IMPROBABLE


@pytest.mark.parametrize(("held_out", "num_held_out"), [(0.0, 0), (0.25, 1), (0.5, 2), (1 - 2**-53, 3)])
def test_the_share_is_of_all_hashes(held_out: float, num_held_out: int) -> None:
    # The last hash is the greatest there is: whatever the share, it is not held out.
    store = numbered_store([[3]] * 4, hashes=[0, 2**30, 2**31, 2**32 - 1])
    assert Split(store, held_out, True).num_documents == num_held_out
    assert Split(store, held_out, False).num_documents == 4 - num_held_out
    assert [n in Split(store, held_out, True) for n in range(4)] == [n < num_held_out for n in range(4)]
    assert Split(store, held_out, True).documents().tolist() == list(range(num_held_out))
    assert Split(store, held_out, False).documents().tolist() == list(range(num_held_out, 4))
