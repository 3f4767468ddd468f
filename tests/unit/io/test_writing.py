"""Files and directories appear whole or not at all, whatever goes wrong, and nothing of somebody else's is removed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from support.corpora import names
from support.files import write
from unmask.errors import OutputError
from unmask.io.writing import (
    UNFINISHED,
    as_output_error,
    refuse_existing,
    refuse_foreign,
    refuse_inputs_inside,
    sha256,
    write_json,
    write_text,
    writing,
    writing_directory,
)


def test_a_file_has_its_name_only_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "f.bin"
    with writing(path) as file:
        file.write(b"abc")
        assert names(tmp_path) == [f"{UNFINISHED}f.bin"]
    assert path.read_bytes() == b"abc"
    assert names(tmp_path) == ["f.bin"]


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_a_file_that_fails_leaves_the_old_one_as_it_was(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "f.bin"
    path.write_bytes(b"old")
    with pytest.raises((ValueError, KeyboardInterrupt, OutputError)):  # noqa: PT012, SIM117
        with writing(path) as file:
            file.write(b"new")
            raise error
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["f.bin"]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, replace = [], os.replace

    def sync(descriptor: int) -> None:
        state = os.fstat(descriptor)
        done.append("the folder" if stat.S_ISDIR(state.st_mode) else f"{state.st_size} bytes")

    def rename(source: Path, target: Path) -> None:
        done.append(f"is {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    with writing(tmp_path / "f") as file:
        file.write(b"abc")
    assert done == ["3 bytes", "is f", "the folder"]


def test_text_and_json_are_utf8(tmp_path: Path) -> None:
    write_text(tmp_path / "t", "조선 café\n")
    assert (tmp_path / "t").read_bytes() == "조선 café\n".encode()
    write_json(tmp_path / "j", {"b": "é", "a": 1})
    assert (tmp_path / "j").read_text("utf-8") == '{\n  "b": "é",\n  "a": 1\n}\n'
    assert json.loads((tmp_path / "j").read_bytes()) == {"b": "é", "a": 1}


def test_sha256_is_the_known_one(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert sha256(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_never_takes_the_place_of_a_device_or_a_pipe(tmp_path: Path, is_link: bool) -> None:
    path = special = tmp_path / "pipe"
    os.mkfifo(special)
    if is_link:
        path = tmp_path / "link"
        path.symlink_to(special)
    with pytest.raises(OutputError, match="pipe is a device, a pipe or a socket: expected a file"):
        write_text(path, "x")
    assert special.is_fifo()


# ------------------------------------------------------------------------------------------------------ directories


def fill(directory: Path, content: str) -> None:
    write(directory / "inner" / "f", content)


def test_a_directory_appears_whole_with_its_parents(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with writing_directory(path) as unfinished:
        fill(unfinished, "x")
        assert not path.exists()
    assert (path / "inner" / "f").read_text() == "x"
    assert names(path.parent) == ["b"]


@pytest.mark.parametrize("before", ["nothing", "empty", "full"])
def test_a_directory_that_fails_leaves_what_was_there(tmp_path: Path, before: str) -> None:
    path = tmp_path / "d"
    if before != "nothing":
        path.mkdir()
    if before == "full":
        fill(path, "old")
    there = names(tmp_path)
    with pytest.raises(ValueError, match="a bug"):  # noqa: PT012, SIM117
        with writing_directory(path, overwrite=True) as unfinished:
            fill(unfinished, "new")
            raise ValueError("a bug")
    assert names(tmp_path) == there
    if before == "full":
        assert (path / "inner" / "f").read_text() == "old"


def test_a_directory_is_replaced_when_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "d"
    path.mkdir()
    (path / "only in the old one").touch()
    left_by_a_kill = [tmp_path / f"{UNFINISHED}d", tmp_path / f"{UNFINISHED}.replaced-d"]
    for stale in left_by_a_kill:
        stale.mkdir()
        (stale / "f").touch()
    with writing_directory(path, overwrite=True) as unfinished:
        fill(unfinished, "new")
        assert names(path) == ["only in the old one"]
    assert names(path) == ["inner"]
    assert names(tmp_path) == ["d"]


def test_a_directory_that_cannot_be_replaced_has_its_name_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d"
    path.mkdir()
    fill(path, "old")
    calls, replace = count(1), os.replace

    def fail_at_second(source: Path, target: Path) -> None:
        if next(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_at_second)
    with pytest.raises(OutputError, match=r"cannot write .*d: Input/output error"):  # noqa: SIM117
        with writing_directory(path, overwrite=True) as unfinished:
            fill(unfinished, "new")
    assert names(tmp_path) == ["d"]
    assert (path / "inner" / "f").read_text() == "old"


def test_a_directory_takes_no_file_away(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("a file")
    with pytest.raises(OutputError, match="d is a file"), writing_directory(tmp_path / "d", overwrite=True):
        pytest.fail("was opened")
    assert (tmp_path / "d").read_text() == "a file"
    assert names(tmp_path) == ["d"]


@pytest.mark.parametrize("fails", [True, False])
def test_a_directory_whose_replacement_was_killed_has_its_name_again(tmp_path: Path, fails: bool) -> None:
    fill(tmp_path / f"{UNFINISHED}.replaced-d", "old")
    fill(tmp_path / f"{UNFINISHED}d", "new, and complete or not")
    with pytest.raises(OutputError, match="exists already"), writing_directory(tmp_path / "d"):
        pytest.fail("was opened")
    with suppress(ValueError), writing_directory(tmp_path / "d", overwrite=True) as unfinished:
        fill(unfinished, "newer")
        if fails:
            raise ValueError("a bug")
    assert names(tmp_path) == ["d"]
    assert (tmp_path / "d" / "inner" / "f").read_text() == ("old" if fails else "newer")


def test_what_was_replaced_never_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill while it is removed leaves it under a name from which nothing is restored."""
    fill(tmp_path / "d", "old")
    with monkeypatch.context() as patched, writing_directory(tmp_path / "d", overwrite=True) as unfinished:
        fill(unfinished, "new")
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
    assert names(tmp_path) == [f"{UNFINISHED}.removed-d", "d"]
    assert (tmp_path / "d" / "inner" / "f").read_text() == "new"
    shutil.rmtree(tmp_path / "d")
    with writing_directory(tmp_path / "d") as unfinished:
        fill(unfinished, "newer")
    assert names(tmp_path) == ["d"]
    assert (tmp_path / "d" / "inner" / "f").read_text() == "newer"


