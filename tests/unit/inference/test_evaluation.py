"""What `evaluate` says beside its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.files import write_rows
from support.untrained import save_task_model
from unmask.inference.evaluation import evaluate, named_figures
from unmask.tasks.qa.examples import QaExample
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import open_task


def test_labels_that_no_example_has_are_told(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"name": "classification", "labels": ["a", "b", "c"], "multi_label": True, "max_length": 32}
    model = save_task_model(tmp_path / "model", tiny_model, ColumnSettings(), std=0.5, **settings)
    data = write_rows(tmp_path / "data.jsonl", {"text": "a man", "label": ["b"]}, {"text": "a dog", "label": []})
    evaluate(model, data)
    assert f"{data}: no example has 2 of the 3 labels: each of them counts as 0 in f1_macro" in caplog.text


def test_progress_says_of_how_many_examples(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unmask.io.progress.FIRST_SHOWN_S", 0.0)
    model = save_task_model(tmp_path / "model", tiny_model, ColumnSettings(), labels=["a", "b"], max_length=32)
    data = write_rows(tmp_path / "data.jsonl", {"text": "a man", "label": "b"}, {"text": "a dog", "label": "a"})
    evaluate(model, data)
    assert "evaluating: 100 % · 2 of 2 examples" in capsys.readouterr().err


def test_the_threshold_of_the_model_comes_before_that_of_the_answers() -> None:
    task = open_task(TaskSettings(name="squad2"), ColumnSettings())
    score = task.score()
    golds = [QaExample("1", "?", "", None, answers, {}, "x:1") for answers in (("kite",), ())]
    score.add(golds, [{"answer": "kite", "no_answer_probability": 0.2}] * 2)
    names = [*named_figures(task, score)["metrics"]]
    assert names[0] == "f1"
    assert names[-4:] == ["best_f1", "best_f1_thresh", "best_exact", "best_exact_thresh"]
