"""Rows of files: what quoting means where, what is passed over, and what is refused, each time naming file and line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
from collections.abc import Iterable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from pydantic import ValidationError

from support.commands import type_in
from support.files import write
from unmask.errors import InputError
from unmask.io.input_files import DataPath, InputFiles, find_inputs
from unmask.io.rows import Row, stop
from unmask.io.settings import TableSettings
from unmask.io.tables import open_table, read_rows, warn_of_notation


def fields(path: DataPath, **options: Any) -> list[dict[str, Any]]:
    return [dict(row.fields) for row in read_rows(path, **options)]


def test_a_quotation_mark_in_a_tsv_is_a_character(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'text\tlabel\n"so-called\t0\n"b"\t1\nlast , one\t1')
    assert fields(path) == [
        {"text": '"so-called', "label": "0"},
        {"text": '"b"', "label": "1"},
        {"text": "last , one", "label": "1"},
    ]


def test_a_quotation_mark_in_a_csv_protects(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text,label\r\n"one, ""two""\nand three",x\r\nplain,y\r\n')
    found = list(read_rows(path))
    assert [dict(row.fields) for row in found] == [
        {"text": 'one, "two"\nand three', "label": "x"},
        {"text": "plain", "label": "y"},
    ]
    assert [row.source for row in found] == [f"{path}:2", f"{path}:4"]  # the lines that they begin on


@pytest.mark.parametrize(("name", "mark"), [("a.tsv", "\t"), ("a.csv", ",")])
def test_byte_order_mark_and_empty_lines_are_passed_over(tmp_path: Path, name: str, mark: str) -> None:
    path = write(tmp_path / name, f"\ufefftext{mark}label\r\n\r\na{mark}0\r\n\n")
    assert fields(path) == [{"text": "a", "label": "0"}]
    path = write(tmp_path / name, f"\n\r\ntext{mark}label\r\n\r\na{mark}0\r\n\n")
    assert [row.source for row in read_rows(path)] == [f"{path}:5"]


def test_an_empty_text_is_a_text(tmp_path: Path) -> None:
    assert fields(write(tmp_path / "a.tsv", "id\tdocument\tlabel\n402110\t\t1\n"))[0]["document"] == ""
    assert fields(write(tmp_path / "b.csv", "text\na\n\nb\n")) == [{"text": "a"}, {"text": ""}, {"text": "b"}]


def test_odd_characters_inside_a_tsv_stay_where_they_are(tmp_path: Path) -> None:
    odd = "a\rbc\ufeffd\u2028e\x85f\x0bg"
    assert fields(write(tmp_path / "a.tsv", f"text\tlabel\r\n{odd}\t1\r\n")) == [{"text": odd, "label": "1"}]
    # One carriage return belongs to the line's end, a second one to the text.
    assert fields(write(tmp_path / "b.tsv", "label\ttext\n1\ta\r\r\n"))[0]["text"] == "a\r"


# ---- Files without header, and rows of too few fields

COLA = ("source", "label", "mark", "sentence")


def test_a_file_without_header_gets_the_names_it_lacks(tmp_path: Path) -> None:
    path = write(tmp_path / "train.tsv", "gj04\t1\t\tThe tea was drunk.\nks08\t0\t*\tThe tea were drunk.\n")
    assert fields(path, header=COLA) == [
        {"source": "gj04", "label": "1", "mark": "", "sentence": "The tea was drunk."},
        {"source": "ks08", "label": "0", "mark": "*", "sentence": "The tea were drunk."},
    ]


@pytest.mark.parametrize("header", ["index\tsentence", "source\tlabel\tmark\tsentence", "a\tb\tc\tsentence"])
def test_a_header_that_is_there_is_read(tmp_path: Path, header: str) -> None:
    row = "\t".join(map(str, range(header.count("\t") + 1)))
    path = write(tmp_path / "a.tsv", f"{header}\n{row}\n")
    assert list(fields(path, header=COLA)[0]) == header.split("\t")


def test_short_rows_are_listed_where_that_is_wanted_and_else_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "id\ta\tb\n1\tx\ty\n2\tbroken\n\nline\tz\n3\tx\ty\n")
    short: list[str] = []
    assert [row["id"] for row in read_rows(path, short_rows=short)] == ["1", "3"]
    assert short == [f"{path}:3", f"{path}:5"]
    with pytest.raises(InputError, match=r"a\.tsv:3: 2 fields where the header has 3"):
        fields(path)
    write(path, "id\ta\n1\tx\ty\n")
    with pytest.raises(InputError, match=r"a\.tsv:2: 3 fields where the header has 2"):
        fields(path, short_rows=[])


# ---- JSON


def test_a_json_list_gives_its_objects_with_their_numbers(tmp_path: Path) -> None:
    content = '\ufeff[\r\n    {\r\n "text": "하나"\r\n},\n\n {"text": "둘"} ,{"text": "셋"}\n]\n'
    path = write(tmp_path / "a.json", content)
    found = list(read_rows(path))
    assert [row["text"] for row in found] == ["하나", "둘", "셋"]
    assert [row.source for row in found] == [f"{path}: item {number}" for number in (1, 2, 3)]


def test_json_lines_that_call_themselves_json(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", '{"text": "a"}\n\n{"text": "b"}\n')
    assert [(row["text"], row.source) for row in read_rows(path)] == [("a", f"{path}:1"), ("b", f"{path}:3")]


json_objects = st.lists(
    st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), st.integers() | st.text('é"[]{}\n,')),
    min_size=1,
)


@given(json_objects, st.sampled_from([None, 1]))
def test_whatever_a_json_list_can_hold_comes_back(
    tmp_path_factory: pytest.TempPathFactory, objects: Any, indent: Any
) -> None:
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_text(json.dumps(objects, indent=indent, ensure_ascii=False), encoding="utf-8")
    assert fields(path) == objects


def test_nested_fields_have_dotted_names() -> None:
    row = Row({"labels": {"real-label": 3.5, "deep": {"er": 1}}, "a.b": 2, "a": {"b": 3}, "c": None}, "x:1")
    assert row["labels.real-label"] == 3.5
    assert row["labels.deep.er"] == 1
    assert row["a.b"] == 2  # the name as it stands goes before
    assert row["c"] is None
    assert "c" in row
    assert "labels.none" not in row
    assert "c.d" not in row
    with pytest.raises(KeyError):
        row["labels.none"]


# ---- Parquet


def test_parquet_gives_the_rows_of_every_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.io.parquet.PARQUET_ROWS", 2)
    path = tmp_path / "a.parquet"
    given = [{"text": f"글 {n}", "label": n % 2, "labels": {"label": n / 2}, "tags": ["a"] * n} for n in range(7)]
    parquet.write_table(pyarrow.Table.from_pylist(given), path, row_group_size=3)
    found = list(read_rows(path))
    assert [dict(row.fields) for row in found] == given
    assert [row.source for row in found] == [f"{path}:{number}" for number in range(1, 8)]
    assert found[3]["labels.label"] == 1.5


def test_the_index_of_a_parquet_is_not_read_again_for_each_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lists all row groups, so that the time would grow with the square of their number."""
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [str(n) for n in range(10)]}), path, row_group_size=1)
    opened, real = [], parquet.ParquetFile
    monkeypatch.setattr(parquet, "ParquetFile", lambda *args, **options: opened.append(1) or real(*args, **options))
    assert len(fields(path)) == 10
    assert len(opened) == 2