def test_links_and_pipes_in_a_directory_are_no_hindrance(tmp_path: Path) -> None:
    with writing_directory(tmp_path / "d") as unfinished:
        (unfinished / "link").symlink_to("nowhere")
        if hasattr(os, "mkfifo"):
            os.mkfifo(unfinished / "pipe")
    assert (tmp_path / "d" / "link").is_symlink()


def test_the_current_directory_can_be_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with writing_directory(Path(".")) as unfinished:
        fill(unfinished, "x")
    assert (here / "inner" / "f").read_text() == "x"


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "other disk").mkdir()
    (tmp_path / "link").symlink_to("other disk")
    for text in ("x", "y"):
        with writing_directory(tmp_path / "link", overwrite=True) as unfinished:
            fill(unfinished, text)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "other disk" / "inner" / "f").read_text() == "y"
    (tmp_path / "file").symlink_to("other disk/inner/f")
    with writing(tmp_path / "file") as file:
        file.write(b"z")
    assert (tmp_path / "other disk" / "inner" / "f").read_text() == "z"
    assert names(tmp_path) == ["file", "link", "other disk"]


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    """A directory from elsewhere may hold one of the name that a file has while it is written."""
    (tmp_path / "theirs").write_text("precious")
    (tmp_path / f"{UNFINISHED}f").symlink_to("theirs")
    write_text(tmp_path / "f", "new")
    assert (tmp_path / "theirs").read_text() == "precious"
    assert not (tmp_path / "f").is_symlink()
    assert names(tmp_path) == ["f", "theirs"]


def test_what_exists_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "f").touch()
    (tmp_path / "empty").mkdir()
    for name in ("file", "full"):
        with pytest.raises(OutputError, match=f"{name} exists already and would be overwritten: choose another name"):
            refuse_existing(tmp_path / name, overwrite=False)
        with pytest.raises(OutputError, match="exists already"), writing_directory(tmp_path / name):
            pytest.fail("was opened")
        refuse_existing(tmp_path / name, overwrite=True)
    refuse_existing(tmp_path / "empty", overwrite=False)
    (tmp_path / "empty" / ".DS_Store").touch()
    refuse_existing(tmp_path / "empty", overwrite=False)
    refuse_existing(tmp_path / "missing", overwrite=False)
    with pytest.raises(OutputError, match="name too long"):
        refuse_existing(tmp_path / ("x" * 300), overwrite=False)


