"""Rows of `.parquet` files, streamed by row groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import IO, Any

from unmask.errors import InputError
from unmask.io.reading import check_library
from unmask.io.rows import Refuse, Row, Table, is_sound_header
from unmask.io.settings import TableSettings

PARQUET_ROWS = 256
"""Rows of a `.parquet` in memory at a time, besides what one row group needs."""


def open_parquet(
    file: IO[bytes],
    name: str,
    refuse: Refuse,
    column: str | None = None,
    on_share: Callable[[float], None] | None = None,
) -> Table:
    """A Parquet file; places are row numbers from 1; dates and decimal numbers are returned as text.

    Args:
        column: the only one that is read; None reads all.
        on_share: is called with the share of the file that was read, after each row group.

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
            for batch in table.iter_batches(PARQUET_ROWS, row_groups=[group], columns=columns, use_threads=False):
                for fields in batch.to_pylist():
                    number += 1
                    yield Row(_as_json(fields, f"{name}:{number}"), f"{name}:{number}")
            if on_share is not None:
                on_share((group + 1) / table.num_row_groups)

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
