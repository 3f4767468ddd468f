"""Arrays on disk: `.npy` files that grow while they are written, and are memory-mapped for reading.

Rows may be written in any order, and their number need not be known beforehand, unlike with NumPy's own writer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib.format import open_memmap, write_array_header_1_0
from numpy.typing import NDArray

from unmask.io.writing import writing

DTYPE = np.dtype("<f4")


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
