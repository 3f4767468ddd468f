"""Temporary directories, and what killed processes have left."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.corpora import names
from unmask.io.writing import temporary_directory


def ended_process() -> str:
    command = [sys.executable, "-c", "import os; print(os.getpid())"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def test_what_a_killed_process_has_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    here, gone = platform.node(), ended_process()
    (tmp_path / f"a-kind-{here}-{gone}-x1y2" / "checkpoints").mkdir(parents=True)
    others = [f"a-kind-{here}-{os.getpid()}-aa", f"a-kind-elsewhere-{gone}-bb", f"another-{here}-{gone}-cc"]
    for name in [*others, "a-kind-old"]:
        (tmp_path / name).mkdir()
    with temporary_directory("a-kind") as place:
        assert names(tmp_path) == sorted([*others, "a-kind-old", place.name])
        (place / "kept.txt").write_text("until it ends")
    assert names(tmp_path) == sorted([*others, "a-kind-old"])


@pytest.mark.parametrize("kind", ["a pipe", "a link", "another's"])
def test_what_others_have_put_there_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = tmp_path / f"a-kind-{platform.node()}-{ended_process()}-x1y2"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a link":
        path.symlink_to(tmp_path, target_is_directory=True)
    else:
        path.mkdir()
        monkeypatch.setattr(os, "getuid", lambda: -1)
    with temporary_directory("a-kind", tmp_path):
        assert path in tmp_path.iterdir()


def test_one_of_another_container_is_kept_while_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may have the same host name and the same folder, and processes of its own."""
    ended = int(ended_process())
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: ended)
        theirs = temporary_directory("a-kind", tmp_path)
        used = theirs.__enter__()
    with temporary_directory("a-kind", tmp_path):
        assert used.is_dir()
    theirs.__exit__(None, None, None)
    assert names(tmp_path) == []
