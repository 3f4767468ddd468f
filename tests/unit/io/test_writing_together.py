"""Two processes, or a process and a person, that write at one place: nobody's work is lost or mixed."""

from __future__ import annotations

import errno
from contextlib import nullcontext
from pathlib import Path

import pytest

from support.corpora import names
from support.files import write
from unmask.errors import AnotherProcess, OutputError
from unmask.io.writing import UNFINISHED, alone_in, writing, writing_directory

fcntl = pytest.importorskip("fcntl")
WORKS_THERE = "out.d: another process works there at this moment: let it end, or choose another --out"


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
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with writing_directory(tmp_path / "d") as unfinished, writing(unfinished / "f"), alone_in(tmp_path):
        pass
    assert (names(tmp_path), names(tmp_path / "d")) == (["d"], ["f"])


def test_a_directory_that_appears_meanwhile_is_kept_and_so_is_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write(tmp_path / "out-2" / "theirs")
    appeared = "out has appeared while this command was at work, and is left as it is: what was made is .*/out-3$"
    with pytest.raises(OutputError, match=appeared):  # noqa: PT012, SIM117
        with writing_directory(path) as unfinished:
            write(unfinished / "new")
            write(path / "theirs")
    assert [names(tmp_path / name) for name in names(tmp_path)] == [["theirs"], ["theirs"], ["new"]]
    with writing_directory(tmp_path / "empty") as unfinished:
        write(unfinished / "new")
        write(tmp_path / "empty" / ".DS_Store")
    assert names(tmp_path) == ["empty", "out", "out-2", "out-3"]
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
