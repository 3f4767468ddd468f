"""Two processes, or a process and a person, that write at one place: nobody's work is lost or mixed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.corpora import names
from support.files import write
from unmask.errors import AnotherProcess, OutputError
from unmask.io.writing import UNFINISHED, alone_in, writing, writing_directory

fcntl = pytest.importorskip("fcntl", reason="needs the locks of Linux and macOS")
WORKS_THERE = "out.d: another process works there at this moment: let it end, or choose another --out"
Opened = Callable[[Path], AbstractContextManager[Any]]


def no_locks(descriptor: int, operation: int) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_file_that_another_one_writes_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.d"
    with writing(path) as file:
        file.write(b"fi")
        with pytest.raises(AnotherProcess, match=f"/{WORKS_THERE}"), writing(path):
            pytest.fail("was opened")
        file.write(b"rst")
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["out.d"]


def test_a_directory_that_another_one_fills_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.d"
    with writing_directory(path) as unfinished:
        write(unfinished / "one", "first")
        with pytest.raises(AnotherProcess, match=f"/{WORKS_THERE}"), writing_directory(path, overwrite=True):
            pytest.fail("was opened")
        write(unfinished / "two", "first")
    assert (names(tmp_path), names(path)) == (["out.d"], ["one", "two"])
    with writing_directory(path, overwrite=True) as unfinished:  # it is let go of
        write(unfinished / "three")
    assert names(path) == ["three"]


def test_what_a_killed_process_has_left_is_written_anew(tmp_path: Path) -> None:
    write(tmp_path / f"{UNFINISHED}f", "half a li")
    with writing(tmp_path / "f") as file:
        file.write(b"whole")
    assert (tmp_path / "f").read_bytes() == b"whole"
    assert names(tmp_path) == ["f"]


@pytest.mark.parametrize("is_directory", [True, False])
def test_what_has_another_name_by_now_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_directory: bool
) -> None:
    """The one that held it ends between the opening and the lock."""
    left, lock = tmp_path / f"{UNFINISHED}out.d", fcntl.flock
    left.mkdir() if is_directory else left.touch()

    def lock_late(descriptor: int, operation: int) -> None:
        left.rename(tmp_path / "out.d")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    opened = writing_directory if is_directory else writing
    with pytest.raises(AnotherProcess, match=WORKS_THERE), opened(tmp_path / "out.d", overwrite=True):
        pytest.fail("was opened")
    assert names(tmp_path) == ["out.d"]


def test_a_file_system_without_locks_is_written_as_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with writing_directory(tmp_path / "d") as unfinished, writing(unfinished / "f"), alone_in(tmp_path):
        pass
    assert (names(tmp_path), names(tmp_path / "d")) == (["d"], ["f"])


@pytest.mark.parametrize("opened", [writing, partial(writing_directory, overwrite=True)])
def test_without_locks_the_one_that_came_last_has_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    monkeypatch.setattr(fcntl, "flock", no_locks)
    second = ExitStack()
    with pytest.raises(AnotherProcess, match=WORKS_THERE), opened(tmp_path / "out.d"):
        second.enter_context(opened(tmp_path / "out.d"))
    assert names(tmp_path) == [f"{UNFINISHED}out.d"]
    second.close()
    assert names(tmp_path) == ["out.d"]


@pytest.mark.parametrize("opened", [writing, writing_directory])
@pytest.mark.parametrize("removed", ["", f"{UNFINISHED}out.d"])
def test_what_somebody_removes_while_it_is_written_is_no_other_process(
    tmp_path: Path, opened: Opened, removed: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    message = r"out\.d: what was being written there has been removed: run the command again$"
    with pytest.raises(OutputError, match=message), opened(folder / "out.d"):
        (folder / removed).rename(tmp_path / "elsewhere")
    assert not (folder / "out.d").exists()


@pytest.mark.parametrize("opened", [writing, writing_directory])
def test_another_one_may_come_first_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    """It ends before what was seen is opened, or begins before a new one is made."""
    left, open_now = tmp_path / f"{UNFINISHED}out.d", os.open
    left.mkdir()

    def open_late(place: Path, flags: int) -> int:
        left.rmdir()
        return open_now(place, flags)

    monkeypatch.setattr(os, "open", open_late)
    with pytest.raises(AnotherProcess, match=WORKS_THERE), opened(tmp_path / "out.d"):
        pytest.fail("was opened")
    monkeypatch.setattr(os, "open", open_now)
    left.mkdir()
    monkeypatch.setattr("unmask.io.writing.remove", lambda place: None)
    with pytest.raises(AnotherProcess, match=WORKS_THERE), opened(tmp_path / "out.d"):
        pytest.fail("was opened")


def test_a_complete_directory_is_no_longer_what_is_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(directory: Path) -> None:
        if directory == tmp_path:
            write(tmp_path / f"{UNFINISHED}out.d" / "theirs")
            raise KeyboardInterrupt

    monkeypatch.setattr("unmask.io.writing._flush_entries", interrupt)
    with pytest.raises(KeyboardInterrupt), writing_directory(tmp_path / "out.d"):
        pass
    assert names(tmp_path) == [f"{UNFINISHED}out.d", "out.d"]
    assert names(tmp_path / f"{UNFINISHED}out.d") == ["theirs"]


@pytest.mark.parametrize("opened", [partial(writing, overwrite=False), writing_directory])
def test_what_is_refused_changes_nothing(tmp_path: Path, opened: Opened) -> None:
    write(tmp_path / "out.d", "mine")
    write(tmp_path / f"{UNFINISHED}out.d" / "half", "of a killed process")
    with pytest.raises(OutputError, match="exists already"), opened(tmp_path / "out.d"):
        pytest.fail("was opened")
    assert names(tmp_path / f"{UNFINISHED}out.d") == ["half"]


def test_what_another_user_has_left_and_nobody_may_read_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, open_now = write(tmp_path / f"{UNFINISHED}f", "theirs"), os.open
    of_left = left.stat()

    def refuse(place: Path, flags: int) -> int:
        if place == left and os.path.samestat(left.stat(), of_left):
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_now(place, flags)

    monkeypatch.setattr(os, "open", refuse)
    with open(left, "rb"), writing(tmp_path / "f") as file:  # open, so that its inode is not taken anew
        file.write(b"mine")
    assert (tmp_path / "f").read_bytes() == b"mine"
    assert names(tmp_path) == ["f"]


def test_any_name_may_be_written(tmp_path: Path) -> None:
    """Also one that looks like that of a directory that is being replaced."""
    with writing_directory(tmp_path / "replaced-d"):
        with pytest.raises(AnotherProcess, match="/replaced-d: another"), writing_directory(tmp_path / "replaced-d"):
            pytest.fail("was opened")
        with writing_directory(tmp_path / "d"):
            pass
    assert names(tmp_path) == ["d", "replaced-d"]


def test_a_directory_that_appears_meanwhile_is_kept_and_so_is_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "v1.5"
    write(tmp_path / "v1.5-2" / "theirs")
    appeared = r"v1\.5 has appeared while this command was at work, and is left as it is: what was made is .*/v1\.5-3$"
    with pytest.raises(OutputError, match=appeared):  # noqa: PT012, SIM117
        with writing_directory(path) as unfinished:
            write(unfinished / "new")
            write(path / "theirs")
    assert [names(tmp_path / name) for name in names(tmp_path)] == [["theirs"], ["theirs"], ["new"]]
    with writing_directory(tmp_path / "empty") as unfinished:
        write(unfinished / "new")
        write(tmp_path / "empty" / ".DS_Store")
    assert names(tmp_path) == ["empty", "v1.5", "v1.5-2", "v1.5-3"]
    assert names(tmp_path / "empty") == ["new"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_that_appears_meanwhile_is_kept_unless_it_may_be_replaced(tmp_path: Path, overwrite: bool) -> None:
    path = tmp_path / "out.jsonl"
    refused = pytest.raises(OutputError, match=r"what was made is .*/out-2\.jsonl")
    with nullcontext() if overwrite else refused, writing(path, overwrite) as file:
        file.write(b"new")
        write(path, "theirs")
    expected = {"out.jsonl": b"new"} if overwrite else {"out.jsonl": b"theirs", "out-2.jsonl": b"new"}
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == expected
