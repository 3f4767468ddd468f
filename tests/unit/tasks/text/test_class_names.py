"""Labels that are numbers in a Parquet file which names them, as `Dataset.to_parquet` of Hugging Face writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.files import write_rows
from support.tasks import new_task
from unmask.tasks.base import ExampleCounts

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")


def write(path: Path, labels: list[Any], feature: Any, text: str = "text") -> Path:
    told = json.dumps({"info": {"features": {"label": feature}}})
    table = pyarrow.table({text: ["t"] * len(labels), "label": labels})
    parquet.write_table(table.replace_schema_metadata({"huggingface": told}), path)
    return path


def class_label(*names: str) -> dict[str, Any]:
    return {"names": list(names), "_type": "ClassLabel"}


def labels_in(path: Path, **settings: Any) -> tuple[tuple[str, ...], list[Any], int]:
    """The labels of the task, those of the examples, and how many examples have none."""
    task, counts = new_task(**settings).fit_to(path), ExampleCounts()
    return task.labels, [one.label for one in task.load(path, counts)], counts.unlabelled


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.parquet"


def test_numbers_have_their_names_and_minus_one_is_no_label(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(path, [1, -1, 0, -1], class_label("pos", "neg"))
    assert labels_in(path) == (("neg", "pos"), ["neg", "pos"], 2)
    assert not caplog.messages
    assert labels_in(path, labels=["-1", "pos", "neg"])[1:] == (["neg", "-1", "pos", "-1"], 0)


def test_labels_agree_with_those_of_other_files(path: Path) -> None:
    write(path, [1, 0], class_label("neg", "pos"))
    for known in (["neg", "pos"], [0, 1]):
        rows = [{"text": "t", "label": label} for label in known]
        task = new_task().fit_to(write_rows(path.with_suffix(".jsonl"), *rows))
        assert [one.label for one in task.load(path, ExampleCounts())] == [str(known[1]), str(known[0])]


def test_a_file_has_names_or_numbers_never_both(path: Path) -> None:
    write(path, [0, 1, 2, 1], class_label("1", "2", "many"))
    rows = [{"text": "t", "label": label} for label in range(3)]
    task = new_task().fit_to(write_rows(path.with_suffix(".jsonl"), *rows))
    assert [one.label for one in task.load(path, ExampleCounts())] == ["0", "1", "2", "1"]


def test_numbers_have_their_names_where_the_task_knows_these_too(path: Path) -> None:
    write(path, [1, 0], class_label("neg", "pos"))
    assert labels_in(path, labels=["0", "1", "neg", "pos"])[1] == ["pos", "neg"]


def test_a_number_beyond_the_names_stays(path: Path) -> None:
    write(path, [0, 2, 1, -2], class_label("neg", "pos"))
    assert labels_in(path)[1:] == (["neg", "2", "pos", "-2"], 0)


def test_published_sets_keep_their_labels(path: Path) -> None:
    write(path, [1, 0, -1], class_label("negative", "positive"), "sentence")
    assert labels_in(path, name="sst2") == (("0", "1"), ["1", "0"], 1)


def test_lists_of_numbers_have_their_names(path: Path) -> None:
    write(path, [[0, 1], [], [1]], {"feature": class_label("x", "y"), "_type": "List"})
    assert labels_in(path, multi_label=True) == (("x", "y"), [("x", "y"), (), ("y",)], 0)


def test_a_regression_reads_the_numbers(path: Path) -> None:
    write(path, [0, 2, 4], class_label("bad", "fair", "good", "fine", "superb"))
    task = new_task(name="regression").fit_to(path)
    assert [one.label for one in task.load(path, ExampleCounts())] == [0, 2, 4]
