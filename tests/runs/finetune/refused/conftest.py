"""Fine-tuning through the real command that is to be refused."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def without_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have tests of their own."""
    monkeypatch.setattr("unmask.finetuning.run.write_report", lambda directory: None)
