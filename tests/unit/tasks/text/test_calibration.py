"""Reliability, temperatures and thresholds, beside SciPy, scikit-learn and trying every threshold."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, softmax
from sklearn.metrics import f1_score

from support.tasks import new_task
from unmask.errors import SettingsError
from unmask.tasks.settings import TaskSettings
from unmask.tasks.text.calibration import Reliability, best_temperature, best_thresholds
from unmask.tasks.text.examples import TextExample

MANY = {"name": "classification", "multi_label": True, "labels": ["a", "b"]}


def test_the_expected_calibration_error_is_that_of_its_definition() -> None:
    generator = np.random.default_rng(0)
    certainty = generator.uniform(0.3, 1, 500)
    is_right = generator.uniform(size=500) < certainty**2
    reliability = Reliability()
    for start in range(0, 500, 70):
        reliability.add(certainty[start : start + 70], is_right[start : start + 70])
    edges = np.linspace(0, 1, 16)
    inside = [(certainty >= low) & (certainty < high) for low, high in pairwise(edges)]
    expected = sum(abs(certainty[each].mean() - is_right[each].mean()) * each.mean() for each in inside if each.any())
    assert reliability.error == pytest.approx(expected)
    assert reliability.error > 0.1, "it is surer than right"
    figures = reliability.figures()
    assert sum(each["count"] for each in figures["bins"]) == reliability.num_decisions == 500
    assert figures["bins"][0]["from"] == pytest.approx(4 / 15)
    assert figures["bins"][-1]["to"] == 1


def test_a_certainty_of_one_and_no_decision() -> None:
    assert Reliability().error == 0
    assert Reliability().figures()["bins"] == []
    sure = Reliability()
    sure.add(np.array([1.0, 1.0]), np.array([True, False]))
    assert sure.error == 0.5


def test_too_sure_and_not_sure_enough_do_not_make_up_for_each_other() -> None:
    both = Reliability()
    both.add(np.array([0.9, 0.1]), np.array([False, True]))
    assert both.error == pytest.approx(0.9)


@pytest.mark.parametrize("scale", [0.3, 1.0, 6.0])
def test_the_temperature_is_the_one_that_a_minimiser_finds(scale: float) -> None:
    generator = np.random.default_rng(1)
    logits = generator.normal(size=(800, 4))
    labels = np.array([generator.choice(4, p=row) for row in softmax(logits, 1)])
    given = softmax(scale * logits, 1)

    def loss(temperature: float) -> float:
        return -float(log_softmax(np.log(given) / temperature, 1)[np.arange(800), labels].mean())

    found = best_temperature(given, labels)
    expected = minimize_scalar(loss, bounds=(1 / 32, 32), method="bounded", options={"xatol": 1e-7}).x
    assert found == pytest.approx(expected, rel=1e-4)
    assert found == pytest.approx(scale, rel=0.2), "the logits were drawn so"


def test_the_probabilities_of_one_label_are_kept_where_a_temperature_is_chosen() -> None:
    task = new_task("classification", labels=["a", "b", "c"], calibration="temperature")
    outputs = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    examples = [TextExample("t", None, "abc"[number % 3], {}, "f:1") for number in range(50)]
    score, of_decoded = task.score(), task.score()
    score.add(examples, task.decide(examples, None, outputs))
    of_decoded.add(examples, task.decode(examples, None, outputs))
    assert score.best_temperature() == of_decoded.best_temperature()


def test_a_model_that_is_always_right_has_no_best_temperature() -> None:
    """Nor where some of it underflows, or two labels are equally probable."""
    right = np.random.default_rng(0).uniform(0.6, 0.99, 500)
    right[:3] = 1, 1 - 1e-12, 0.5
    probabilities, nothing_wrong = np.stack([right, 1 - right], 1), np.zeros(500, dtype=np.int64)
    assert best_temperature(probabilities, nothing_wrong) is None
    assert best_temperature(probabilities[:1], nothing_wrong[:1]) is None
    assert best_temperature(probabilities[:0], nothing_wrong[:0]) is None
    assert best_temperature(probabilities[3:], 1 - nothing_wrong[3:]) == pytest.approx(32)


@pytest.mark.parametrize("scale", [5, 12])
def test_the_temperature_of_several_labels_is_exact_where_they_are_all_but_certain(scale: int) -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 1.5, (2000, 2))
    is_true = generator.uniform(size=logits.shape) < expit(logits)
    outputs = torch.tensor(scale * logits, dtype=torch.float32)
    task = new_task(**MANY, calibration="temperature")
    examples = [TextExample("t", None, tuple(np.array(["a", "b"])[row]), {}, "f:1") for row in is_true]
    score, of_decoded = task.score(), task.score()
    score.add(examples, task.decide(examples, None, outputs))
    of_decoded.add(examples, task.decode(examples, None, outputs))
    assert score.best_temperature() == of_decoded.best_temperature()
    assert score.best_thresholds() == of_decoded.best_thresholds()

    def loss(temperature: float) -> float:
        return float(np.logaddexp(0, np.where(is_true, -1, 1) * outputs.double().numpy() / temperature).mean())

    expected = minimize_scalar(loss, bounds=(1 / 32, 32), method="bounded", options={"xatol": 1e-7}).x
    assert score.best_temperature() == pytest.approx(expected, rel=0.02)


@given(st.lists(st.tuples(st.sampled_from([0.05, 0.2, 0.2, 0.7, 0.9, 1.0]), st.booleans()), min_size=1, max_size=12))
def test_no_threshold_gives_a_higher_f1(decisions: list[tuple[float, bool]]) -> None:
    probabilities, present = np.array(decisions, dtype=np.float64).T
    [threshold] = best_thresholds(probabilities[:, None], present[:, None].astype(bool))
    if not present.any():
        assert threshold == 0.5
        return
    scores = [
        f1_score(present, probabilities >= each, zero_division=0) for each in (0.01, 0.1, 0.3, 0.8, 0.95, threshold)
    ]
    assert scores[-1] == max(scores)
    assert 0 < threshold <= 1


@pytest.mark.parametrize(
    ("probabilities", "is_true", "threshold"),
    [([0.9, 0.5], [True, False], 0.7), ([0.9, 0.5], [True, True], 0.25), ([0.2, 0.8, 0.6], [False, True, True], 0.4)],
)
def test_a_threshold_lies_in_the_middle(probabilities: list[float], is_true: list[bool], threshold: float) -> None:
    found = best_thresholds(np.array(probabilities)[:, None], np.array(is_true)[:, None])
    assert found.tolist() == pytest.approx([threshold])


def test_thresholds_decide_and_are_remembered() -> None:
    task = new_task(**MANY, thresholds={"a": 0.7, "b": 0.2})
    logits = torch.logit(torch.tensor([[0.69, 0.21], [0.71, 0.19]], dtype=torch.float64))
    assert [each["labels"] for each in task.decode([], None, logits)] == [["b"], ["a"]]  # type: ignore[arg-type]
    assert task.remembered()["thresholds"] == {"a": 0.7, "b": 0.2}
    assert "thresholds" not in new_task(**MANY).remembered()
    both = task.together([task, new_task(**MANY)], {})
    assert both.settings.thresholds == pytest.approx({"a": 0.6, "b": 0.35})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"thresholds": "dev"}, "set multi_label to true"),
        ({"multi_label": True, "thresholds": {"a": 1.5}}, "less than 1"),
        ({"multi_label": True, "thresholds": {"a": 0.5}, "calibration": "temperature"}, "set thresholds to dev"),
        ({"name": "regression", "calibration": "temperature"}, "calibration is for classification"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        TaskSettings(**given)  # type: ignore[arg-type]


def test_a_threshold_of_no_label_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"task\.thresholds names 'c', which is none of the labels"):
        new_task(**MANY, thresholds={"c": 0.5})
