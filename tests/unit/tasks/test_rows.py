"""Columns that look like the missing one: every task names them as they are written."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest

from support.files import write_rows
from support.tasks import new_task
from unmask.errors import ColumnError, InputError
from unmask.io.rows import Row
from unmask.tasks.base import ExampleCounts, Task
from unmask.tasks.rows import choose_layout, missing_column
from unmask.tasks.settings import ColumnSettings

CHOICE = new_task("choice", ColumnSettings(context="문맥", choices="보기", label="정답"))
QA = new_task("qa", ColumnSettings(question="질문", context="문맥", answers="정답"))
TAGGING = new_task("tagging", ColumnSettings(tokens="단어", tags="품사"))
SIMILAR = {name: f"{name}\u200b" for name in ("문맥", "정답", "단어", "품사")}


@pytest.mark.parametrize(
    ("task", "fields", "missing"),
    [
        (CHOICE, {"보기": ["a", "b"], "정답": 0}, "문맥"),
        (CHOICE, {"문맥": "c", "보기": ["a", "b"]}, "정답"),
        (QA, {"질문": "Who?", "정답": "a"}, "문맥"),
        (QA, {"질문": "Who?", "문맥": "a b"}, "정답"),
        (TAGGING, {"품사": "O O"}, "단어"),
        (TAGGING, {"단어": "a b"}, "품사"),
    ],
)
def test_the_column_that_looks_like_the_missing_one_is_named(
    task: Task[Any, Any, Any], fields: dict[str, Any], missing: str, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "a.jsonl", {**fields, SIMILAR[missing]: "a"})
    told = f" It is written {SIMILAR[missing]!a}, where {missing!a} is meant: write both one way. Name "
    with pytest.raises(InputError, match=rf"^{path}:1: no column '{missing}'") as refused:
        list(task.fit_to(path).load(path, ExampleCounts()))
    assert told in str(refused.value)


def test_a_column_is_found_as_macos_writes_it_if_there_is_one() -> None:
    apart = normalize("NFD", "정답")
    for there, name in ((apart, "정답"), ("정답", apart)):
        row = Row({there: "a", "text": "b"}, "a:1")
        assert name in row
        assert row[name] == "a"
    assert Row({apart: "a", "정답": "b"}, "a:1")["정답"] == "b"
    between = normalize("NFC", "정") + normalize("NFD", "답")
    assert between not in Row({apart: "a", "정답": "b"}, "a:1"), "which of the two is not known"


@pytest.mark.parametrize(
    ("fields", "missing"),
    [({"text_a": "a"}, "'text_b'"), ({"two": "a"}, "'one'"), ({"other": "a"}, "'one' and no column 'two'")],
)
def test_the_column_is_missing_that_is_not_there_beside_another(fields: dict[str, str], missing: str) -> None:
    with pytest.raises(ColumnError, match=rf"^a:1: no column {missing}: expected one and two, or text_a and text_b;"):
        choose_layout([("one", "two"), ("text_a", "text_b")], Row(fields, "a:1"), lambda names: names, "--column")


def test_a_name_without_end_is_cut_and_compared_with_nothing() -> None:
    name = "a" + "\u0301\u0316" * 20_000
    for refused in (
        lambda row: choose_layout([("text",)], row, lambda names: names, "--column"),
        lambda row: missing_column(row, ("label",), "label", "label"),
    ):
        begin = time.process_time()
        with pytest.raises(ColumnError) as error:
            raise refused(Row({name: "x"}, "a:1"))
        assert len(str(error.value)) < 500
        assert time.process_time() - begin < 1
