"""Rows of `.tsv`, `.csv`, `.jsonl`, `.json` and `.parquet` files, each with the place it came from.

`.csv` is RFC 4180: quotes protect separators and line breaks. `.tsv` is GLUE's: no quoting at all, a quotation mark is
a character like any other. Both begin with a header. All are streamed except `.json`, a list of objects, whose text is
held in memory; its objects are parsed one by one.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

from unmask.errors import InputError
from unmask.io.reading import COMPRESSIONS, open_input, read_utf8_lines, split_suffixes
from unmask.tasks.fields import find_field

NumberedLines = Iterable[tuple[int, str]]
Refuse = Callable[[InputError], None]

MOST_JSON_BYTES = 2**30
"""Most bytes of a `.json` file, unpacked; larger data should be `.jsonl`, which is streamed."""

PARQUET_ROWS = 1024
"""Rows of a Parquet file in memory at a time, besides what one row group needs."""

IN_TSV = "in a .tsv nothing is quoted: a text holds no tab and no line break"
IN_CSV = "in a .csv a text with commas or line breaks stands between quotes"

_BLANK = re.compile(r"[ \t\r\n]*")
_ABSENT = object()


@dataclass(frozen=True)
class Row:
    """One row as it stands in a file.

    Attributes:
        fields: by column or JSON field.
        source: where it is, as `path:line`; in `.parquet`, the number of the row from 1.
    """

    fields: Mapping[str, Any]
    source: str

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not _ABSENT

    def __getitem__(self, name: str) -> Any:
        """The value of a field; `labels.label` may also mean the field `label` of the object `labels`."""
        value = self._find(name)
        if value is _ABSENT:
            raise KeyError(name)
        return value

    def _find(self, name: str) -> Any:
        return find_field(self.fields, name, _ABSENT)


def checked_text(value: Any, name: str, source: str) -> str:
    """Returns a value of a row unchanged, after checking that it is a text.

    Args:
        name: of its column or field, for messages.
        source: where the row is, for messages.

    Raises:
        InputError: it is not a text, or a JSON escape has put half of a surrogate pair into it.
    """
    if not isinstance(value, str):
        raise InputError(f"{source}: {name} is {shown(value)}: expected a text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{source}: {name} holds half of a surrogate pair, \\u{ord(value[error.start]):04x}: no character; "
            "mend the JSON escape, or the program that wrote it"
        ) from error
    return value


def shown(value: Any) -> str:
    """The beginning of a value as JSON, for messages."""
    return json.dumps(value, ensure_ascii=False, default=str)[:60]


@dataclass
class RowFaults:
    """Unusable rows of a file, to report the first few together with their total.

    Attributes:
        count: of all unusable rows.
        first: what is wrong with the first few.
    """

    count: int = 0
    first: list[InputError] = field(default_factory=list)

    def add(self, fault: InputError) -> None:
        self.count += 1
        if len(self.first) < _TOLD_FAULTS:
            self.first.append(fault)

    def tell(self) -> None:
        """Raises InputError if there is a fault."""
        if self.count == 1:
            raise self.first[0]
        if self.count:
            lines: list[str] = []
            told: set[str] = set()
            for fault in self.first:
                place, _, what = str(fault).partition(": ")
                lines.append(f"{place}: the same" if what in told else str(fault))
                told.add(what)
            raise InputError("\n  ".join([*lines, f"{self.count:,} rows in all cannot be used"]))


_TOLD_FAULTS = 5


def read_rows(
    path: Path,
    txt_format: str | None = None,
    *,
    header: Sequence[str] = (),
    short_rows: list[str] | None = None,
    faults: RowFaults | None = None,
) -> Iterator[Row]:
    """Streams the rows of a file.

    Args:
        path: `.tsv`, `.csv`, `.jsonl` or `.json`, plain or compressed, or `.parquet`.
        txt_format: the format of a file called `.txt`; None refuses it.
        header: the columns of a `.tsv` without a header. Its first line is still taken for a header unless it has this
            many fields, and none of them is one of these names.
        short_rows: rows of a `.tsv` with too few fields are left out and their sources added here; None refuses them.
        faults: lines that hold no row are added here, and reading goes on; None refuses them, the first few together,
            after the file has been read.

    Raises:
        InputError: the file is missing, of another kind, damaged, empty, not UTF-8, or a row does not fit; file and
            line are named. Or `pyarrow` is not installed.
    """
    found = RowFaults() if faults is None else faults
    suffix, compression = split_suffixes(path)
    form = txt_format if suffix == ".txt" and txt_format else suffix
    if form == ".parquet" and not compression:
        rows = read_parquet(path)
    elif form == ".json":
        rows = read_json(path)
    elif form == ".tsv":
        rows = read_tsv(_lines_of(path), str(path), header, short_rows, found.add)
    elif form in FORMATS:
        rows = FORMATS[form](_lines_of(path), str(path), refuse=found.add)
    else:
        known = [end + packed for end in (*FORMATS, ".json") for packed in COMPRESSIONS]
        raise InputError(
            f"{path}: unknown kind of file: expected {', '.join([*known, '.parquet'])}; convert or rename it, or name "
            "its kind where the command takes --format"
        )
    empty = True
    for row in rows:
        empty = False
        if faults is not None or not found.count:
            yield row
    if faults is None:
        found.tell()
    if empty and not found.count:
        raise InputError(f"{path}: there is not a single row in it: expected examples")


def _lines_of(path: Path) -> NumberedLines:
    with open_input(path) as file:
        yield from read_utf8_lines(file, path)


def _stop(fault: InputError) -> None:
    raise fault


def read_tsv(
    lines: NumberedLines,
    name: str,
    header: Sequence[str] = (),
    short_rows: list[str] | None = None,
    refuse: Refuse = _stop,
) -> Iterator[Row]:
    """Rows of tab-separated fields below a header; nothing is quoted. Empty lines are skipped.

    Args:
        header, short_rows: as for `read_rows`.
        refuse: is called with an error for each line that holds no row, and may raise it.
    """
    names: list[str] | None = None
    for number, line in lines:
        values = line.removesuffix("\n").removesuffix("\r").split("\t")
        if names is None:
            if values == [""]:
                continue
            if len(values) != len(header) or set(header) & set(values):
                names = _checked_header(values, f"{name}:{number}")
                continue
            names = list(header)
        if short_rows is not None and 1 <= len(values) < len(names):
            if values != [""]:
                short_rows.append(f"{name}:{number}")
        elif row := _fitted(names, values, f"{name}:{number}", IN_TSV, refuse):
            yield row


def read_csv(lines: NumberedLines, name: str, *, refuse: Refuse = _stop) -> Iterator[Row]:
    """Rows of comma-separated fields below a header, quoted as in RFC 4180. Empty lines are skipped."""
    csv.field_size_limit(2**31 - 1)  # Python's default limit, 128 KiB, is too short for some texts
    reader = csv.reader((line for _, line in lines), strict=True)
    header: list[str] | None = None
    while True:
        source = f"{name}:{reader.line_num + 1}"  # of the row's first line
        try:
            values = next(reader, None)
        except csv.Error as error:
            raise InputError(
                f"{source}: not CSV in the row that begins here ({error}): expected fields with commas, quotes or line "
                'breaks in them to stand between quotes, and a quote in them to be doubled (""); or use .tsv'
            ) from error
        if values is None:
            return
        if header is not None:
            if row := _fitted(header, values or [""], source, IN_CSV, refuse):
                yield row
        elif values:
            header = _checked_header(values, source)
            if len(header) == 1 and (separator := next((mark for mark in ";\t|" if mark in header[0]), None)):
                raise InputError(
                    f"{source}: the header is one column, {header[0]!r}, whose fields are separated by {separator!r}: "
                    "expected commas; save the file with commas, or with tabs as a .tsv"
                )


def read_jsonl(lines: NumberedLines, name: str, *, refuse: Refuse = _stop) -> Iterator[Row]:
    """One JSON object a line; blank lines are skipped."""
    for number, line in lines:
        if line.isspace():
            continue
        try:
            row = _checked_object(json.loads(line), f"{name}:{number}")
        except (ValueError, RecursionError) as error:
            refuse(InputError(f"{name}:{number}: not JSON ({error}): expected one object a line"))
        except InputError as fault:
            refuse(fault)
        else:
            yield row


class LineReader(Protocol):
    """Reads rows from numbered lines and the file's name; `refuse` as for `read_tsv`."""

    def __call__(self, lines: NumberedLines, name: str, *, refuse: Refuse = _stop) -> Iterator[Row]: ...


