"""Faults of the machine in the course of a run, one try of each kind: told, and the resumed run is the unbroken one.

`benchmarks/fault_drill.py` brings them about by the hundred, at random moments.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from support.commands import Command, Finished, check_last_error
from support.files import disk_of
from support.forked import Forked
from support.runs import assert_same_run, stop_at
from unmask.errors import Interrupted
from unmask.models.hub import files
from unmask.pretraining.run import pretrain
from unmask.training.run import checkpoint

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

Words = tuple[str, list[str]]


def give(unmask: Command, words: Words, run: Path, *more: str) -> Finished:
    recipe, overrides = words
    return unmask("pretrain", recipe, *overrides, "--out", run, "--workers=1", *more)


def interrupted(words: Words, run: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 7)
        with pytest.raises(Interrupted):
            pretrain(*words, out=run)


def check_resumed(unmask: Command, words: Words, run: Path, whole: Path) -> None:
    resumed = give(unmask, words, run, "--resume")
    assert resumed.code == 0, resumed.errors
    assert_same_run(run, whole)


def die_within_a_checkpoint() -> None:
    save_file = files.save_file

    def save_and_die(tensors: Any, path: Path) -> None:
        if "step-00000008" in str(path) and path.name == checkpoint.OPTIMIZER:
            os.kill(os.getpid(), signal.SIGKILL)
        save_file(tensors, path)

    files.save_file = save_and_die  # type: ignore[attr-defined]


def test_killed_within_a_checkpoint(unmask: Command, words: Words, whole: Path, tmp_path: Path) -> None:
    (recipe, overrides), run = words, tmp_path / "run"
    command = ["pretrain", recipe, *overrides, "--out", str(run), "--workers", "1"]
    killed = Forked(command, before=die_within_a_checkpoint)
    killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL
    left = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert left == [".unfinished-step-00000008", "step-00000004"]
    check_resumed(unmask, words, run, whole)
    assert not any((run / "checkpoints").glob(".unfinished-*"))


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


@pytest.mark.parametrize("kilobytes", [4, 12, 100, 500, 900, 1100])
def test_a_disk_that_is_full(unmask: Command, words: Words, whole: Path, tmp_path: Path, kilobytes: int) -> None:
    """Of the record of the run, its first, second and last checkpoint, and its model."""
    with disk_of(tmp_path, kilobytes) as disk:
        finished = give(unmask, words, disk / "run")
        assert finished.code == 2, kilobytes
        assert "the disk is full" in finished.errors.splitlines()[-1]
        remount(disk, "size=64m")
        check_resumed(unmask, words, disk / "run", whole)


def test_a_file_system_that_has_become_read_only(unmask: Command, words: Words, whole: Path, tmp_path: Path) -> None:
    with disk_of(tmp_path, 65536) as disk:
        interrupted(words, disk / "run")
        remount(disk, "ro")
        refused = give(unmask, words, disk / "run", "--resume")
        check_last_error(refused, f"cannot write {disk}")
        assert "Read-only file system" in refused.errors
        remount(disk, "rw")
        check_resumed(unmask, words, disk / "run", whole)


FLIPPED = {
    # the file and a text in it, one bit of whose last character is flipped; whether that is refused
    "recipe.yaml": (b"hidden_size: 32", False),
    "data.json": (b'": "', True),
    "metrics.jsonl": (b'"loss": 5', True),
    "environment.json": (b'"sessions"', True),
}


@pytest.mark.parametrize("name", FLIPPED)
def test_a_flipped_bit(unmask: Command, words: Words, whole: Path, tmp_path: Path, name: str) -> None:
    """A recipe is written anew; anything else is refused by its name until it is restored."""
    run, (text, is_refused) = tmp_path / "run", FLIPPED[name]
    interrupted(words, run)
    sound = (run / name).read_bytes()
    place = sound.index(text) + len(text) - 1
    (run / name).write_bytes(sound[:place] + bytes([sound[place] ^ 2]) + sound[place + 1 :])
    if is_refused:
        refused = give(unmask, words, run, "--resume")
        assert refused.code == 2, refused.errors
        assert str(run) in refused.errors.splitlines()[-1]
        (run / name).write_bytes(sound)
    check_resumed(unmask, words, run, whole)


def test_a_clock_that_runs_backwards(
    unmask: Command, words: Words, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, minutes = time.time(), count()
    monkeypatch.setattr(time, "time", lambda: now - 60 * next(minutes))
    interrupted(words, tmp_path / "run")
    check_resumed(unmask, words, tmp_path / "run", whole)
    assert next(minutes) > 10


def test_an_error_lets_the_checkpoint_under_way_be_finished(
    words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file, run, has_failed = files.save_file, tmp_path / "run", Event()

    def fail() -> None:
        has_failed.set()
        raise ZeroDivisionError

    def save_late(tensors: Any, path: Path) -> None:
        assert has_failed.wait(60)
        save_file(tensors, path)

    monkeypatch.setattr(files, "save_file", save_late)
    stop_at(monkeypatch, 5, fail)
    with pytest.raises(ZeroDivisionError):
        pretrain(*words, out=run)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000004"]
