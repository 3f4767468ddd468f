"""Figures of a report: what is smoothed and thinned, the numbers of axes, and the drawing."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from unmask.reports.figure import FEW_POINTS, MAX_POINTS, Panel, Series, draw


@pytest.mark.parametrize(("count", "num_marks"), [(2, 2), (FEW_POINTS, FEW_POINTS), (FEW_POINTS + 1, 0)])
def test_few_points_are_marked(count: int, num_marks: int) -> None:
    drawn = draw(Panel("loss", series([1.0] * count), series([])), 300, 200)
    assert len(re.findall(r"<use[^>]*var\(--training\)", drawn)) == num_marks


def series(values: list[float]) -> Series:
    return Series(np.arange(1.0, len(values) + 1), np.array(values))


def test_smoothing_keeps_a_straight_line_straight_but_for_its_end() -> None:
    smoothed = series([float(step) for step in range(500)]).smoothed()
    # Sums of 500 whole numbers are exact in float64; the last five points have less ahead of them than behind.
    assert smoothed.values[:495].tolist() == list(range(495))
    assert smoothed.values[-1] == 496.5  # the mean of 494 to 499


def test_smoothing_leaves_out_what_is_not_finite() -> None:
    values = [1.0] * 200
    values[50] = math.nan
    smoothed = series(values).smoothed().values
    assert math.isnan(smoothed[50])
    assert np.delete(smoothed, 50).tolist() == [1.0] * 199


@pytest.mark.parametrize("size", [0, 1, MAX_POINTS, MAX_POINTS + 1, 10 * MAX_POINTS + 7])
def test_thinning_keeps_few_points_and_the_last(size: int) -> None:
    thinned = series([float(step) for step in range(size)]).thinned()
    assert len(thinned.steps) <= MAX_POINTS
    assert thinned.values[-1:].tolist() == ([size - 1.0] if size else [])
    if size <= MAX_POINTS:
        assert len(thinned.steps) == size


def words_of(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>\s*([^<]*?)\s*</text>", svg)


@pytest.mark.parametrize("steps", [[1, 2], [1000, 1001, 1002], [12_000, 12_090]])
def test_neither_axis_says_a_number_twice(steps: list[int]) -> None:
    curve = Series(np.array(steps, dtype=float), np.array(steps, dtype=float))
    words = words_of(draw(Panel("tokens", curve, series([])), 460, 220))
    assert len(words) >= 4
    assert max(words.count(word) for word in words) <= 2  # once along each


def test_what_is_never_below_zero_has_no_axis_below_it() -> None:
    assert words_of(draw(Panel("precision", series([]), series([0.0, 0.0])), 300, 200))[-3:] == ["0.00", "0.02", "0.04"]
    assert "−0.10" in words_of(draw(Panel("correlation", series([]), series([0.0, -0.1])), 300, 200))


def test_a_drawing_holds_numbers_only_and_the_colours_of_the_page() -> None:
    panel = Panel("A & B", series([3.0, 2.0, 1.0]), series([2.5]), {"floor": 0.5})
    svg = draw(panel, 400, 200)
    assert svg.startswith('<svg role="img" aria-label="A &amp; B"')
    words = words_of(svg)
    assert words
    assert all(re.fullmatch(r"−?[\d.]+", word) for word in words)
    assert "var(--training)" in svg
    assert "var(--held-out)" in svg
    assert "var(--floor)" in svg
    assert "#0" not in svg.replace("xlink:href", "")
