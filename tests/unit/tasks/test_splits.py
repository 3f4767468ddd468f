"""The rule by which groups become train, dev and test."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.errors import InputError
from unmask.tasks.splits import Unsplittable, split_of_groups, warn_of_splits


def test_the_rule_by_hand() -> None:
    # SHA-256 in hexadecimal begins: b 3e, d 18, a ca, c 2e, e 3f.
    assert [hashlib.sha256(key.encode()).hexdigest()[:2] for key in "dcbea"] == ["18", "2e", "3e", "3f", "ca"]
    assert split_of_groups("abcde") == {"d": "train", "c": "train", "b": "train", "e": "dev", "a": "test"}


@pytest.mark.parametrize(
    ("number", "sizes"), [(3, (1, 1, 1)), (4, (2, 1, 1)), (6, (4, 1, 1)), (10, (8, 1, 1)), (48, (38, 5, 5))]
)
def test_shares(number: int, sizes: tuple[int, int, int]) -> None:
    counts = Counter(split_of_groups(map(str, range(number))).values())
    assert (counts["train"], counts["dev"], counts["test"]) == sizes


@given(st.lists(st.text(), min_size=3, max_size=30, unique=True), st.randoms())
def test_neither_order_nor_repetition_matters(keys: list[str], random: object) -> None:
    shuffled = [*keys, *keys]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert split_of_groups(shuffled) == split_of_groups(keys)
    assert set(split_of_groups(keys).values()) == {"train", "dev", "test"}


def test_a_part_that_is_far_too_large_is_told(caplog: pytest.LogCaptureFixture) -> None:
    parts = [Unsplittable(str(number), "") for number in range(20)]
    warn_of_splits(Path("a.csv"), parts, [*["train"] * 12, *["dev"] * 6, *["test"] * 2], ())  # type: ignore[list-item]
    assert "dev has 6 (30.0%)" in caplog.text


def test_two_groups_are_too_few() -> None:
    with pytest.raises(InputError, match=r"2 groups that belong together: expected at least three"):
        split_of_groups(["a", "b", "a"])