def test_parquet_values_are_as_json_has_them(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = {"text": [b"text"], "day": [date(2020, 1, 2)], "price": [Decimal("1.50")], "nothing": [None]}
    table |= {"took": [timedelta(seconds=90)], "unknown": [math.nan]}
    parquet.write_table(pyarrow.table(table), path)
    given = {"text": "text", "day": "2020-01-02", "price": "1.50", "nothing": None}
    assert fields(path) == [given | {"took": "0:01:30", "unknown": None}]
    parquet.write_table(pyarrow.table({"image": [b"ok", b"\xff\xfe"]}), path)
    with pytest.raises(InputError, match=r"a\.parquet:2: the column 'image' holds bytes that are no text"):
        fields(path)


def test_parquet_values_that_python_or_json_cannot_hold_are_text(tmp_path: Path) -> None:
    path, ns = tmp_path / "a.parquet", 1_700_000_000_123_456_789
    table = {
        "at": pyarrow.array([ns, ns - 789, None], pyarrow.timestamp("ns")),
        "far": pyarrow.array([10**12, 0, None], pyarrow.timestamp("s")),
        "of day": pyarrow.array([1, 2_000, None], pyarrow.time64("ns")),
        "who": pyarrow.array([b"\0" * 16, b"\1" * 16, None], pyarrow.uuid()),
        "map": pyarrow.array([[("a", 0)], [], None], pyarrow.map_(pyarrow.string(), pyarrow.timestamp("s"))),
    }
    parquet.write_table(pyarrow.table(table), path)
    found = fields(path)
    assert [row["at"] for row in found] == ["2023-11-14 22:13:20.123456789", "2023-11-14 22:13:20.123456", None]
    assert [row["far"] for row in found][1:] == ["1970-01-01 00:00:00", None]
    assert [row["of day"] for row in found] == ["00:00:00.000000001", "00:00:00.000002", None]
    assert found[0]["who"] == "00000000-0000-0000-0000-000000000000"
    assert [row["map"] for row in found] == [[["a", "1970-01-01 00:00:00"]], [], None]
    parquet.write_table(pyarrow.table({"at": pyarrow.array([[ns]], pyarrow.list_(pyarrow.timestamp("ns")))}), path)
    with pytest.raises(InputError, match=r"a\.parquet: the column 'at' holds values of the type list<.*cannot be read"):
        fields(path)


def test_parquet_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.parquet: not a sound Parquet file"):
        fields(write(tmp_path / "a.parquet", "PAR1 no"))
    with pytest.raises(InputError, match=r"b\.parquet: cannot be read: No such file"):
        fields(tmp_path / "b.parquet")
    with pytest.raises(InputError, match="unknown kind of file"):
        fields(write(tmp_path / "a.parquet.gz", ""))
    parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c\.parquet: there is not a single row in it"):
        fields(tmp_path / "c.parquet")


# ---- All formats


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files_hold_the_same_rows(tmp_path: Path, suffix: str) -> None:
    plain = write(tmp_path / "a.jsonl", '{"text": "하나", "n": 1}\n\n{"text": "둘"}\n')
    pack = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix]
    packed = write(tmp_path / f"a.jsonl{suffix}", pack(plain.read_bytes()))
    assert fields(packed) == fields(plain) == [{"text": "하나", "n": 1}, {"text": "둘"}]
    packed.write_bytes(packed.read_bytes()[:-5])
    with pytest.raises(InputError, match="damaged or cut short"):
        fields(packed)


texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))


def read_lines(form: str, lines: Iterable[tuple[int, str]]) -> list[tuple[str, str]]:
    table = open_table(form, lines, "a", TableSettings(), stop)
    assert table is not None
    return [(row["text"], row["label"]) for row in table.rows]


@given(st.lists(st.tuples(texts, texts), min_size=1), st.booleans())
def test_whatever_csv_can_hold_comes_back(records: list[tuple[str, str]], quote_all: bool) -> None:
    file = io.StringIO(newline="")
    # Python's writer puts a lone carriage return between quotes only if it must, or if lines end with one.
    options: dict[str, Any] = {"lineterminator": "\n", "quoting": csv.QUOTE_ALL} if quote_all else {}
    csv.writer(file, **options).writerows([("text", "label"), *records])
    lines = enumerate((line.decode() for line in io.BytesIO(file.getvalue().encode())), start=1)
    assert read_lines(".csv", lines) == records


@given(st.lists(st.tuples(*[st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\t\r\n"))] * 2)))
def test_whatever_tsv_can_hold_comes_back(records: list[tuple[str, str]]) -> None:
    text = "".join("\t".join(row) + "\n" for row in [("text", "label"), *records])
    lines = enumerate((line.decode() for line in io.BytesIO(text.encode())), start=1)
    assert read_lines(".tsv", lines) == records


def test_a_text_of_three_million_characters(tmp_path: Path) -> None:
    long = "word " * 600_000
    assert fields(write(tmp_path / "a.csv", f"text,label\n{long},x\n"))[0]["text"] == long


def test_a_header_longer_than_any_cell_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.io.tables.FIELD_CHARACTERS", 1000)
    with pytest.raises(InputError, match=r"a\.csv:1: not CSV in the row that begins here \(field larger than"):
        fields(write(tmp_path / "a.csv", "x" * 2000 + "\nx\n"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"text\tlabel\na\t0\nb\n", r"a\.tsv:3: 1 fields where the header has 2 \(text, label\)"),
        ("a.tsv", b"text\tlabel\na\tb\t0\n", r"a\.tsv:2: 3 fields where the header has 2"),
        ("a.tsv", b"text\tlabel\ra\t0\rb\t1\r", r"a\.tsv:1: the header holds a carriage return"),
        ("a.csv", b"text,label\na,b,0\n", r"a\.csv:2: 3 fields where the header has 2"),
        ("a.csv", b'text,label\nx,0\n"never closed,1\nz,0\n', r"a\.csv:3-4: not CSV in the row that begins here"),
        ("a.csv", b'text,label\n"a" b,1\n', r"a\.csv:2: not CSV"),
        ("a.tsv", b"text\ttext\na\t0\n", r"a\.tsv:1: the header names 'text' twice"),
        ("a.tsv", b"text\tlabel\nfine\t0\nbad \xff\t1\n", r"a\.tsv:3: not UTF-8 at byte 22 .*0xff"),
        ("a.jsonl", b'{"text": "a"}\n["text"]\n', r"a\.jsonl:2: expected a JSON object"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl:2: not JSON"),
        ("a.json", b'[{"text": "a"},\n 5]', r"a\.json: item 2: expected a JSON object.*found 5"),
        ("a.json", b'[{"text": "a"},\n\n{"text" 5}]', r"a\.json: not JSON \(.*: line 3 column 9"),
        ("a.json", b'[{"text": "a"}\n{"text": "b"}]', r"a\.json: not JSON \(Expecting ',' .*: line 2 column 1"),
        ("a.json", b'[{"text": "a"},\n', r"a\.json: not JSON \(.*expected a whole JSON file"),
        ("a.json", b'[{"text": "a"}] {"text": "b"}', r"a\.json: not JSON \(Extra data: line 1 column 17"),
        ("a.json", b"[]", r"a\.json: there is not a single row in it"),
        ("a.json", b"\xff[]", r"a\.json:1: not UTF-8"),
        ("a.tsv", b"", r"a\.tsv: there is not a single row in it"),
        ("a.csv", b"text,label\n", r"a\.csv: there is not a single row in it"),
        ("a.jsonl", b"\n", r"a\.jsonl: there is not a single row in it"),
        (
            "a.xlsx",
            b"PK",
            r"a\.xlsx: unknown kind .*\.parquet; convert or rename it \(of a workbook save the sheet as \.csv\)$",
        ),
        ("a.tsv", b'text\tlabel\n"a\nb"\tx\n', "if yours are between quotes, give data.quoted=true"),
        (
            "a.txt",
            b"text",
            r"a\.txt: unknown kind of file: a \.txt has texts without labels, for `unmask predict` and `unmask score "
            r"--method acceptability`, and is read as a table with data\.separator=tab; convert or rename it [^-]*$",
        ),
    ],
)
def test_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fields(write(tmp_path / name, content))


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("a.tsv", ["text\tlabel", "a\t0", "b", "c\t1", "d"], "1 fields where the header has 2"),
        ("a.csv", ["text,label", "a,0", "b", "c,1", "d"], "1 fields where the header has 2"),
        ("a.jsonl", ["", '{"text": "a"}', "b", '{"text": "c"}', "[]"], "not JSON"),
    ],
)
def test_all_lines_that_hold_no_row_are_reported(tmp_path: Path, name: str, rows: list[str], message: str) -> None:
    path = write(tmp_path / name, "\n".join(rows) + "\n")
    found = read_rows(path)
    assert next(found).fields["text"] == "a"
    told = rf"{name}:3: {message}(.|\n)*{name}:5: (.|\n)*\n  2 rows in all cannot be used$"
    with pytest.raises(InputError, match=told):
        next(found)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.tsv: cannot be read: No such file"):
        fields(tmp_path / "absent.tsv")
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(InputError, match="Is a directory"):
        fields(tmp_path / "folder.tsv")


# ---- What people bring


def with_settings(path: Path, **settings: Any) -> InputFiles:
    return InputFiles((path,), TableSettings(**settings))


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_a_csv_without_commas_is_read_by_what_separates_its_header(tmp_path: Path, mark: str) -> None:
    path = write(tmp_path / "a.csv", f'\ufefftext{mark}label\r\n"a film, and ""a{mark} man"""{mark}good\r\n')
    assert fields(path) == [{"text": f'a film, and "a{mark} man"', "label": "good"}]
    assert fields(write(tmp_path / "b.csv", "text\na; b\n")) == [{"text": "a; b"}]


@pytest.mark.parametrize("mark", [";", ",", "\t"])
def test_the_separator_that_a_csv_declares_to_excel_is_read(tmp_path: Path, mark: str) -> None:
    path = write(tmp_path / "a.csv", f"\ufeffsep={mark}\r\ntext{mark}label\r\na film{mark}good\r\nb\r\n")
    with pytest.raises(InputError, match=r"a\.csv:4: 1 fields where the header has 2 \(text, label\)"):
        fields(path)
    path = write(tmp_path / "a.csv", f"sep={mark}\ntext{mark}label\na film{mark}good\n")
    assert fields(path) == [{"text": "a film", "label": "good"}]
    assert fields(write(tmp_path / "b.tsv", "sep=;\na\n")) == [{"sep=;": "a"}]


def test_the_separator_may_be_named(tmp_path: Path) -> None:
    rows = write(tmp_path / "a.dat", 'text:label\n"a: b":x\n')
    assert fields(with_settings(rows, separator=":")) == [{"text": "a: b", "label": "x"}]
    tabs = write(tmp_path / "a.txt", "text\tlabel\na\tx\n")
    assert fields(with_settings(tabs, separator="tab")) == [{"text": "a", "label": "x"}]
    with pytest.raises(ValidationError, match="expected one character"):
        TableSettings(separator="::")


def test_columns_without_a_header_are_numbered(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "\na film,good\nb,bad\n")
    assert fields(with_settings(path, header="none")) == [{"1": "a film", "2": "good"}, {"1": "b", "2": "bad"}]
    with pytest.raises(InputError, match=r"a\.csv:3: 1 fields where the first row has 2"):
        fields(with_settings(write(path, "a,x\n\nb\n"), header="none"))
    published = with_settings(write(tmp_path / "a.tsv", "gj04\t1\t\tThe tea was drunk.\n"), header="none")
    assert list(fields(published, header=COLA)[0]) == list(COLA)


def test_quotes_of_a_tsv_are_read_where_that_is_wanted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'text\tlabel\n"a ""b""\nc"\tx\n')
    assert fields(with_settings(path, quoted=True)) == [{"text": 'a "b"\nc', "label": "x"}]
    path = write(tmp_path / "a.csv", 'text,label\n"a" b,x\n')
    assert fields(with_settings(path, quoted=False)) == [{"text": '"a" b', "label": "x"}]


KOREAN = 'text;label\r\n"정말 재미있는 영화; 추천합니다";긍정\r\n지루했다;부정\r\n'


@pytest.mark.parametrize("encoding", ["cp949", "utf-16", "utf-16-le", "utf-8-sig"])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_other_encodings(tmp_path: Path, encoding: str, suffix: str) -> None:
    content = KOREAN.encode(encoding)
    path = write(tmp_path / f"a{suffix}", gzip.compress(content) if suffix.endswith("gz") else content)
    rows = [{"text": "정말 재미있는 영화; 추천합니다", "label": "긍정"}, {"text": "지루했다", "label": "부정"}]
    assert fields(with_settings(path, encoding=encoding)) == rows
    if encoding == "utf-8-sig":
        assert fields(path) == rows
        return
    with pytest.raises(InputError, match=rf"a{suffix}:\d: .*( in |data\.encoding=){encoding}\b"):
        fields(path)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("데이터를 읽는 다른 방법입니다", "cp949"),
        ("日本語のテキストです", "cp932"),
        ("这部电影非常好看", "gb18030"),
        ("un café très élégant, déjà vu", "cp1252"),
        ("국가(國家)와 군대(軍隊)는 국민(國民)의 것", "cp949"),
    ],
)
def test_text_in_another_encoding_is_shown_as_it_reads(tmp_path: Path, text: str, encoding: str) -> None:
    path = write(tmp_path / "a.csv", f"n,text\n1,{text}\n".encode(encoding))
    told = rf"a\.csv:2: not UTF-8 .* data\.encoding=NAME\. It reads as .*{re.escape(text)}' in {encoding}[,;] .*cp1251"
    with pytest.raises(InputError, match=told):
        fields(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_text_with_many_zeros_is_shown_in_utf16(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "a.csv", "text;label\r\n영화;x\r\n".encode(encoding))
    with pytest.raises(InputError, match=rf"It reads as '.*' in {encoding};"):
        fields(path)


def test_where_no_encoding_is_shown_some_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"text\n\x81\xff\n")
    with pytest.raises(InputError, match=r"or give its encoding, data\.encoding=NAME; it is often cp1250"):
        fields(path)


