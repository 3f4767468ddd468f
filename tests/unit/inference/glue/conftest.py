"""GLUE with few rows, answered without a model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.glue_runs import answer_in_turn
from unmask.inference.glue import submission
from unmask.inference.glue.submission import TABLES


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """GLUE as it would be with few rows, so that many submissions can be made, with a stub in the place
    of the models; the rows of each file."""
    rows = {name: 4 + number for number, name in enumerate(TABLES)}
    for name, count in rows.items():
        monkeypatch.setitem(TABLES, name, replace(TABLES[name], rows=count))
    monkeypatch.setattr(submission, "predict_file", answer_in_turn)
    return rows
