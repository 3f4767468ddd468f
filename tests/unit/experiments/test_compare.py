"""Two models on the same examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.files import write_rows
from support.untrained import save_task_model
from unmask.errors import InputError
from unmask.experiments.compare import Answers, compare, compare_answers
from unmask.inference.evaluation import evaluate
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import open_task
from unmask.tasks.text.examples import TextExample

DATA = [{"text": "a man", "label": "a"}, {"text": "the dog", "label": "b"}, {"text": "an old house", "label": "b"}]


def saved(tmp_path: Path, base: Path, seed: int, **settings: Any) -> Path:
    given = {"labels": ["a", "b"], "max_length": 32, **settings}
    return save_task_model(tmp_path / f"model{seed}", base, seed=seed, std=0.5, **given)


def test_the_interval_is_that_of_the_examples() -> None:
    task = open_task(TaskSettings(name="classification", labels=["a", "b"]), ColumnSettings())
    rng = np.random.default_rng(1)
    labels = rng.integers(2, size=600)
    examples = [TextExample("x", None, "ab"[label], {}, f"x:{number}") for number, label in enumerate(labels)]
    right = rng.random((2, 600)) < np.array([[0.7], [0.8]])
    one, other = (
        Answers(task, examples, [{"label": "ab"[label if is_right else 1 - label]} for label, is_right in each])
        for each in (zip(labels, each, strict=True) for each in right)
    )
    accuracy = compare_answers(one, other)["accuracy"]
    differences = right[1].astype(float) - right[0]
    assert accuracy["difference"] == pytest.approx(differences.mean())
    # For a mean the standard error is known without resampling; 200 resamples have it to 5 %.
    error = differences.std(ddof=1) / np.sqrt(600)
    assert accuracy["high"] - accuracy["low"] == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_both_are_measured_as_evaluate_does(tiny_model: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", *DATA)
    one, other = saved(tmp_path, tiny_model, 0), saved(tmp_path, tiny_model, 1)
    found = compare(one, other, data)
    for place, which in ((one, "one"), (other, "other")):
        measured = evaluate(place, data)
        assert {name: values[which] for name, values in found["metrics"].items()} == measured["metrics"]
    assert (found["n"], found["positive_label"]) == (3, "b")
    for values in compare(one, one, data)["metrics"].values():
        assert values["low"] == values["difference"] == values["high"] == 0


def test_models_of_different_tasks_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", *DATA)
    one = saved(tmp_path, tiny_model, 0)
    with pytest.raises(InputError, match="for classification and for regression: expected two for the same kind"):
        compare(one, saved(tmp_path, tiny_model, 1, name="regression", labels=None), data)
    with pytest.raises(InputError, match="labels of the models are a, b and a, c: expected the same"):
        compare(one, saved(tmp_path, tiny_model, 2, labels=["a", "c"]), data)
    with pytest.raises(InputError, match="expected a file, not standard input"):
        compare(one, one, "-")
