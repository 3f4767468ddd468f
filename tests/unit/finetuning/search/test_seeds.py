"""Differences over seeds, and the interval that they may have by chance."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from unmask.finetuning.search.seeds import T_975, Difference, difference_over_seeds


def test_the_quantiles_are_those_of_students_t() -> None:
    assert pytest.approx(stats.t.ppf(0.975, np.arange(1, len(T_975) + 1)), abs=6e-4) == T_975


def test_runs_are_compared_seed_by_seed() -> None:
    first, other = {1: 5.0, 2: 5.2, 3: 5.1, 9: 7.0}, {3: 4.8, 2: 5.1, 1: 4.8, 8: 0.0}
    found = difference_over_seeds(first, other)
    interval = stats.ttest_rel([4.8, 5.1, 4.8], [5.0, 5.2, 5.1]).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-3)
    assert (found.mean, found.pairs) == (pytest.approx(-0.2), 3)
    assert difference_over_seeds({1: 5.0, 2: 6.0}, {1: 4.0}) == Difference(-1.0, None, None, 1)
    assert difference_over_seeds({1: 5.0}, {2: 4.0}) is None
