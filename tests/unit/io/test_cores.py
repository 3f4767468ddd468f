"""Cores of `unmask.io.cores`: a container's quota counts where it is worth fewer than there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.io import cores
from unmask.io.cores import count_cores, quota_of_cores


@pytest.mark.parametrize(
    ("quota", "worth", "count"),
    [
        ("max 100000", None, 8),
        ("200000 100000", 2, 2),
        ("150000 100000", 2, 2),
        ("5000 100000", 1, 1),
        ("9 1", None, 8),
    ],
)
def test_a_quota(quota: str, worth: int | None, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert (quota_of_cores(), count_cores()) == (None, 8), "no such file"
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert (quota_of_cores(), count_cores()) == (worth, count)