def test_a_wrong_encoding_is_reported_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\na,x\n안녕하세요 여러분,y\n")
    with pytest.raises(InputError, match=r"a\.csv:3: not cp949: .*data\.encoding=NAME, leave it out for UTF-8"):
        fields(with_settings(path, encoding="cp949"))
    for name in ("cp9499", "rot13", "idna", "punycode"):  # the last two are of names of hosts
        with pytest.raises(ValidationError, match=f"there is no encoding '{name}'"):
            TableSettings(encoding=name)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("name", ["a.csv", "a.json", "-"])
def test_a_byte_order_mark_that_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, encoding: str
) -> None:
    path = Path("-") if name == "-" else write(tmp_path / name, "text,label\na,x\n")
    type_in(monkeypatch, b"text,label\na,x\n")
    told = f"cannot be read: it begins without the byte order mark of {encoding}: give {encoding}-le or {encoding}-be"
    with pytest.raises(InputError, match=f"{'standard input' if name == '-' else name}: {told}"):
        fields(with_settings(path, encoding=encoding, separator=","))


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_nul_bytes_are_refused(tmp_path: Path, suffix: str) -> None:
    mark = "," if suffix == ".csv" else "\t"
    path = write(tmp_path / f"a{suffix}", f"text{mark}label\na{mark}x\nb\0{mark}y\n")
    with pytest.raises(InputError, match=rf"a\{suffix}:3: a NUL byte"):
        fields(path)
    path.write_bytes(f"text{mark}label\na{mark}x\n".encode("utf-16-le"))
    with pytest.raises(InputError, match=rf"a\{suffix}:1: .*if the file is UTF-16, give data\.encoding=utf-16-le"):
        fields(path)


