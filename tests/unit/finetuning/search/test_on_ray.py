"""A cluster of `unmask.finetuning.search.on_ray` that does not answer leaves no process behind."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unmask.errors import SettingsError
from unmask.finetuning.search import on_ray
from unmask.finetuning.search.on_ray import RayMachines


def test_what_connects_is_closed_where_nothing_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Silent:
        def __init__(self, *_: str) -> None:
            """Connects."""

        def count(self, _: dict[str, float]) -> int:
            raise SettingsError("no answer for two minutes")

        def close(self) -> None:
            closed.append(True)

    monkeypatch.setattr(on_ray, "RayProcess", Silent)
    (tmp_path / "environment.json").touch()
    runs: Any = SimpleNamespace(directory=tmp_path, num_threads=1)
    with pytest.raises(SettingsError, match="no answer"):
        RayMachines("auto", 1, "auto", runs)
    assert closed == [True]
