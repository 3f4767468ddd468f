"""Chance as a function of a key: bijections, and draws against plain integer arithmetic and known distributions."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unmask.chance import Draws, Permutation, Purpose, Stream, WindowStream, key, mix, uniform

INT64 = st.integers(-(2**63), 2**63 - 1)
IMPROBABLE = 1e-4
"""The seeds are fixed, so a test either always passes or never: a p-value under this would be a fault, not bad luck."""


def test_mix_is_splitmix64() -> None:
    # The first outputs of SplitMix64 seeded with 0, as its authors' C code prints them.
    assert [mix(0), mix(0x9E3779B97F4A7C15), mix(2 * 0x9E3779B97F4A7C15)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


@given(size=st.integers(1, 3000), parts=st.lists(INT64, max_size=4))
def test_a_permutation_is_a_bijection(size: int, parts: list[int]) -> None:
    permutation = Permutation(size, *parts)
    assert sorted(permutation[index] for index in range(size)) == list(range(size))


@given(size=st.integers(1, 2**62), parts=st.lists(INT64, max_size=4), data=st.data())
def test_a_huge_permutation_stays_inside_and_tells_indices_apart(
    size: int, parts: list[int], data: st.DataObject
) -> None:
    indices = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=20))
    permutation = Permutation(size, *parts)
    images = {permutation[index] for index in indices}
    assert len(images) == len(indices)
    assert all(0 <= image < size for image in images)


@pytest.mark.parametrize("size", [3, 4])
def test_every_order_of_a_few_things_comes_about_equally_often(size: int) -> None:
    orders = dict.fromkeys(permutations(range(size)), 0)
    for seed in range(6000):
        permutation = Permutation(size, seed)
        orders[tuple(permutation[index] for index in range(size))] += 1
    # Four Feistel rounds on so few bits do not reach all orders evenly; none is missing or dominates.
    expected = 6000 / len(orders)
    assert min(orders.values()) > 0.4 * expected
    assert max(orders.values()) < 2.5 * expected


def test_each_place_gets_each_thing_about_equally_often() -> None:
    size, seeds = 20, 4000
    counts = np.zeros((size, size))
    for seed in range(seeds):
        permutation = Permutation(size, seed, 7)
        for index in range(size):
            counts[index, permutation[index]] += 1
    share = counts / seeds
    # Standard error of a share of 1/20 over 4,000 seeds: 0.0034. Five of them for 400 cells.
    assert abs(share - 1 / size).max() < 5 * 0.0034


def test_another_key_is_another_permutation() -> None:
    first, second = Permutation(1000, 1, 2), Permutation(1000, 2, 1)
    same_places = sum(first[index] == second[index] for index in range(1000))
    assert same_places < 10  # one is expected


@given(st.lists(st.integers(), max_size=6))
def test_a_key_fits_int64(parts: list[int]) -> None:
    assert torch.tensor([key(*parts)], dtype=torch.int64).item() == key(*parts)


@given(st.lists(INT64, min_size=1, max_size=5), st.integers(0, 4), INT64)
def test_every_part_of_a_key_matters(parts: list[int], place: int, other: int) -> None:
    place %= len(parts)
    changed = [*parts[:place], other, *parts[place + 1 :]]
    assert (key(*changed) == key(*parts)) == (changed == parts)
    assert key(*parts) != key(*parts, 0)


def test_the_order_of_parts_matters() -> None:
    small = [key(a, b, c) for a in range(12) for b in range(12) for c in range(12)]
    assert len(set(small)) == len(small)


@given(st.lists(st.tuples(INT64, st.integers(0, 2**40)), min_size=1, max_size=20), st.integers(0, 1000))
def test_tensors_and_integers_are_mixed_alike(pairs: list[tuple[int, int]], stream: int) -> None:
    keys, counters = (torch.tensor(column, dtype=torch.int64) for column in zip(*pairs, strict=True))
    plain = [mix((each ^ mix((counter + mix(stream)) % 2**64)) % 2**64) for each, counter in pairs]
    drawn = uniform(keys, counters, stream)
    assert drawn.dtype == torch.float64
    assert drawn.tolist() == [(value >> 11) / 2**53 for value in plain]
    assert all(0 <= value < 1 for value in drawn.tolist())


def chi_square_p(draws: np.ndarray) -> float:
    counts = np.bincount((draws * 64).astype(int), minlength=64)
    return float(stats.chisquare(counts).pvalue)


@pytest.mark.parametrize("vary", ["counters", "keys", "both"])
@pytest.mark.parametrize("stream", [0, 1, 2])
def test_uniform_is_uniform(vary: str, stream: int) -> None:
    many, few = torch.arange(100_000), torch.full((100_000,), key(5, 0, 1))
    keys = {"counters": few, "keys": many, "both": torch.tensor([key(each) for each in range(1000)]).repeat(100)}[vary]
    counters = {"counters": many, "keys": torch.zeros_like(many), "both": many}[vary]
    assert chi_square_p(uniform(keys, counters, stream).numpy()) > IMPROBABLE


def test_streams_keys_and_neighbours_do_not_go_together() -> None:
    counters = torch.arange(100_000)
    keys = torch.full_like(counters, key(1))
    base = uniform(keys, counters, 0).numpy()
    others = [uniform(keys, counters, 1).numpy(), uniform(keys + 1, counters, 0).numpy(), np.roll(base, 1)]
    for other in others:
        # The correlation of 100,000 independent pairs has a standard error of 0.0032.
        assert abs(np.corrcoef(base, other)[0, 1]) < 5 * 0.0032


def test_draws_are_uniform_and_repeatable() -> None:
    draws = Draws(3, 1, 4)
    values = np.array([draws.uniform() for _ in range(50_000)])
    assert chi_square_p(values) > IMPROBABLE
    assert chi_square_p((values[:-1] * 8).astype(int) / 64 + (values[1:] * 8).astype(int) / 8) > IMPROBABLE  # pairs
    again = Draws(3, 1, 4)
    assert [again.uniform() for _ in range(100)] == values[:100].tolist()
    assert Draws(3, 4, 1).uniform() != values[0]


def test_an_integer_is_drawn_with_both_ends() -> None:
    draws = Draws(0)
    counts = np.bincount([draws.integer(2, 6) for _ in range(20_000)])
    assert counts[:2].tolist() == [0, 0]
    assert len(counts) == 7
    assert stats.chisquare(counts[2:]).pvalue > IMPROBABLE
    assert {draws.integer(9, 9) for _ in range(10)} == {9}


def test_numbers_that_runs_were_drawn_with_never_change() -> None:
    purposes = {"DOCUMENTS": 1, "PLAN": 2, "SHUFFLE": 3, "OBJECTIVE": 4, "LANES": 5, "WINDOW": 6, "EXAMPLES": 7}
    assert {name: int(number) for name, number in Purpose.__members__.items()} == purposes
    drawn = {"CHOICE": 1, "ACTION": 2, "REPLACEMENT": 3, "LENGTH": 4, "ANNOTATION": 5, "KIND": 6}
    others = {"DIRECTION": 7, "SAMPLE": 7}
    assert {name: int(number) for name, number in Stream.__members__.items()} == drawn | others
    of_windows = {"CANDIDATES": 1, "FORGETTING": 2}
    assert {name: int(number) for name, number in WindowStream.__members__.items()} == of_windows
