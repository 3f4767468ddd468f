"""Two models on the same examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, f1_score

from support.files import write_rows
from support.untrained import save_task_model
from unmask.errors import InputError
from unmask.experiments.compare import compare, compare_answers
from unmask.inference.evaluation import evaluate
from unmask.inference.predictor import predict
from unmask.tasks.base import Task
from unmask.tasks.kinds import FACTS
from unmask.tasks.qa.examples import QaExample
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import open_task
from unmask.tasks.text.examples import TextExample

DATA = [{"text": "a man", "label": "a"}, {"text": "the dog", "label": "b"}, {"text": "an old house", "label": "b"}]


def saved(tmp_path: Path, base: Path, seed: int, **settings: Any) -> Path:
    given = {"labels": ["a", "b"], "max_length": 32, **settings}
    return save_task_model(tmp_path / f"model{seed}", base, seed=seed, std=0.5, **given)


def labelled(task: Task[Any], labels: NDArray[np.int64]) -> list[TextExample[str]]:
    return [TextExample("x", None, task.labels[label], {}, f"x:{number}") for number, label in enumerate(labels)]


def test_the_interval_is_that_of_the_examples() -> None:
    task = open_task(TaskSettings(name="classification", labels=["a", "b"]), ColumnSettings())
    rng = np.random.default_rng(1)
    labels = rng.integers(2, size=600)
    right = rng.random((2, 600)) < np.array([[0.7], [0.8]])
    one, other = (
        [{"label": "ab"[label if is_right else 1 - label]} for label, is_right in zip(labels, each, strict=True)]
        for each in right
    )
    accuracy = compare_answers(task, labelled(task, labels), one, other)["accuracy"]
    differences = right[1].astype(float) - right[0]
    assert accuracy["difference"] == pytest.approx(differences.mean())
    # For a mean the standard error is known without resampling; 200 resamples have it to 5 %.
    error = differences.std(ddof=1) / np.sqrt(600)
    assert accuracy["high"] - accuracy["low"] == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_numbers_of_questions_are_not_compared() -> None:
    task = open_task(TaskSettings(name="squad2"), ColumnSettings())
    golds = [QaExample("1", "?", "", None, answers, {}, f"x:{n}") for n, answers in enumerate((("kite",), ()) * 20)]
    answers = [{"answer": "kite", "no_answer_probability": 0.2}] * 40
    metrics = compare_answers(task, golds, answers, answers)
    assert metrics["f1"]["one"] == metrics["f1"]["other"] == 50
    assert {"HasAns_f1", "best_f1"} <= metrics.keys()
    assert not [name for name in metrics if name.endswith(("total", "thresh"))]


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


def test_labels_in_another_order_have_the_same_f1(tiny_model: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", *DATA)
    one = saved(tmp_path, tiny_model, 0)
    other = saved(tmp_path, tiny_model, 1, labels=["b", "a"])
    found = compare(one, other, data)
    accuracy, f1 = (found["metrics"][name] for name in ("accuracy", "f1"))
    for which, place in (("one", one), ("other", other)):
        answers = [answer["label"] for answer in predict(place, [{"text": row["text"]} for row in DATA])]
        truth = [row["label"] for row in DATA]
        assert accuracy[which] == pytest.approx(accuracy_score(truth, answers))
        assert f1[which] == pytest.approx(f1_score(truth, answers, pos_label="b", zero_division=0))


def test_models_that_read_other_labels_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", *({**row, "gold": "a"} for row in DATA))
    one = saved(tmp_path, tiny_model, 0)
    other = saved(tmp_path, tiny_model, 1, columns=ColumnSettings(label="gold"))
    with pytest.raises(InputError, match="do not read the same examples and labels"):
        compare(one, other, data)
    assert compare(one, other, data, {"label": "gold"})["n"] == 3


@pytest.mark.parametrize(
    ("wrong", "error"), [({"truth": "another"}, AttributeError), ({"decision": ("another",)}, AssertionError)]
)
def test_a_kind_without_what_is_compared_does_not_pass_as_alike(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], error: type[Exception]
) -> None:
    model = saved(tmp_path, tiny_model, 0)
    data = write_rows(tmp_path / "data.jsonl", *DATA)
    monkeypatch.setitem(FACTS, "classification", FACTS["classification"]._replace(**wrong))
    with pytest.raises(error, match=r"another|none of the keys"):
        compare(model, model, data)


def test_figures_are_there_where_a_recipe_cannot_be_read(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = write_rows(tmp_path / "data.jsonl", *DATA)
    runs = [tmp_path / name for name in ("x", "y")]
    for seed, run in enumerate(runs):
        saved(run, tiny_model, seed).rename(run / "model")
        (run / "recipe.yaml").write_text("old_key: 3\n")
    assert compare(*runs, data)["settings"] == {}
    assert "how the recipes differ is not known" in caplog.text


def test_models_of_different_tasks_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", *DATA)
    one = saved(tmp_path, tiny_model, 0)
    with pytest.raises(InputError, match="for classification and for regression: expected two for the same kind"):
        compare(one, saved(tmp_path, tiny_model, 1, name="regression", labels=None), data)
    with pytest.raises(InputError, match="labels of the models are a, b and a, c: expected the same"):
        compare(one, saved(tmp_path, tiny_model, 2, labels=["a", "c"]), data)
    with pytest.raises(InputError, match="expected a file, not standard input"):
        compare(one, one, "-")
    with pytest.raises(InputError, match="nowhere"):
        compare(one, one, tmp_path / "nowhere.jsonl")