def test_columns_without_a_name_may_be_many(tmp_path: Path) -> None:
    """As Excel writes those to the right of a table that were once filled."""
    assert fields(write(tmp_path / "a.csv", "text;label;;\na;x;;\n")) == [{"text": "a", "label": "x", "": ""}]


# ---- Several files


def test_files_globs_and_folders_of_shards(tmp_path: Path) -> None:
    for number in (2, 1):
        parquet.write_table(pyarrow.table({"text": [f"a{number}", f"b{number}"]}), tmp_path / f"part-{number}.parquet")
    wanted = [{"text": f"{letter}{number}"} for number in (1, 2) for letter in "ab"]
    both = [str(tmp_path / f"part-{number}.parquet") for number in (1, 2)]
    for named in (str(tmp_path), str(tmp_path / "part-*.parquet"), both):
        found = find_inputs(named, TableSettings())
        assert fields(found) == wanted
        assert str(found) == f"{tmp_path / 'part-1.parquet'} and 1 more"
        assert [row.source for row in read_rows(found)][2] == f"{tmp_path / 'part-2.parquet'}:1"
    with pytest.raises(InputError, match="this pattern matches no file"):
        find_inputs(str(tmp_path / "*.csv"), TableSettings())


@pytest.mark.parametrize("names", [("train-0.parquet", "test-0.parquet"), ("a.csv", "a.tsv")])
def test_a_folder_of_several_splits_or_kinds_is_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(InputError, match="in one folder: name those that belong together with a glob"):
        find_inputs(str(tmp_path), TableSettings())


