"""What a model is to answer: tables and texts on standard input, and files whose names do not say what is in them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from support.commands import type_in
from support.tasks import new_task
from unmask.errors import InputError, SettingsError
from unmask.inference.inputs import read_inputs, read_task_inputs
from unmask.tasks.settings import ColumnSettings

CSV = 'id,text\n1,"a man, a dog"\n2,people wait\n'
TSV = "id\ttext\n1\ta man, a dog\n2\tpeople wait\n"
JSONL = '{"id": "1", "text": "a man, a dog"}\n{"id": "2", "text": "people wait"}\n'
ROWS = [{"id": "1", "text": "a man, a dog"}, {"id": "2", "text": "people wait"}]


def inputs(path: str | Path, format: str | None) -> list[dict[str, Any]]:
    return [dict(row.fields) for row in read_inputs(path, format=format)]


@pytest.mark.parametrize(("format", "text"), [("csv", CSV), ("tsv", TSV), ("jsonl", JSONL)])
def test_a_format_says_what_standard_input_and_odd_files_hold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, format: str, text: str
) -> None:
    type_in(monkeypatch, text)
    assert inputs("-", format) == ROWS
    for name in ("inputs", "inputs.dat", "inputs.txt", f"inputs.{format}"):
        (tmp_path / name).write_text(text)
        assert inputs(tmp_path / name, format) == ROWS


def test_texts_may_look_like_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    type_in(monkeypatch, JSONL)
    assert inputs("-", "txt") == [{"text": line} for line in JSONL.splitlines()]
    (tmp_path / "inputs").write_text("a\n\nb\n")
    assert inputs(tmp_path / "inputs", "txt") == [{"text": "a"}, {"text": ""}, {"text": "b"}]


def test_faults_of_standard_input_name_their_line(monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, "id,text\n1,a\n2\n")
    with pytest.raises(InputError, match="standard input:3: 1 fields where the header has 2"):
        inputs("-", "csv")
    type_in(monkeypatch, "")
    with pytest.raises(InputError, match="standard input: there is nothing in it"):
        inputs("-", "csv")


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl.gz", "a.json", "a.parquet"])
def test_a_format_against_the_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=rf"{name} is \.\w+ by its name, and the format is to be tsv: leave one"):
        inputs(tmp_path / name, "tsv")


def test_no_such_format() -> None:
    with pytest.raises(SettingsError, match="no format 'json': did you mean jsonl"):
        inputs("-", "json")


@pytest.mark.parametrize(
    ("header", "format"),
    [
        ("id,review,stars", "csv"),
        ("id\treview", "tsv"),
        ('"review","id"', "csv"),
        ("text,label", "csv"),
        ("id;review", "csv"),
        ("id|review", "csv"),
        ("review", "csv"),
        ('"review"', "csv"),
    ],
)
def test_a_table_is_not_answered_as_texts_unless_it_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, header: str, format: str
) -> None:
    task = new_task(columns=ColumnSettings(text="review"), lenient=True, labels=["a", "b"])
    type_in(monkeypatch, f"{header}\n1,a man\n")
    told = f"standard input:1: read as a text, and it is the header of a table.*give --format {format}"
    with pytest.raises(InputError, match=told):
        list(read_task_inputs("-", task))
    type_in(monkeypatch, f"{header}\n1,a man\n")
    assert len(list(read_task_inputs("-", task, "txt"))) == 2


@pytest.mark.parametrize("text", ["film", "a review, and text", "", "id,film"])
def test_other_texts_are_no_tables(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    task = new_task(columns=ColumnSettings(text="review"), lenient=True, labels=["a", "b"])
    type_in(monkeypatch, f"{text}\na man\n")
    with caplog.at_level(logging.WARNING, logger="unmask"):
        assert len(list(read_task_inputs("-", task))) == 2
    assert not [record for record in caplog.records if text]  # the first line is not looked for further down


def test_a_single_line_is_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    task = new_task(columns=ColumnSettings(text="review"), lenient=True, labels=["a", "b"])
    type_in(monkeypatch, "review\n")
    assert [dict(row.fields) for row in read_task_inputs("-", task)] == [{"text": "review"}]


def test_pairs_on_standard_input_are_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    task = new_task(columns=ColumnSettings(text_a="p", text_b="h"), lenient=True, labels=["a", "b"])
    type_in(monkeypatch, "p,h\na man,a dog\n")
    with pytest.raises(InputError, match=r"standard input:1: a plain text, .* p and h; --format csv or tsv says that"):
        list(read_task_inputs("-", task))
    type_in(monkeypatch, "p,h\na man,a dog\n")
    assert [dict(row.fields) for row in read_task_inputs("-", task, "csv")] == [{"p": "a man", "h": "a dog"}]
