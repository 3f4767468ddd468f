"""Rows of files: what quoting means where, what is passed over, and what is refused, each time naming file and line."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from unmask.errors import InputError
from unmask.tasks.examples import Row, choose_columns, read_csv, read_example, read_rows, read_tsv
from unmask.tasks.settings import ColumnSettings

SINGLE = ColumnSettings(text="text")
PAIR = ColumnSettings(text_a="text_a", text_b="text_b")


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def fields(path: Path) -> list[dict[str, Any]]:
    return [dict(row.fields) for row in read_rows(path)]


def test_a_quotation_mark_in_a_tsv_is_a_character(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'text\tlabel\n"so-called\t0\n"b"\t1\nlast , one\t1')
    assert fields(path) == [
        {"text": '"so-called', "label": "0"},
        {"text": '"b"', "label": "1"},
        {"text": "last , one", "label": "1"},
    ]


def test_a_quotation_mark_in_a_csv_protects(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text,label\r\n"one, ""two""\nand three",x\r\nplain,y\r\n')
    rows = list(read_rows(path))
    assert [dict(row.fields) for row in rows] == [
        {"text": 'one, "two"\nand three', "label": "x"},
        {"text": "plain", "label": "y"},
    ]
    assert [row.source for row in rows] == [f"{path}:2", f"{path}:4"]  # the lines that they begin on


def test_byte_order_mark_and_empty_lines_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "\ufefftext\tlabel\r\n\r\na\t0\r\n\n")
    assert fields(path) == [{"text": "a", "label": "0"}]


def test_an_empty_text_is_a_text(tmp_path: Path) -> None:
    assert fields(write(tmp_path / "a.tsv", "id\tdocument\tlabel\n402110\t\t1\n"))[0]["document"] == ""
    assert fields(write(tmp_path / "b.csv", "text\na\n\nb\n")) == [{"text": "a"}, {"text": ""}, {"text": "b"}]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files_hold_the_same_rows(tmp_path: Path, suffix: str) -> None:
    plain = write(tmp_path / "a.jsonl", '{"text": "하나", "n": 1}\n\n{"text": "둘"}\n')
    pack = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix]
    packed = tmp_path / f"a.jsonl{suffix}"
    packed.write_bytes(pack(plain.read_bytes()))
    assert fields(packed) == fields(plain) == [{"text": "하나", "n": 1}, {"text": "둘"}]
    packed.write_bytes(packed.read_bytes()[:-5])
    with pytest.raises(InputError, match="damaged or cut short"):
        fields(packed)


texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))


@given(st.lists(st.tuples(texts, texts), min_size=1))
def test_whatever_csv_can_hold_comes_back(rows: list[tuple[str, str]]) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("text", "label"), *rows])
    lines = enumerate((line.decode() for line in io.BytesIO(file.getvalue().encode())), start=1)
    assert [(row.fields["text"], row.fields["label"]) for row in read_csv(lines, "a.csv")] == rows


@given(st.lists(st.tuples(*[st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\t\r\n"))] * 2)))
def test_whatever_tsv_can_hold_comes_back(rows: list[tuple[str, str]]) -> None:
    text = "".join("\t".join(row) + "\n" for row in [("text", "label"), *rows])
    lines = enumerate((line.decode() for line in io.BytesIO(text.encode())), start=1)
    assert [(row.fields["text"], row.fields["label"]) for row in read_tsv(lines, "a.tsv")] == rows


def test_a_text_of_three_million_characters(tmp_path: Path) -> None:
    long = "word " * 600_000
    assert fields(write(tmp_path / "a.csv", f"text,label\n{long},x\n"))[0]["text"] == long


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.tsv", b"text\tlabel\na\t0\nb\n", r"a\.tsv:3: 1 fields where the header has 2 \(text, label\)"),
        ("a.tsv", b"text\tlabel\na\tb\t0\n", r"a\.tsv:2: 3 fields where the header has 2"),
        ("a.csv", b"text,label\na,b,0\n", r"a\.csv:2: 3 fields where the header has 2"),
        ("a.csv", b'text,label\nx,0\n"never closed,1\nz,0\n', r"a\.csv:3: not CSV in the row that begins here"),
        ("a.csv", b'text,label\n"a" b,1\n', r"a\.csv:2: not CSV"),
        ("a.tsv", b"text\ttext\na\t0\n", r"a\.tsv:1: the header names 'text' twice"),
        ("a.tsv", b"text\tlabel\nfine\t0\nbad \xff\t1\n", r"a\.tsv:3: not UTF-8 at byte 22 .*0xff"),
        ("a.jsonl", b'{"text": "a"}\n["text"]\n', r"a\.jsonl:2: expected a JSON object"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl:2: not JSON"),
        ("a.tsv", b"", r"a\.tsv: there is not a single row in it"),
        ("a.csv", b"text,label\n", r"a\.csv: there is not a single row in it"),
        ("a.jsonl", b"\n", r"a\.jsonl: there is not a single row in it"),
        ("a.xlsx", b"PK", r"a\.xlsx: unknown kind of file: expected \.tsv, \.tsv\.gz"),
    ],
)
def test_refused(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=told):
        fields(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.tsv: cannot be read: No such file"):
        fields(tmp_path / "absent.tsv")
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(InputError, match="Is a directory"):
        fields(tmp_path / "folder.tsv")


def test_columns_are_the_first_that_fit() -> None:
    assert choose_columns([SINGLE, PAIR], Row({"text_a": "a", "text_b": "b"}, "x:1")) is PAIR
    assert choose_columns([SINGLE, PAIR], Row({"text": "a", "text_a": "a", "text_b": "b"}, "x:1")) is SINGLE
    with pytest.raises(
        InputError, match="x:1: no column 'text': expected text, or text_a and text_b; there is review, stars"
    ):
        choose_columns([SINGLE, PAIR], Row({"review": "a", "stars": 3}, "x:1"))


@pytest.mark.parametrize(("value", "label"), [("a", "a"), (3, "3"), (True, "true"), (0.5, "0.5"), (" ", " ")])
def test_labels_are_read_as_text(value: object, label: str) -> None:
    assert read_example(Row({"text": "a", "label": value}, "x:1"), SINGLE).label == label


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"text": "a"}, "x:7: no column 'label' for the label: there is text"),
        ({"text": "a", "label": ""}, "x:7: the label label is empty"),
        ({"text": "a", "label": None}, "x:7: the label label is empty"),
        ({"text": "a", "label": ["b"]}, r'x:7: the label label is \["b"\]'),
        ({"text": 5, "label": "b"}, "x:7: text is 5: expected a text"),
        ({"text": json.loads('"\\ud800"'), "label": "b"}, r"x:7: text holds half of a surrogate pair, \\ud800"),
    ],
)
def test_examples_refused(row: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_example(Row(row, "x:7"), SINGLE)


def test_a_label_that_says_there_is_none() -> None:
    row = Row({"text_a": "a", "text_b": "b", "label": "-"}, "x:1")
    assert read_example(row, PAIR, unlabelled={"-"}).label is None
    assert read_example(row, PAIR).label == "-"
    assert read_example(Row({"text": "a"}, "x:1"), SINGLE, labelled=False).label is None