def test_a_folder_without_tables_stands_for_itself(tmp_path: Path) -> None:
    (tmp_path / "middle").mkdir()
    assert find_inputs(str(tmp_path), TableSettings()).paths == (tmp_path,)


@pytest.mark.parametrize(
    ("cells", "is_reported"),
    [
        (['"a"', '"b"', '"c"', "d"], True),
        (['"a ""b"" c"', '"""x"""', '"so ""it"" is"', *"defghijk"], True),
        (['"so-called"', "b", "c", "d", "e"], False),
        (['"a" and "b"', '"c" or "d"', '"e', '"f" "g"'], False),
    ],
)
def test_a_tsv_that_was_written_with_quotes_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cells: list[str], is_reported: bool
) -> None:
    path = write(tmp_path / "a.tsv", "text\tlabel\n" + "".join(f"{cell}\tx\n" for cell in cells))
    warn_of_notation(find_inputs(path, TableSettings()))
    assert ("data.quoted=true" in caplog.text) == is_reported
    caplog.clear()
    warn_of_notation(find_inputs(path, TableSettings(quoted=False)))
    assert not caplog.text


@pytest.mark.parametrize(
    ("header", "given"),
    [
        ("번호;리뷰, 내용;긍부정", "data.separator=';'"),
        ("id|text, cut|label", "data.separator='|'"),
        ("id\ttext, cut\tlabel", "data.separator=tab"),
        ("id,text (a; b)", None),
        ("id;text;label", None),
        ("text", None),
    ],
)
def test_a_csv_whose_header_may_have_another_separator_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, header: str, given: str | None
) -> None:
    path = write(tmp_path / "a.csv", f"{header}\n1;재미, 있다;1\n2;좋다;1\n")
    warn_of_notation(find_inputs(path, TableSettings()))
    assert [f"give {given} if" in told for told in caplog.messages] == [True] * (given is not None)
    caplog.clear()
    warn_of_notation(find_inputs(path, TableSettings(separator=",")))
    assert not caplog.text
