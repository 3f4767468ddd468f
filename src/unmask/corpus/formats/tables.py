"""Documents from a column of a table: `.csv`, `.tsv` and `.parquet`, streamed.

`.csv` is RFC 4180: quotes protect separators and line breaks. `.tsv` has no quoting: a quotation mark is a character
like any other, as in the files of tasks.
"""

from __future__ import annotations

import csv
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from unmask.corpus.documents import Document
from unmask.corpus.source import Source
from unmask.errors import InputError
from unmask.io.writing import told_as_output_error

if TYPE_CHECKING:
    from pyarrow import DataType
    from pyarrow.parquet import ParquetFile

FIELD_CHARACTERS = 2**27
"""The longest field of a `.csv`. Python's default limit, 128 KiB, is too short for some texts; without a limit, one
quote that is never closed would take the rest of a file into memory."""

PARQUET_ROWS = 256
"""Rows of a `.parquet` in memory at a time."""


class NumberedRow(NamedTuple):
    """A row and the number of the line on which it begins."""

    number: int
    values: list[str]


def read_csv(source: Source) -> Iterator[Document]:
    """One document per row, from the column that the header names; quotes protect separators and line breaks."""
    return _read_table(source, _csv_rows(source))


def read_tsv(source: Source) -> Iterator[Document]:
    """One document per row, from the column that the header names; nothing is quoted."""
    rows = (NumberedRow(number, line.rstrip("\r\n").split("\t")) for number, line in source.lines())
    return _read_table(source, rows)


def _csv_rows(source: Source) -> Iterator[NumberedRow]:
    csv.field_size_limit(FIELD_CHARACTERS)
    reader = csv.reader((line for _, line in source.lines()), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            values = next(reader, None)
        except csv.Error as error:
            what = str(error).partition(" - ")[0]  # the rest is advice to programmers
            source.refuse(
                f"{source.name}:{number}",
                "not CSV",
                f"not CSV in the row that begins here ({what}): expected fields with commas, quotes or line breaks in "
                'them to stand between quotes, and a quote in them to be doubled ("")',
            )
            continue
        if values is None:
            return
        yield NumberedRow(number, values or [""])


def _read_table(source: Source, rows: Iterator[NumberedRow]) -> Iterator[Document]:
    """Documents of the rows below a header. Empty lines are skipped, unless there is only one column."""
    header = next(rows, None)
    if header is None:
        return
    names = header.values
    if not _has_column(source, f"{source.name}:{header.number}", names):
        return
    column = names.index(source.settings.column)
    for number, values in rows:
        if len(values) == len(names):
            yield Document(values[column], f"{source.name}:{number}")
        elif values != [""]:
            source.refuse(
                f"{source.name}:{number}",
                "ragged row",
                f"{len(values)} fields where the header has {len(names)} ({', '.join(names)}): mend the row",
            )


def _has_column(source: Source, place: str, names: Sequence[str]) -> bool:
    column = source.settings.column
    if names.count(column) > 1:
        source.refuse(place, "column twice", f"there are {names.count(column)} columns {column!r}: expected one")
    elif column not in names:
        source.refuse(
            place,
            "no such column",
            f"no column {column!r} (there is {', '.join(map(repr, names))}): name another with --column (in a recipe "
            "reading.column)",
        )
    return names.count(column) == 1


def read_parquet(source: Source) -> Iterator[Document]:
    """One document per row, from a column of strings; places are row numbers from 1, and a null cannot be read.

    Parquet is read from its end, so a compressed file or standard input is first unpacked to a temporary file.

    Raises:
        InputError: `pyarrow` is not installed.
        OutputError: there is no room for the temporary file.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError(f"{source.name}: reading .parquet needs pyarrow: pip install 'unmask[parquet]'") from error
    with ExitStack() as stack:
        try:
            if source.compressed or not source.path.is_file():
                with told_as_output_error(Path(tempfile.gettempdir())):
                    file: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
                    shutil.copyfileobj(source.stream, file)
                    file.flush()
                size = 0  # counted as it was unpacked
            else:
                file = stack.enter_context(open(source.path, "rb"))
                size = source.path.stat().st_size
            options = {"buffer_size": 1 << 20, "pre_buffer": False, "page_checksum_verification": True}
            yield from _read_column(source, parquet.ParquetFile(file, **options), size)
        except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
            if isinstance(error, OSError) and error.errno:
                raise  # from the file system; pyarrow's errors for damaged data have no number
            source.refuse(
                source.name, "damaged file", f"not a sound Parquet file ({error}): fetch or make the file again"
            )


def _read_column(source: Source, table: ParquetFile, size: int) -> Iterator[Document]:
    """Documents of a table in a file of `size` bytes."""
    column = source.settings.column
    schema = table.schema_arrow
    if not _has_column(source, source.name, schema.names):
        return
    if not _is_text(schema.field(column).type):
        source.refuse(
            source.name,
            "not a column of strings",
            f"column {column!r} is of type {schema.field(column).type}: expected string; convert it, or name another "
            "with --column (in a recipe reading.column)",
        )
        return
    bytes_before = source.counts.file_bytes
    number = 0
    for group in range(table.num_row_groups):
        batches = table.iter_batches(PARQUET_ROWS, row_groups=[group], columns=[column], use_threads=False)
        for text in (text for batch in batches for text in batch.column(0).to_pylist()):
            number += 1
            if text is None:
                source.refuse(
                    f"{source.name}:{number}", "no text", f"column {column!r} is null in this row: expected a text"
                )
            else:
                yield Document(text, f"{source.name}:{number}")
        source.counts.file_bytes = bytes_before + size * (group + 1) // table.num_row_groups


def _is_text(type: DataType) -> bool:
    from pyarrow import types

    value = type.value_type if types.is_dictionary(type) else type
    return any(check(value) for check in (types.is_string, types.is_large_string, types.is_string_view))
