"""Rows of `.parquet` files, streamed by row groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from unmask.errors import InputError
from unmask.io.reading import check_library
from unmask.io.rows import Refuse, Row, Table, is_sound_header
from unmask.io.settings import TableSettings

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch
    from pyarrow.parquet import ParquetFile

PARQUET_ROWS = 256
"""Most rows of a `.parquet` in memory at a time, besides what one row group needs."""

_MOST_BYTES = 1 << 25
"""Of texts in a batch, where one text does not have more."""


def open_parquet(
    file: IO[bytes],
    name: str,
    refuse: Refuse,
    column: str | None = None,
    on_share: Callable[[float], None] | None = None,
) -> Table:
    """A Parquet file; places are row numbers from 1; dates, decimal numbers and what else JSON has not are returned as
    text.

    Args:
        column: the only one that is read; None reads all.
        on_share: is called with the share of the rows that were read, at each row.

    Raises:
        InputError: `pyarrow` is not installed.
    """
    check_library("parquet", name)
    from pyarrow import parquet

    table = parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True)
    names, types = table.schema_arrow.names, table.schema_arrow.types

    def rows() -> Iterator[Row]:
        number = 0
        columns = None if column is None else [column]
        texts = [field.name for field in table.schema_arrow if _is_text(field.type)]
        as_dictionaries = parquet.ParquetFile(file, metadata=table.metadata, read_dictionary=texts, pre_buffer=False)
        for group in range(table.num_row_groups):
            num_rows = min(PARQUET_ROWS, max(1, _MOST_BYTES // _longest(as_dictionaries, group, columns)))
            for batch in table.iter_batches(num_rows, row_groups=[group], columns=columns, use_threads=False):
                for fields in _fields_of(batch, name):
                    number += 1
                    if on_share is not None:
                        on_share(number / table.metadata.num_rows)
                    yield Row(_as_json(fields, f"{name}:{number}"), f"{name}:{number}")

    is_sound = is_sound_header(names, name, TableSettings(), refuse)
    return Table(
        names if is_sound else (), name, rows() if is_sound else iter(()), dict(zip(names, types, strict=True))
    )


def class_names(path: Path) -> dict[str, list[str]]:
    """By column, the names of the numbers in it or in its lists: `ClassLabel` of Hugging Face `datasets`."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_schema
    except ImportError:
        return {}  # reading the rows says so
    try:
        metadata = json.loads((read_schema(path).metadata or {}).get(b"huggingface", b"{}"))
        features = metadata["info"]["features"]
    except (ArrowException, OSError, ValueError, KeyError, TypeError):
        return {}
    names = {}
    for column, feature in features.items() if isinstance(features, dict) else ():
        inner = feature[0] if isinstance(feature, list) and feature else feature
        inner = inner.get("feature", inner) if isinstance(inner, dict) else None
        if isinstance(inner, dict) and isinstance(inner.get("names"), list):
            names[column] = [str(name) for name in inner["names"]]
    return names


def _is_text(kind: DataType) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _longest(as_dictionaries: ParquetFile, group: int, columns: list[str] | None) -> int:
    """Bytes of the longest text in the dictionaries of a row group, where one of megabytes may be stored once for every
    row; 1 without dictionaries."""
    from pyarrow import compute, types

    first = next(as_dictionaries.iter_batches(1, row_groups=[group], columns=columns, use_threads=False), None)
    stored = [] if first is None else [each.dictionary for each in first.columns if types.is_dictionary(each.type)]
    lengths = (compute.max(compute.binary_length(texts)).as_py() for texts in stored if _is_text(texts.type))
    return max([1, *(length or 0 for length in lengths)])


@contextmanager
def refusing_damage(name: str, refuse: Refuse) -> Iterator[None]:
    """A block in which a Parquet file is read: refuses one that is damaged."""
    try:
        yield
    except Exception as error:
        is_arrow = type(error).__module__.startswith("pyarrow") or isinstance(error, UnicodeDecodeError)
        # An OSError with a number is of the file system; pyarrow's for damaged data have none.
        if not is_arrow and not (isinstance(error, OSError) and not error.errno):
            raise
        refuse(name, "damaged file", f"not a sound Parquet file ({error}): fetch or make the file again")


def _fields_of(batch: RecordBatch, name: str) -> Iterator[dict[str, Any]]:
    """The rows of a batch; times that Python cannot hold, such as nanoseconds, are text."""
    columns = [
        _values(column, f"{name}: the column {its!r}")
        for its, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    for cells in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, cells, strict=True))


def _values(column: Any, where: str) -> list[Any]:
    """The values of a column, with text for times that Python cannot hold, such as nanoseconds."""
    from pyarrow import ArrowException

    def value_of(scalar: Any) -> Any:
        try:
            return scalar.as_py()
        except (ValueError, OverflowError):
            return scalar.cast("string").as_py()

    try:
        try:
            return list(column.to_pylist())
        except (ValueError, OverflowError):
            return [value_of(scalar) for scalar in column]
    except ArrowException as error:
        raise InputError(
            f"{where} holds values of the type {column.type}, which cannot be read: leave that column out"
        ) from error


def _as_json(value: Any, place: str, column: str = "") -> Any:
    """A value as JSON could hold it; not a number is null.

    Args:
        place, column: where it is, for messages.
    """
    if isinstance(value, float) and value != value:
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {name: _as_json(item, place, column or name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item, place, column) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{place}: the column {column!r} holds bytes that are no text in UTF-8: leave that column out"
            ) from error
    return str(value)  # such as dates and decimal numbers
