"""Documents from tables: what is written in a column comes back from it; what does not fit is told by row."""

from __future__ import annotations

import csv
import gzip
import io
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from support.commands import type_in
from support.corpora import SKIP, STOP, read, refused
from support.files import write
from unmask.corpus.documents import CorpusCounts, Document
from unmask.corpus.reading import read_files
from unmask.corpus.settings import ReadingSettings

ANY_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


def texts(path: Path, settings: ReadingSettings = STOP) -> list[str]:
    return [document.text for document in read(path, settings)[0]]


# ---------------------------------------------------------------------------------------------------------- csv and tsv


def test_places_are_the_lines_on_which_rows_begin(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b'n,text\n1,"two\nlines"\n\n2,"""quoted"", too"\n')
    assert read(path)[0] == [Document("two\nlines", f"{path}:2"), Document('"quoted", too', f"{path}:5")]


def test_a_header_without_the_column_tells_what_there_is(tmp_path: Path) -> None:
    for name, content in (("a.csv", b"id,body\n1,x\n"), ("a.tsv", b"id\tbody\n1\tx\n")):
        path = write(tmp_path / name, content)
        told = f"{path}:1: no column 'text' (there is 'id', 'body'): name another with --column"
        assert refused(path).startswith(told)
        documents, counts = read(path, SKIP)
        assert (documents, counts.skipped) == ([], {"no such column": 1})
    path = write(tmp_path / "b.csv", b"id,te\xc2\xadxt\n1,x\n")  # with a soft hyphen, which nobody sees
    assert r"--column NAME (in a recipe reading.column=NAME). It is written 'te\xadxt', where" in refused(path)


def test_a_text_in_place_of_the_header_is_not_told_in_full(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "x" * 200_000)
    csv.field_size_limit(131_072)  # as Python has it
    told = refused(path)
    assert told.startswith(f"{path}:1: no column 'text' (there is '{'x' * 100}...'): name another with --column")


NOT_CSV = "not CSV in the row that begins here"


@pytest.mark.parametrize(
    ("name", "content", "lines", "told", "left"),
    [
        ("a.csv", b"n,text\n1,a\n2,b,c\n3,d\n", "3", "3 fields where the header has 2 (n, text)", ["a", "d"]),
        ("a.tsv", b"n\ttext\n1\ta\n2\n3\td\n", "3", "1 fields where the header has 2 (n, text)", ["a", "d"]),
        ("a.csv", b'n,text\n1,"a\nb"x\n3,d\n', "2-3", f"{NOT_CSV} (',' expected after '\"')", ["d"]),
        ("a.csv", b'n,text\n1,a\n2,"b\n3,d\n', "3-4", f"{NOT_CSV} (unexpected end of data)", ["a"]),
        ("a.csv", b"n,text\n1,a\rb\n3,d\n", "2", "a CR alone in the row that begins here", ["d"]),
    ],
)
def test_a_wrong_row_is_told_with_its_line(
    tmp_path: Path, name: str, content: bytes, lines: str, told: str, left: list[str]
) -> None:
    path = write(tmp_path / name, content)
    assert refused(path).startswith(f"{path}:{lines}: {told}")
    assert texts(path, SKIP) == left
    assert sum(read(path, SKIP)[1].skipped.values()) == 1


def test_a_tsv_whose_rows_do_not_fit_is_told_how_to_be_read_with_quotes(tmp_path: Path) -> None:
    told = refused(write(tmp_path / "a.tsv", 'n\ttext\n1\t"a\nb"\n'))
    assert "if yours are between quotes, give --quoted (in a recipe reading.quoted=true)" in told


# -------------------------------------------------------------------------------------------------------------- parquet


def table(path: Path, rows: int = 1_000, **options: Any) -> list[str]:
    written = [f"text {number}\n한글" for number in range(rows)]
    parquet.write_table(pa.table({"n": range(rows), "body": written, "other": written}), path, **options)
    return written


@given(st.lists(ANY_TEXT), st.sampled_from([pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]))
def test_parquet_holds_any_text(written: list[str], type: pa.DataType) -> None:
    file = io.BytesIO()
    parquet.write_table(pa.table({"text": pa.array(written, type)}), file)
    with pytest.MonkeyPatch.context() as monkeypatch:
        type_in(monkeypatch, file.getvalue())
        assert texts(Path("-"), ReadingSettings(format="parquet")) == written


def test_parquet_is_read_by_row_groups_and_places_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    written = table(path, row_group_size=300)
    documents, counts = read(path, ReadingSettings(column="body"))
    assert documents == [Document(text, f"{path}:{number}") for number, text in enumerate(written, start=1)]
    assert counts == CorpusCounts(files=1, file_bytes=path.stat().st_size)


def test_compressed_parquet_is_unpacked_first(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.parquet", tmp_path / "a.parquet.gz"
    written = table(plain)
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    documents, counts = read(packed, ReadingSettings(column="body"))
    assert [document.text for document in documents] == written
    assert counts.file_bytes == packed.stat().st_size


def test_rows_without_a_text_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": ["one", None, "", None]}), path)
    assert refused(path).startswith(f"{path}:2: column 'text' is null in this row: expected a text")
    documents, counts = read(path, SKIP)
    assert [document.source for document in documents] == [f"{path}:1", f"{path}:3"]
    assert counts.skipped == {"no text": 2}


@pytest.mark.parametrize(
    ("values", "type"),
    [([1, 2], "int64"), ([["a"], ["b"]], "list<"), ([b"a", b"b"], "binary"), ([{"x": "a"}], "struct<")],
)
def test_a_column_of_another_type_is_told(tmp_path: Path, values: list[object], type: str) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": values}), path)
    message = refused(path)
    assert message.startswith(f"{path}: column 'text' is of type {type}")
    assert "expected string" in message
    assert read(path, SKIP)[1].skipped == {"not a column of strings": 1}


def test_a_parquet_without_the_column_tells_what_there_is(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table(path)
    assert refused(path).startswith(f"{path}: no column 'text' (there is 'n', 'body', 'other'): name another")
    assert read(path, SKIP)[1].skipped == {"no such column": 1}


@pytest.mark.parametrize("damage", ["cut", "not parquet", "empty", "flipped"])
def test_a_damaged_parquet_is_told(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.parquet"
    table(path, compression="zstd", write_page_checksum=True)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[parquet.read_metadata(path).row_group(0).column(1).data_page_offset + 100] ^= 1
    damaged = {"cut": whole[:-10], "not parquet": b"text\n" * 9, "empty": b"", "flipped": bytes(flipped)}
    write(path, damaged[damage])
    assert refused(path, ReadingSettings(column="body")).startswith(f"{path}: not a sound Parquet file (")
    counts = read(path, ReadingSettings(column="body", on_error="skip"))[1]
    assert counts.skipped == {"damaged file": 1}


@pytest.mark.parametrize("type", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_a_text_that_is_stored_once_is_not_in_memory_for_every_row(tmp_path: Path, type: pa.DataType) -> None:
    """A file of a few kilobytes may hold millions of rows of megabytes each."""
    path, long = tmp_path / "a.parquet", "x" * 10_000_000
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 300_000, pa.int32()), [long])
    parquet.write_table(pa.table({"text": column}), path, compression="zstd", store_schema=pa.types.is_dictionary(type))
    before = pa.total_allocated_bytes()
    documents = read_files([path], CorpusCounts(), ReadingSettings())
    tracemalloc.start()
    assert [next(documents).text == long for _ in range(3)] == [True] * 3
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < 500e6
