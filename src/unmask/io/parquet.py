"""Rows of `.parquet` files, streamed by row groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from unmask.errors import InputError
from unmask.io.encodings import MOST_LINE_BYTES
from unmask.io.reading import check_library
from unmask.io.rows import Refuse, Row, Table, is_sound_header
from unmask.io.settings import TableSettings

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch
    from pyarrow.parquet import ParquetFile

PARQUET_ROWS = 256
"""Most rows of a `.parquet` in memory at a time, besides what one row group needs."""


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
        for group in range(table.num_row_groups):
            num_rows = min(PARQUET_ROWS, max(1, MOST_LINE_BYTES // _longest(file, table, group, columns)))
            for batch in table.iter_batches(num_rows, row_groups=[group], columns=columns, use_threads=False):
                for part in _parts_of(batch):
                    is_read = part.num_rows > 1 or _num_bytes(part.columns) <= MOST_LINE_BYTES
                    for fields in _fields_of(part, name) if is_read else [None]:
                        number += 1
                        place = f"{name}:{number}"
                        if on_share is not None:
                            on_share(number / table.metadata.num_rows)
                        if fields is not None:
                            yield Row(_as_json(fields, place), place)
                        else:
                            problem = f"a row of over {MOST_LINE_BYTES:,} bytes: expected texts; take that row out"
                            refuse(place, "too long a row", problem)

    is_sound = is_sound_header(names, name, TableSettings(), refuse)
    return Table(
        names if is_sound else (), name, rows() if is_sound else iter(()), dict(zip(names, types, strict=True))
    )


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


def _longest(file: IO[bytes], table: ParquetFile, group: int, columns: list[str] | None) -> int:
    """Bytes that a cell of a row group may have, by the first row and the dictionaries: a text of megabytes that is
    stored once may be in every row."""
    from pyarrow.parquet import ParquetFile

    schema, chunks = table.schema, table.metadata.row_group(group)
    texts = [
        schema.column(each).path
        for each in range(chunks.num_columns)
        if chunks.column(each).physical_type == "BYTE_ARRAY" and schema.column(each).logical_type.type != "DECIMAL"
    ]
    if chunks.num_rows <= 1 or not texts:
        return 1
    as_dictionaries = ParquetFile(file, metadata=table.metadata, read_dictionary=texts, pre_buffer=False)
    first = next(as_dictionaries.iter_batches(1, row_groups=[group], columns=columns, use_threads=False), None)
    return 1 if first is None else max([1, *(max(each.nbytes, _num_bytes([each])) for each in first.columns)])


def _parts_of(batch: RecordBatch) -> Iterator[RecordBatch]:
    """A batch, or its rows one by one where they are large, since each becomes a text of its own."""
    if _num_bytes(batch.columns) <= MOST_LINE_BYTES // 8:
        yield batch
    else:
        yield from (batch.slice(row, 1) for row in range(batch.num_rows))


def _num_bytes(columns: Iterable[Any]) -> int:
    """The size of the values of columns, each as often as it is there; where they are not texts, roughly."""
    from pyarrow import compute, types

    size = 0
    for column in columns:
        kind = column.type
        if types.is_dictionary(kind):
            lengths = _lengths(column.dictionary).cast("int64").take(column.indices)
            size += compute.sum(lengths).as_py() or 0
        elif types.is_map(kind):  # of which `flatten` knows nothing
            begin, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
            size += _num_bytes(each.slice(begin, end - begin) for each in (column.keys, column.items))
        elif types.is_nested(kind):
            size += _num_bytes(column.flatten() if types.is_struct(kind) else [column.flatten()])
        elif _is_text(kind):
            size += compute.sum(_lengths(column)).as_py() or 0
        else:
            size += column.nbytes
    return size


def _is_text(kind: DataType) -> bool:
    return str(kind) in ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")


def _lengths(texts: Any) -> Any:
    """Bytes of each text; a view cannot be asked."""
    from pyarrow import compute

    return compute.binary_length(texts.cast("large_binary") if str(texts.type).endswith("_view") else texts)


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
