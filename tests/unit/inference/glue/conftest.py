"""GLUE with few rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unmask.inference.glue.submission import TABLES


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """GLUE as it would be with few rows, so that many submissions can be made; the rows of each file."""
    rows = {name: 4 + number for number, name in enumerate(TABLES)}
    for name, count in rows.items():
        monkeypatch.setitem(TABLES, name, replace(TABLES[name], rows=count))
    return rows
