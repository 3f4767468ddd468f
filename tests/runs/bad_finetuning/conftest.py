"""Fine-tuning through the real command that is to be refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def without_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have tests of their own."""
    monkeypatch.setattr("unmask.finetuning.run.write_report", lambda directory: None)


def assert_refused(result: Any, message: str) -> None:
    """One error, at the end, told as the user is to read it, and no more than that."""
    code, output, errors = result
    assert code == 2, errors
    assert output == ""
    told = [line for line in errors.splitlines() if not line.startswith("  ")]  # an error's further lines are indented
    assert told[-1].startswith(f"error: {message}"), errors
    assert not any(line.startswith("error: ") for line in told[:-1])
    assert "Traceback" not in errors


@pytest.fixture(scope="session")
def check_refused() -> Callable[[Any, str], None]:
    return assert_refused
