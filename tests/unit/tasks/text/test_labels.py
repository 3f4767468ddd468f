"""Labels as people's files have them: what is asked about, because it may mean something else, and what is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.files import write
from support.tasks import new_task
from unmask.errors import InputError, SettingsError
from unmask.tasks.base import ExampleCounts
from unmask.tasks.settings import ColumnSettings


def labels_of(tmp_path: Path, cells: list[str], **settings: Any) -> tuple[str, ...]:
    path = write(tmp_path / "a.tsv", "text\tlabel\n" + "".join(f"a\t{label}\n" for label in cells))
    labels: tuple[str, ...] = new_task(**settings).fit_to(path).labels
    return labels


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (["0", "1", "nan"], r"a\.tsv:4: the label 'nan', as programs write a missing value: fill it in"),
        (["x", "NaN"], r"a\.tsv:3: the label 'NaN'"),
        (["x", "#N/A"], r"a\.tsv:3: the label '#N/A', as programs write a missing value: fill it in"),
        (["x", "#DIV/0!"], r"a\.tsv:3: the label '#DIV/0!', as programs"),
        (["x", "n/a"], r"a\.tsv:3: the label 'n/a', as programs"),
        (["x", "NULL"], r"a\.tsv:3: the label 'NULL', as programs"),
        (["x", "None"], r"a\.tsv:3: the label 'None', as programs"),
        (["0", "1", "1.0"], r"a\.tsv:4: the label '1\.0' is the number of '1' \(.*a\.tsv:3\): write it one way"),
        (
            ["a", "b", "a|b"],
            r"a\.tsv:4: .*'a\|b' looks like several .*task\.multi_label=true task\.label_separator='\|'",
        ),
        (["a", "b", "a;b"], r"'a;b' looks like several with ';' between them: .*task\.label_separator=';'"),
        (["a;b", "b;c", "a;c"], r"'a;b' looks like several"),
        (["a", "b", "a, b"], r"'a, b' looks like several with ',' between them"),
    ],
)
def test_labels_that_may_be_something_else_are_asked_about(tmp_path: Path, labels: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        labels_of(tmp_path, labels)
    assert labels_of(tmp_path, labels, labels=labels) == tuple(labels)  # listed, they are what they are


def test_minus_one_beside_other_numbers_may_be_no_label(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert labels_of(tmp_path, ["1", "-1", "0"]) == ("-1", "0", "1")
    assert "labels -1, 0, 1: if -1 means that there is no label, take out its rows, the first of which" in caplog.text
    assert "a.tsv:3; if it is one, list all in task.labels" in caplog.text
    caplog.clear()
    labels_of(tmp_path, ["1", "-1", "0"], labels=["-1", "0", "1"])
    labels_of(tmp_path, ["1", "-1"])
    assert not caplog.messages


def test_a_table_that_pandas_wrote_by_column_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", '{"text": {"0": "fine"}, "label": {"0": "good"}}')
    with pytest.raises(
        InputError, match=r'a\.json: item 1: the column \'label\' .*; pandas writes .*orient="records", lines=True'
    ):
        new_task().fit_to(path)


NOTHING_ELSE = (
    *(["0.0", "1.0"], ["1", "2", "10"], ["New York, NY", "Los Angeles, CA"]),
    *(["yes", "no", "yes, but"], ["none", "some"]),
)


@pytest.mark.parametrize("labels", NOTHING_ELSE, ids=str)
def test_labels_that_are_nothing_else_are_taken(tmp_path: Path, labels: list[str]) -> None:
    assert set(labels_of(tmp_path, labels)) == set(labels)


def test_missing_values_are_asked_about_among_many_labels(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.tsv:4: the label 'nan', as programs write a missing value: fill it in"):
        labels_of(tmp_path, ["a", "a,b", "nan"], multi_label=True)
    assert labels_of(tmp_path, ["a", "nan"], multi_label=True, labels=["a", "nan"]) == ("a", "nan")


@pytest.mark.parametrize("mark", ["|", ";"])
def test_a_wrong_separator_of_many_labels_is_asked_about(tmp_path: Path, mark: str) -> None:
    cells = ["a", f"a{mark}b", f"b{mark}c"]
    with pytest.raises(InputError, match=rf"a\.tsv:3: .*give task\.label_separator='\{mark}'"):
        labels_of(tmp_path, cells, multi_label=True)
    assert labels_of(tmp_path, cells, multi_label=True, label_separator=mark) == ("a", "b", "c")


def test_a_column_of_0_and_1_for_each_label(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,toxic,insult\na,1,0\nb,0.0,True\nc,0,0\n")
    columns = ColumnSettings(labels=("toxic", "insult"))
    task = new_task(columns=columns, multi_label=True).fit_to(path)
    assert task.labels == ("toxic", "insult")
    assert [example.label for example in task.load(path, ExampleCounts())] == [("toxic",), ("insult",), ()]
    kept = task.remembered()
    assert kept["columns"]["labels"] == ("toxic", "insult")
    path.write_text("text,toxic,insult\na,2,0\n")
    with pytest.raises(InputError, match=r"a\.csv:2: the column 'toxic' holds \"2\": expected 1 where the text has"):
        list(task.load(path, ExampleCounts()))
    with pytest.raises(SettingsError, match=r"give task\.multi_label=true too"):
        new_task(columns=columns)
