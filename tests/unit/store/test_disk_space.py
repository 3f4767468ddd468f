"""The space that a store needs: of what is free, and of what is there already."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from unmask.errors import OutputError
from unmask.store.disk_space import Estimate, check_free_space

ESTIMATE = Estimate(text_bytes=400, documents=1, tokens=100, store_bytes=90)


def test_finished_shards_need_no_space_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=20))
    out = tmp_path / "store"
    with pytest.raises(OutputError, match="the store will need about 90 B, but only 20 B are free"):
        check_free_space(out, ESTIMATE)
    out.mkdir()
    (out / "tokens-00000.bin").write_bytes(bytes(69))
    told = "the store will need about 90 B, 69 B of which are there, but only 20 B are free"
    with pytest.raises(OutputError, match=told):
        check_free_space(out, ESTIMATE)
    (out / "sentences-00000.bin").write_bytes(bytes(1))
    assert check_free_space(out, ESTIMATE).endswith("about 90 B, 70 B of which are there; 20 B are free")
