"""Arrays of features on disk: `.npy` files that grow while they are written, and are memory-mapped for reading.

Rows may be written in any order, and their number need not be known beforehand, unlike with NumPy's own writer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib.format import open_memmap, write_array_header_1_0
from numpy.typing import NDArray

from unmask.errors import SettingsError
from unmask.io.writing import as_output_error, writing

DTYPE = np.dtype("<f4")

_GROUP_BYTES = 2**26
"""Size of a Parquet row group, which is what readers and the writer hold in memory."""


class FeatureWriter:
    """Rows of a `.npy` file that is being written.

    Args:
        file: opened for binary writing.
        row_shape: the shape of one row.
    """

    def __init__(self, file: IO[bytes], row_shape: tuple[int, ...]) -> None:
        self._file = file
        self._row_shape = row_shape
        self._row_bytes = DTYPE.itemsize * math.prod(row_shape)
        self._write_header(0)
        self._start = file.tell()  # NumPy leaves room in the header for any number of rows

    def write(self, row: int, values: NDArray[np.float32]) -> None:
        """Writes rows at their place, the first at `row`; rows never written are zero."""
        assert values.shape[1:] == self._row_shape, f"rows of {values.shape[1:]}, expected {self._row_shape}"
        self._file.seek(self._start + row * self._row_bytes)
        self._file.write(np.ascontiguousarray(values, dtype=DTYPE).data)

    def finish(self, num_rows: int) -> None:
        """Gives the file its length and its header."""
        self._file.truncate(self._start + num_rows * self._row_bytes)
        self._file.seek(0)
        self._write_header(num_rows)

    def _write_header(self, num_rows: int) -> None:
        shape = (num_rows, *self._row_shape)
        write_array_header_1_0(self._file, {"descr": DTYPE.str, "fortran_order": False, "shape": shape})


@contextmanager
def writing_features(path: Path, row_shape: tuple[int, ...]) -> Iterator[FeatureWriter]:
    """A writer of a file that gets its final name when the block ends without error; the block calls `finish`.

    Raises:
        OutputError: the disk is full, or the place cannot be written.
    """
    with writing(path) as file:
        yield FeatureWriter(file, row_shape)


def map_features(path: Path) -> NDArray[np.float32]:
    """The array in a file, memory-mapped and read-only."""
    mapped: NDArray[np.float32] = open_memmap(path, mode="r")
    return mapped.view(np.ndarray)


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
    num_rows = max(1, _GROUP_BYTES // (DTYPE.itemsize * math.prod(sizes)))
    remaining = map(id_type, ids)
    with as_output_error(path), parquet.ParquetWriter(path, schema) as table:
        for start in range(0, len(features), num_rows):
            group = features[start : start + num_rows]
            column = pyarrow.array(group.ravel())
            for size in sizes:
                column = pyarrow.FixedSizeListArray.from_arrays(column, size)
            table.write_table(pyarrow.table([list(islice(remaining, len(group))), column], schema=schema))
