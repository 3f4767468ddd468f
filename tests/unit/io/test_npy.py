"""Arrays that grow while they are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from unmask.io.npy import map_features, writing_features


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (1000, 2, 3)])
def test_files_are_numpys_own(shape: tuple[int, ...], tmp_path: Path) -> None:
    values: NDArray[np.float32] = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    path = tmp_path / "array.npy"
    with writing_features(path, shape[1:]) as writer:
        for row in np.random.default_rng(1).permutation(shape[0]):
            writer.write(int(row), values[row : row + 1])
        writer.finish(shape[0])
    for read in (np.load(path), np.load(path, mmap_mode="r"), map_features(path)):
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, values)