FORMATS: dict[str, LineReader] = {
    ".tsv": read_tsv,
    ".csv": read_csv,
    ".jsonl": read_jsonl,
}
"""Readers of line-based formats, by suffix."""


def read_json(path: Path) -> Iterator[Row]:
    """The objects of a JSON list; also consecutive objects, since some JSON Lines files are called `.json`.

    Raises:
        InputError: as `read_rows`; or the file is larger than `MOST_JSON_BYTES`.
    """
    with open_input(path) as file:
        data = file.read(MOST_JSON_BYTES + 1)
    if len(data) > MOST_JSON_BYTES:
        raise InputError(f"{path}: over {MOST_JSON_BYTES:,} bytes: convert it to .jsonl, one object a line")
    text = "".join(line for _, line in read_utf8_lines(io.BytesIO(data), path))
    del data
    decoder = json.JSONDecoder()
    place = _past_blanks(text, 0)
    in_list = text.startswith("[", place)
    if in_list:
        place = _past_blanks(text, place + 1)
    line, counted = 1, 0
    while place < len(text) and not (in_list and text[place] == "]"):
        line, counted = line + text.count("\n", counted, place), place
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{line}: not JSON in what begins here ({error}): expected an object") from error
        yield _checked_object(value, f"{path}:{line}")
        place = _past_blanks(text, place)
        if in_list and not text.startswith("]", place):
            if not text.startswith(",", place):
                at = line + text.count("\n", counted, place)
                raise InputError(f"{path}:{at}: not JSON: expected a comma or the end of the list behind the object")
            place = _past_blanks(text, place + 1)
    if in_list and (place >= len(text) or _past_blanks(text, place + 1) < len(text)):
        raise InputError(f"{path}: not JSON: the list does not end where the file does; fetch or make it again")


