"""Features as a `.parquet` table."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import SettingsError
from unmask.io.writing import as_output_error

_GROUP_BYTES = 2**26
"""Size of a Parquet row group, which is what readers and the writer hold in memory."""


def check_pyarrow() -> None:
    """Raises SettingsError if `pyarrow`, which writes Parquet, is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise SettingsError("writing Parquet needs pyarrow: pip install 'unmask[parquet]'") from error


def write_parquet(
    path: Path, features: NDArray[np.float32], ids: Iterable[Any], id_type: type[int] | type[str]
) -> None:
    """Writes features as a table with the columns `id` and `features`: a fixed-size list, nested if there are layers.

    Args:
        features: (rows, width) or (rows, layers, hidden); may be memory-mapped.
        ids: of the rows.
        id_type: what all of them are written as; integers have 64 bits.

    Raises:
        OutputError: the disk is full, or the place cannot be written.
    """
    import pyarrow
    from pyarrow import parquet

    sizes = tuple(reversed(features.shape[1:]))
    kind = pyarrow.float32()
    for size in sizes:
        kind = pyarrow.list_(kind, size)
    id_kind = pyarrow.int64() if id_type is int else pyarrow.string()
    schema = pyarrow.schema([("id", id_kind), ("features", kind)])
    num_rows = max(1, _GROUP_BYTES // (features.itemsize * math.prod(sizes)))
    remaining = map(id_type, ids)
    with as_output_error(path), parquet.ParquetWriter(path, schema) as table:
        for start in range(0, len(features), num_rows):
            group = features[start : start + num_rows]
            column = pyarrow.array(group.ravel())
            for size in sizes:
                column = pyarrow.FixedSizeListArray.from_arrays(column, size)
            table.write_table(pyarrow.table([list(islice(remaining, len(group))), column], schema=schema))
