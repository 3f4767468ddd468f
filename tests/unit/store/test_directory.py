"""The directory of a store in the making."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.io.writing import is_held
from unmask.store import directory
from unmask.store.directory import unfinished_store
from unmask.store.shard_writer import remove_unfinished


def test_a_failure_tidies_up_before_another_process_can_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    was_held = []

    def remove(out: Path) -> int:
        was_held.append(is_held(out))
        return remove_unfinished(out)

    monkeypatch.setattr(directory, "remove_unfinished", remove)
    with pytest.raises(ValueError, match="a fault"), unfinished_store(tmp_path / "store"):
        raise ValueError("a fault")
    assert was_held == [True, True], "before the attempt and after it"
    assert not (tmp_path / "store").exists()