def _past_blanks(text: str, place: int) -> int:
    match = _BLANK.match(text, place)
    assert match is not None
    return match.end()


def read_parquet(path: Path) -> Iterator[Row]:
    """Rows of a Parquet file, a row group at a time; dates and decimal numbers are returned as text.

    Raises:
        InputError: `pyarrow` is not installed, or the file is missing or damaged.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError(f"{path}: reading .parquet needs pyarrow: pip install 'unmask[parquet]'") from error
    try:
        with open(path, "rb") as file:
            table = parquet.ParquetFile(file, pre_buffer=False, page_checksum_verification=True)
            _checked_header(table.schema_arrow.names, str(path))
            number = 0
            for batch in table.iter_batches(PARQUET_ROWS, use_threads=False):
                for fields in batch.to_pylist():
                    number += 1
                    yield Row(_as_json(fields, f"{path}:{number}"), f"{path}:{number}")
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        raise InputError(f"{path}: not a sound Parquet file ({error}): fetch or make it again") from error


def _as_json(value: Any, source: str) -> Any:
    """A value as JSON could hold it; not a number is null."""
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, dict):
        return {name: _as_json(item, source) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item, source) for item in value]
    if isinstance(value, datetime | date | time | timedelta | Decimal):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{source}: a field of bytes that are no text in UTF-8: leave that column out") from error
    return value


def _checked_object(value: Any, source: str) -> Row:
    if not isinstance(value, dict):
        raise InputError(
            f'{source}: expected a JSON object, such as {{"text": "..."}}; found '
            f"{json.dumps(value, ensure_ascii=False)[:60]}"
        )
    return Row(value, source)


def _checked_header(names: list[str], source: str) -> list[str]:
    if any("\r" in name for name in names):
        raise InputError(
            f"{source}: the header holds a carriage return: expected lines to end with a line feed, or with both; "
            "convert the line ends"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"{source}: the header names {twice[0]!r} twice: expected every column to have a name of its own"
        )
    return names


def _fitted(header: list[str], values: list[str], source: str, advice: str, refuse: Refuse) -> Row | None:
    """The row; None for a refused row, or for an empty line, unless the header has only one column."""
    if values == [""] and len(header) > 1:
        return None
    if len(values) != len(header):
        refuse(
            InputError(
                f"{source}: {len(values)} fields where the header has {len(header)} ({', '.join(header)}): "
                f"mend the row ({advice})"
            )
        )
        return None
    return Row(dict(zip(header, values, strict=True)), source)
