"""Documents from a column of a table: `.csv`, `.tsv`, `.jsonl` and `.parquet`, streamed by `unmask.io.tables`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING

from unmask.corpus.annotations import FIELD, Annotation, annotation_fault
from unmask.corpus.documents import Document
from unmask.corpus.source import CorpusFile
from unmask.io.parquet import open_parquet, refusing_damage
from unmask.io.rows import Row, Table, cut_short, similar_columns
from unmask.io.tables import open_table, read_jsonl
from unmask.io.writing import as_output_error

if TYPE_CHECKING:
    from pyarrow import DataType


def read_table(source: CorpusFile, form: str) -> Iterator[Document]:
    """One document per row of a `.csv` or `.tsv`, from the column that the header names."""
    table = open_table(form, source.lines(), source.name, source.settings, source.refuse)
    if table is not None and _has_column(source, table):
        for row in table.rows:
            yield Document(row.fields[source.settings.column], row.source)


def _has_column(source: CorpusFile, table: Table) -> bool:
    column = source.settings.column
    if column not in table.names:
        alike = similar_columns([column], table.names)
        source.refuse(
            table.place,
            "no such column",
            f"no column {column!r} (there is {', '.join(map(repr, cut_short(table.names)))}): name another with "
            f"{source.settings.option('column', 'NAME')}{alike and f'.{alike}'.removesuffix('.')}",
        )
    return column in table.names


def read_documents_of_jsonl(source: CorpusFile) -> Iterator[Document]:
    """One JSON object a line, the document in one of its fields, perhaps with annotations in `spans`; blank lines are
    skipped."""
    field = source.settings.column
    for row in read_jsonl(source.lines(), source.name, source.refuse):
        text = row.fields.get(field)
        if type(text) is not str:
            source.refuse(row.source, *_describe_row(row, source))
        elif row.fields.get(FIELD) is None:
            yield Document(text, row.source)
        elif (fault := annotation_fault(row.fields[FIELD], len(text))) is not None:
            source.refuse(row.source, "bad annotations", fault)
        else:
            yield Document(text, row.source, tuple(Annotation(*each) for each in row.fields[FIELD]))


def _describe_row(row: Row, source: CorpusFile) -> tuple[str, str]:
    """The reason and the problem, for `CorpusFile.refuse`, of an object without text."""
    field = source.settings.column
    expected = f'expected one JSON object a line with a string field "{field}"'
    if field not in row.fields:
        names = ", ".join(map(repr, cut_short(row.fields))) or "none at all"
        other = source.settings.option("column", "NAME")
        return "no such field", f"no field {field!r} (there is {names}): {expected}, or name another field with {other}"
    kinds = {dict: "object", list: "array", bool: "boolean", int: "number", float: "number"}
    kind = kinds.get(type(row.fields[field]), "null")
    return "not a string", f"field {field!r} is {kind}, not a string: {expected}"


def read_parquet(source: CorpusFile) -> Iterator[Document]:
    """One document per row, from a column of strings; places are row numbers from 1, and a null cannot be read.

    Parquet is read from its end, so a compressed file or standard input is first unpacked to a temporary file.

    Raises:
        InputError: `pyarrow` is not installed.
        OutputError: the disk has no space for the temporary file.
    """
    column, before = source.settings.column, source.counts.file_bytes
    with ExitStack() as stack:
        stack.enter_context(refusing_damage(source.name, source.refuse))
        if source.compressed or not source.path.is_file():
            with as_output_error(Path(tempfile.gettempdir())):
                file: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(source.stream, file)
                file.flush()
            size, before = 0, source.counts.file_bytes  # counted as it was unpacked
        else:
            file = stack.enter_context(open(source.path, "rb"))
            size = source.path.stat().st_size

        def count(share: float) -> None:
            source.counts.file_bytes = before + int(size * share)

        table = open_parquet(file, source.name, source.refuse, column, count)
        if table.names and _has_column(source, table) and _is_of_texts(source, table.types[column]):
            for row in table.rows:
                if row.fields[column] is None:
                    what = f"column {column!r} is null in this row: expected a text"
                    source.refuse(row.source, "no text", what)
                else:
                    yield Document(row.fields[column], row.source)


def _is_of_texts(source: CorpusFile, type: DataType) -> bool:
    from pyarrow import types

    value = type.value_type if types.is_dictionary(type) else type
    is_text = any(check(value) for check in (types.is_string, types.is_large_string, types.is_string_view))
    if not is_text:
        source.refuse(
            source.name,
            "not a column of strings",
            f"column {source.settings.column!r} is of type {type}: expected string; convert it, or name another with "
            f"{source.settings.option('column', 'NAME')}",
        )
    return is_text