def test_what_is_read_is_never_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inside, other = write(tmp_path / "d" / "in.csv"), write(tmp_path / "other.csv")
    (tmp_path / "link").symlink_to("d")
    for out in (tmp_path / "d", Path("d"), Path("link")):
        with pytest.raises(
            OutputError, match=f"in.csv is needed and lies in {out}, which would be overwritten: choose"
        ):
            refuse_inputs_inside(out, [other, inside])
    with pytest.raises(OutputError, match=r"in\.csv is needed and would be overwritten: choose another --out"):
        refuse_inputs_inside(Path("d/in.csv"), [inside])
    refuse_inputs_inside(tmp_path / "d" / "out.csv", [inside, other])
    refuse_inputs_inside(Path("."), [Path("-")])  # standard input


def test_anything_foreign_is_named(tmp_path: Path) -> None:
    for name in ("part-1.bin", ".DS_Store", "._part-1.bin", ".nfs0001"):
        (tmp_path / name).touch()
    own = ("part-*.bin", "index")
    refuse_foreign(tmp_path, own, "a thing")
    refuse_foreign(tmp_path / "missing", own, "a thing")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(OutputError, match=r"holds notes.txt, which is no part of a thing, so nothing in it is touched"):
        refuse_foreign(tmp_path, own, "a thing")
    with pytest.raises(OutputError, match=r"notes.txt: Not a directory"):
        refuse_foreign(tmp_path / "notes.txt", own, "a thing")


def test_a_directory_without_its_mark_is_something_else(tmp_path: Path) -> None:
    own = ("part-*.bin", "index")
    refuse_foreign(tmp_path, own, "a thing", "index")  # empty
    (tmp_path / "part-1.bin").touch()
    with pytest.raises(OutputError, match=r"is not a thing \(index is missing\), so nothing in it is touched"):
        refuse_foreign(tmp_path, own, "a thing", "index")
    (tmp_path / "index").touch()
    refuse_foreign(tmp_path, own, "a thing", "index")


# ------------------------------------------------------------------------------------------- what the system refuses


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the disk is full while writing .*f: free some space, or write elsewhere"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EACCES, "cannot write .*f: Permission denied; choose a place that can be written"),
        (errno.EROFS, "cannot write .*f: Read-only file system"),
        (errno.EFBIG, "cannot write .*f: File too large"),
        (errno.EIO, "cannot write .*f: Input/output error"),
        (errno.ESTALE, "cannot write .*f: Stale file handle"),
    ],
)
def test_the_systems_refusals_are_reported(tmp_path: Path, number: int, message: str) -> None:
    with pytest.raises(OutputError, match=message), as_output_error(tmp_path / "f"):
        raise OSError(number, os.strerror(number))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*/gone/f: there is no folder .*/gone: make it first"):
        write_text(tmp_path / "gone" / "f", "")


def test_what_is_unfinished_is_named_as_it_will_be(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"full while writing [^ ]*/sp/test\.jsonl: free"):  # noqa: SIM117
        with writing_directory(tmp_path / "sp") as unfinished, writing(unfinished / "test.jsonl"):
            raise OSError(errno.ENOSPC, "full")
    given = Path("/proc/unmask-test")
    if given.parent.is_dir():  # there the system says that there is no such file
        with pytest.raises(OutputError, match=rf"^cannot write {given}: No such file"), writing_directory(given):
            pytest.fail("was opened")
        with pytest.raises(OutputError, match=rf"^cannot write {given}: No such file"):
            write_text(given, "x")


def test_other_errors_pass_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="odd"), as_output_error(tmp_path):
        raise OSError(errno.EPIPE, "odd")


def test_a_place_under_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="Not a directory"), writing_directory(tmp_path / "file" / "d"):
        pytest.fail("was opened")
    (tmp_path / "d").mkdir()
    with pytest.raises(OutputError, match="Is a directory"):
        write_text(tmp_path / "d", "x")
    assert names(tmp_path) == ["d", "file"]
