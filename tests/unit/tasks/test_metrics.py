"""Metrics from counts are those of scikit-learn on all predictions."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from unmask.tasks.metrics import Confusion

EXACT = 1e-12
"""Both compute in float64 from the same integers; only the order of a few operations differs."""


@given(st.integers(2, 5), st.data())
def test_metrics_are_those_of_scikit_learn(num_labels: int, data: st.DataObject) -> None:
    ids = st.integers(0, num_labels - 1)
    pairs = np.array(data.draw(st.lists(st.tuples(ids, ids), min_size=1, max_size=60)))
    score = Confusion(num_labels)
    for part in np.array_split(pairs, 3):  # added bit by bit
        score.add(part[:, 0], part[:, 1])
    labels, predictions = pairs.T
    metrics = score.metrics()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, where a class is absent
        assert metrics["accuracy"] == pytest.approx(accuracy_score(labels, predictions), abs=EXACT)
        assert metrics["matthews_correlation"] == pytest.approx(matthews_corrcoef(labels, predictions), abs=EXACT)
        if num_labels == 2:
            assert metrics["f1"] == pytest.approx(f1_score(labels, predictions, zero_division=0), abs=EXACT)
        else:
            macro = f1_score(labels, predictions, average="macro", zero_division=0)
            assert metrics["f1_macro"] == pytest.approx(macro, abs=EXACT)
    assert score.num_examples == len(pairs)


def test_f1_is_of_label_1() -> None:
    score = Confusion(2)
    score.add(np.array([1, 1, 0, 0, 0]), np.array([1, 0, 1, 0, 0]))  # one hit, one miss, one false alarm
    assert score.metrics()["f1"] == 0.5


def test_constant_predictions_are_noticed() -> None:
    score = Confusion(3)
    score.add(np.array([2, 2]), np.array([2, 2]))
    assert score.only_prediction is None  # there was nothing else to predict
    score.add(np.array([0]), np.array([2]))
    assert score.only_prediction == 2
    score.add(np.array([0]), np.array([1]))
    assert score.only_prediction is None
