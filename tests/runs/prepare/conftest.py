"""A disk that is soon full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.files import disk_of


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    with disk_of(tmp_path, 64) as disk:
        yield disk
