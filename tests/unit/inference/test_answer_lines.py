"""Predictions as a table: every value in a column of its own, and nothing lost."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.errors import InputError
from unmask.inference.answer_lines import table_lines
from unmask.io.rows import stop
from unmask.io.settings import TableSettings
from unmask.io.tables import open_table

texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0")) | st.text("a \r\n,\"'")


def test_inputs_and_answers_side_by_side() -> None:
    given = {"n": 7, "text": 'a "b", c\nd', "label": "x"}
    predictions = [
        {"id": 7, "input": given, "label": "y", "probabilities": {"x": 0.25, "y": 0.75}},
        {"id": 8, "input": {"n": 8, "text": "글", "label": None}, "label": "x", "probabilities": {"x": 1.0, "y": 0.0}},
    ]
    text = "\r\n".join(table_lines(predictions))
    assert text.startswith("\ufeffn,text,input.label,id,label,probabilities.x,probabilities.y\r\n")
    first, second = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""))
    assert (first["text"], first["input.label"]) == ('a "b", c\nd', "x")
    assert (first["label"], first["probabilities.y"]) == ("y", "0.75")
    assert (second["text"], second["input.label"], second["id"]) == ("글", "", "8")


def test_predictions_are_predicted_again_and_no_column_is_lost() -> None:
    given = {"text": "a", "input.label": "gold", "label": "first", "probabilities.y": "0.99"}
    text = "\r\n".join(table_lines([{"input": given, "label": "y", "probabilities": {"y": 0.5}}]))
    [row] = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""))
    assert row == {
        "text": "a",
        "input.label": "gold",
        "input.input.label": "first",
        "input.probabilities.y": "0.99",
        "label": "y",
        "probabilities.y": "0.5",
    }


def test_lists_are_json_and_new_fields_are_refused() -> None:
    rows = [{"input": {"text": "a"}, "tags": ["O", "가"]}, {"input": {"text": "b", "more": 1}, "tags": []}]
    lines = table_lines(rows)
    assert [next(lines), next(lines)] == ["\ufefftext,tags", 'a,"[""O"", ""가""]"']
    with pytest.raises(InputError, match="input 2 has the field 'more', and the first input has not"):
        next(lines)


@given(st.lists(st.tuples(texts, texts), min_size=1))
def test_our_reader_finds_every_cell_again(cells: list[tuple[str, str]]) -> None:
    predictions = [{"input": {"text": text, "note": note}, "label": "y"} for text, note in cells]
    written = "".join(f"{line}\n" for line in table_lines(predictions)).removeprefix("\ufeff")
    lines = enumerate((line.decode() for line in io.BytesIO(written.encode())), start=1)
    table = open_table(".csv", lines, "a", TableSettings(), stop)
    assert table is not None
    assert [tuple(row.fields.values()) for row in table.rows] == [(text, note, "y") for text, note in cells]
