"""Labelled examples and inputs from `.tsv`, `.csv` and `.jsonl` files, streamed, each row with the place it came from.

`.csv` is RFC 4180: quotes protect separators and line breaks. `.tsv` is GLUE's: no quoting at all, a quotation mark is
a character like any other. Both begin with a header.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import InputError
from unmask.input_files import COMPRESSIONS, open_input, read_utf8_lines, split_suffixes
from unmask.tasks.settings import ColumnSettings

NumberedLines = Iterable[tuple[int, str]]


@dataclass(frozen=True)
class Row:
    """One row as it stands in a file.

    Attributes:
        fields: by column or JSON field.
        source: where it is, as `path:line`.
    """

    fields: Mapping[str, Any]
    source: str


@dataclass(frozen=True)
class Example:
    """A row as a task reads it.

    Attributes:
        text_a: the one text, or the first of a pair.
        text_b: the second of a pair.
        label: None where it has none.
        fields: the whole row.
        source: where it is, as `path:line`.
    """

    text_a: str
    text_b: str | None
    label: str | None
    fields: Mapping[str, Any]
    source: str


# ---- Rows of files


def read_rows(path: Path, txt_format: str | None = None) -> Iterator[Row]:
    """Streams the rows of a file.

    Args:
        path: `.tsv`, `.csv` or `.jsonl`, plain, `.gz` or `.zst`.
        txt_format: the format of a file that calls itself `.txt`; None refuses it.

    Raises:
        InputError: the file is missing, of another kind, damaged, empty, not UTF-8, or a row does not fit; file and
            line are named.
    """
    suffix = split_suffixes(path)[0]
    form = txt_format if suffix == ".txt" and txt_format else suffix
    if form not in FORMATS:
        known = ", ".join(end + compression for end in FORMATS for compression in COMPRESSIONS)
        raise InputError(f"{path}: unknown kind of file: expected {known}; convert or rename it")
    empty = True
    with open_input(path) as file:
        for row in FORMATS[form](read_utf8_lines(file, path), str(path)):
            empty = False
            yield row
    if empty:
        raise InputError(f"{path}: there is not a single row in it: expected examples")


def read_tsv(lines: NumberedLines, name: str) -> Iterator[Row]:
    """Rows of tab-separated fields below a header; nothing is quoted. Empty lines are passed over."""
    header: list[str] | None = None
    for number, line in lines:
        values = line.rstrip("\r\n").split("\t")
        if header is None:
            header = _checked_header(values, f"{name}:{number}")
        elif row := _fitted(header, values, f"{name}:{number}"):
            yield row


def read_csv(lines: NumberedLines, name: str) -> Iterator[Row]:
    """Rows of comma-separated fields below a header, quoted as RFC 4180 says. Empty lines are passed over."""
    csv.field_size_limit(2**31 - 1)  # Python's own limit, 128 KiB, is shorter than texts may be
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
        if header is None:
            header = _checked_header(values, source)
        elif row := _fitted(header, values or [""], source):
            yield row


def read_jsonl(lines: NumberedLines, name: str) -> Iterator[Row]:
    """One JSON object a line; blank lines are passed over."""
    for number, line in lines:
        if line.isspace():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name}:{number}: not JSON ({error}): expected one object a line") from error
        if not isinstance(value, dict):
            raise InputError(
                f'{name}:{number}: expected a JSON object, such as {{"text": "..."}}; found {line.strip()[:60]}'
            )
        yield Row(value, f"{name}:{number}")


FORMATS: dict[str, Callable[[NumberedLines, str], Iterator[Row]]] = {
    ".tsv": read_tsv,
    ".csv": read_csv,
    ".jsonl": read_jsonl,
}


def _checked_header(names: list[str], source: str) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"{source}: the header names {twice[0]!r} twice: expected every column to have a name of its own"
        )
    return names


def _fitted(header: list[str], values: list[str], source: str) -> Row | None:
    """The row, or None for an empty line, which holds no row unless there is but one column."""
    if values == [""] and len(header) > 1:
        return None
    if len(values) != len(header):
        raise InputError(
            f"{source}: {len(values)} fields where the header has {len(header)} ({', '.join(header)}): "
            "mend the row (in a .tsv nothing is quoted: a text holds no tab and no line break)"
        )
    return Row(dict(zip(header, values, strict=True)), source)


# ---- Rows to examples


def choose_columns(layouts: Sequence[ColumnSettings], row: Row) -> ColumnSettings:
    """The first layout whose texts the row has.

    Raises:
        InputError: none fits; names what is missing and what there is.
    """
    for columns in layouts:
        if all(name in row.fields for name in columns.texts):
            return columns
    missing = [name for name in layouts[0].texts if name not in row.fields]
    others = "".join(f", or {' and '.join(columns.texts)}" for columns in layouts[1:])
    raise InputError(
        f"{row.source}: no column {' and no column '.join(map(repr, missing))}: expected "
        f"{' and '.join(layouts[0].texts)}{others}; there is {', '.join(row.fields) or 'nothing'}"
    )


def read_example(row: Row, columns: ColumnSettings, unlabelled: Collection[str] = (), labelled: bool = True) -> Example:
    """Reads a row as an example.

    Args:
        row: has the texts of `columns`.
        columns: their names.
        unlabelled: labels that say that there is none, such as SNLI's `-`.
        labelled: False does not look for a label.

    Raises:
        InputError: a text is no string, or the label is missing, empty, or neither string nor number.
    """
    texts = [_text(row, name) for name in columns.texts]
    label = _label(row, columns.label) if labelled else None
    return Example(
        text_a=texts[0],
        text_b=texts[1] if len(texts) == 2 else None,
        label=None if label in unlabelled else label,
        fields=row.fields,
        source=row.source,
    )


def _text(row: Row, name: str) -> str:
    value = row.fields[name]
    if not isinstance(value, str):
        raise InputError(f"{row.source}: {name} is {json.dumps(value)[:60]}: expected a text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{row.source}: {name} holds half of a surrogate pair, \\u{ord(value[error.start]):04x}: no character; "
            "mend the JSON escape, or the program that wrote it"
        ) from error
    return value


def _label(row: Row, name: str) -> str:
    if name not in row.fields:
        raise InputError(
            f"{row.source}: no column {name!r} for the label: there is {', '.join(row.fields)}. Name it with "
            "data.columns.label=...; a file without labels is for `unmask predict`"
        )
    value = row.fields[name]
    if isinstance(value, list | dict):
        raise InputError(f"{row.source}: the label {name} is {json.dumps(value)[:60]}: expected a string or a number")
    label = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    if not label:
        raise InputError(f"{row.source}: the label {name} is empty: fill it in, or take the row out")
    return label
