"""What `evaluate` says beside its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.files import write_rows
from support.untrained import save_task_model
from unmask.inference.evaluation import evaluate
from unmask.tasks.settings import ColumnSettings


def test_labels_that_no_example_has_are_told(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"name": "classification", "labels": ["a", "b", "c"], "multi_label": True, "max_length": 32}
    model = save_task_model(tmp_path / "model", tiny_model, ColumnSettings(), std=0.5, **settings)
    data = write_rows(tmp_path / "data.jsonl", {"text": "a man", "label": ["b"]}, {"text": "a dog", "label": []})
    evaluate(model, data)
    assert f"{data}: no example has 2 of the 3 labels: each of them counts as 0 in f1_macro" in caplog.text
