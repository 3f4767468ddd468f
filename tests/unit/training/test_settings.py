"""How steps are cut into micro-batches."""

from __future__ import annotations

import pytest

from unmask.training.settings import MOST_TOKENS_AT_ONCE, Cut


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(None, 100), (100 * 32, 100), (99 * 32, 50), (50 * 32, 50), (40 * 32, 34), (32, 1), (31, 1), (3 * 32 + 31, 3)],
)
def test_a_cut_holds_so_many_tokens(tokens: int | None, expected: int) -> None:
    assert Cut(100, 100, 32).at_most(tokens).micro_batch_size == expected


def test_a_cut_leaves_what_is_not_too_much() -> None:
    assert Cut(100, 7, 32).at_most(7 * 32).micro_batch_size == 7
    assert Cut(100, 7, 32).at_most(10**6).micro_batch_size == 7
    huge = Cut(2**26, 2**26, 64).at_most(None)
    assert huge.micro_batch_size * huge.longest <= MOST_TOKENS_AT_ONCE
