"""Metrics from counts are those of scikit-learn and scipy on all predictions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    matthews_corrcoef,
    mean_squared_error,
    precision_recall_fscore_support,
)
from sklearn.preprocessing import MultiLabelBinarizer

from unmask.errors import InputError
from unmask.tasks.text.examples import TextExample
from unmask.tasks.text.metrics import LabelScore, LabelSetScore, ValueScore

EXACT = 1e-12
"""Both compute in float64 from the same integers; only the order of a few operations differs."""


def examples(labels: Sequence[Any]) -> list[TextExample[Any]]:
    return [TextExample("a", None, label, {}, f"x:{number}") for number, label in enumerate(labels, start=1)]


def scored(score: Any, key: str, true: Sequence[Any], predicted: Sequence[Any]) -> Any:
    """The score of some predictions, added a few at a time."""
    for start in range(0, len(true), 7):
        part = slice(start, start + 7)
        score.add(examples(true[part]), [{key: each} for each in predicted[part]])
    return score


# ---- One label


@given(st.integers(2, 5), st.data())
def test_metrics_of_labels_are_those_of_scikit_learn(num_labels: int, data: st.DataObject) -> None:
    labels = [f"label {number}" for number in range(num_labels)]
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(labels), st.sampled_from(labels)), min_size=1, max_size=60))
    true, predicted = zip(*pairs, strict=True)
    metrics = scored(LabelScore(labels), "label", true, predicted).metrics()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, where a class is absent
        assert metrics["accuracy"] == pytest.approx(accuracy_score(true, predicted), abs=EXACT)
        assert metrics["matthews_correlation"] == pytest.approx(matthews_corrcoef(true, predicted), abs=EXACT)
        if num_labels == 2:
            expected = f1_score(true, predicted, pos_label=labels[1], labels=labels, zero_division=0)
            assert metrics["f1"] == pytest.approx(expected, abs=EXACT)
        else:
            macro = f1_score(true, predicted, average="macro", zero_division=0)
            assert metrics["f1_macro"] == pytest.approx(macro, abs=EXACT)


@given(st.data())
def test_metrics_without_a_negative_label_are_those_of_scikit_learn_on_the_others(data: st.DataObject) -> None:
    pairs = data.draw(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), min_size=1, max_size=60))
    true, predicted = zip(*pairs, strict=True)
    metrics = scored(LabelScore("abcd", negative="b"), "label", true, predicted).metrics()
    assert list(metrics)[3:] == ["f1_micro", "precision_micro", "recall_micro"]
    given = {"labels": ["a", "c", "d"], "average": "micro", "zero_division": 0}
    precision, recall, f1, _ = precision_recall_fscore_support(true, predicted, **given)
    found = [metrics[name] for name in ("precision_micro", "recall_micro", "f1_micro")]
    assert found == pytest.approx([precision, recall, f1], abs=EXACT)


def test_f1_is_of_the_second_label() -> None:
    score = scored(LabelScore(["0", "1"]), "label", "11000", "10100")  # one hit, one miss, one false alarm
    assert score.metrics() == {"accuracy": 0.6, "f1": 0.5, "matthews_correlation": pytest.approx(1 / 6)}


def test_the_metric_of_the_task_comes_first() -> None:
    assert list(LabelScore("ab", "matthews_correlation").metrics()) == ["matthews_correlation", "accuracy", "f1"]
    assert next(iter(LabelScore("abc", "f1_macro").metrics())) == "f1_macro"
    assert next(iter(ValueScore("spearmanr").metrics())) == "spearmanr"


def test_nothing_measured_is_nothing() -> None:
    assert set(LabelScore("abc").metrics().values()) == {0.0}
    assert set(LabelSetScore("abc").metrics().values()) == {0.0}
    assert set(ValueScore(binary_from=3).metrics().values()) == {0.0}
    assert [score.degenerate() for score in (LabelScore("ab"), LabelSetScore("ab"), ValueScore())] == [None] * 3


def test_constant_labels_are_noticed() -> None:
    score = scored(LabelScore("abc"), "label", "cc", "cc")
    assert score.degenerate() is None  # there was nothing else to predict
    scored(score, "label", "a", "c")
    assert score.degenerate() == "all 3 predictions are 'c', and not all labels are"
    scored(score, "label", "a", "b")
    assert score.degenerate() is None


def test_examples_without_label_count_for_nothing() -> None:
    score = scored(LabelScore("ab"), "label", ["a", None], ["a", "b"])
    assert (score.num_examples, score.metrics()["accuracy"]) == (1, 1.0)
    many = scored(LabelSetScore("ab"), "labels", [("a",), None], [["a"], ["b"]])
    assert (many.num_examples, many.metrics()["accuracy"]) == (1, 1.0)
    assert scored(ValueScore(), "value", [1.0, None], [1.0, 2.0]).num_examples == 1


@pytest.mark.parametrize(
    ("score", "prediction", "told"),
    [
        (LabelScore("ab"), {"label": "c"}, r'x:1: its prediction says label "c": expected one of a, b, as `unmask'),
        (LabelScore("ab"), {}, r"x:1: its prediction has no label: expected one of a, b"),
        (LabelScore("ab"), {"label": 1}, r"x:1: its prediction says label 1"),
        (LabelScore([*"abcdefghijklm"]), {"label": "z"}, r"one of a, b, c, d, e, f, g, h, i, j and 3 more, as"),
        (LabelSetScore("ab"), {"label": "a"}, "x:1: its prediction has no labels: expected a list"),
        (LabelSetScore("ab"), {"labels": "a"}, 'x:1: its prediction says labels "a": expected a list'),
        (LabelSetScore("ab"), {"labels": ["a", "z"]}, 'x:1: its prediction says label "z"'),
        (ValueScore(), {"label": "a"}, "x:1: its prediction has no value: expected a finite number"),
        (ValueScore(), {"value": float("nan")}, "x:1: its prediction says value NaN"),
        (ValueScore(), {"value": True}, "x:1: its prediction says value true"),
    ],
)
def test_predictions_of_something_else_are_refused(score: Any, prediction: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        score.add(examples([None]), [prediction])


# ---- Any number of labels


label_sets = st.frozensets(st.sampled_from("abcd"))


@given(st.lists(st.tuples(label_sets, label_sets), min_size=1, max_size=40))
def test_metrics_of_label_sets_are_those_of_scikit_learn(pairs: list[tuple[frozenset[str], frozenset[str]]]) -> None:
    true, predicted = zip(*pairs, strict=True)
    metrics = scored(LabelSetScore("abcd"), "labels", true, [sorted(each) for each in predicted]).metrics()
    binarizer = MultiLabelBinarizer(classes=[*"abcd"])
    one, other = binarizer.fit_transform(true), binarizer.fit_transform(predicted)
    assert metrics["accuracy"] == pytest.approx(accuracy_score(one, other), abs=EXACT)
    assert metrics["f1_micro"] == pytest.approx(f1_score(one, other, average="micro", zero_division=0), abs=EXACT)
    assert metrics["f1_macro"] == pytest.approx(f1_score(one, other, average="macro", zero_division=0), abs=EXACT)


def test_constant_label_sets_are_noticed() -> None:
    score = scored(LabelSetScore("ab"), "labels", [("a",), ("a",)], [[], []])
    assert score.degenerate() is None
    scored(score, "labels", [("b",)], [[]])
    assert score.degenerate() == "all 3 predictions are alike (no label), and the labels are not"
    scored(score, "labels", [("b",)], [["b", "a"]])
    assert score.degenerate() is None


# ---- Values


values = st.lists(st.tuples(*[st.sampled_from([0.0, 0.5, 1.0, 2.25, 3.0, 5.0]) | st.floats(-50, 50)] * 2), min_size=2)


@given(values)
def test_metrics_of_values_are_those_of_scipy(pairs: list[tuple[float, float]]) -> None:
    true, predicted = (np.array(each) for each in zip(*pairs, strict=True))
    assume(np.ptp(true) > 1e-3)
    assume(np.ptp(predicted) > 1e-3)
    metrics = scored(ValueScore(binary_from=3.0), "value", true.tolist(), predicted.tolist()).metrics()
    # Centred sums in float64, over values that differ by a thousandth of 50 at least.
    assert metrics["pearson"] == pytest.approx(pearsonr(true, predicted).statistic, abs=1e-9)
    assert metrics["spearmanr"] == pytest.approx(spearmanr(true, predicted).statistic, abs=1e-9)
    assert metrics["mse"] == pytest.approx(mean_squared_error(true, predicted), rel=1e-9, abs=EXACT)
    assert metrics["f1"] == pytest.approx(f1_score(true >= 3, predicted >= 3, zero_division=0), abs=EXACT)


def test_a_correlation_with_a_constant_is_nothing_and_is_told() -> None:
    score = scored(ValueScore(), "value", [1.0, 2.0, 4.0], [2.5, 2.5, 2.5])
    assert score.metrics() == {"pearson": 0.0, "spearmanr": 0.0, "mse": pytest.approx((2.25 + 0.25 + 2.25) / 3)}
    assert score.degenerate() == "all 3 predictions are 2.5 or hardly differ from it, and not all labels are"
    # Three parts in ten thousand of what the labels spread over: the head has learned its bias alone.
    nearly = scored(ValueScore(), "value", [1.0, 2.0, 4.0], [2.5, 2.5004, 2.5009])
    assert nearly.degenerate() is not None
    assert scored(ValueScore(), "value", [1.0, 2.0, 4.0], [2.5, 2.5, 2.6]).degenerate() is None
    assert scored(ValueScore(), "value", [3.0, 3.0], [2.5, 2.5]).degenerate() is None
