"""A preparation that is stopped, killed or out of disk space: what is kept is whole, and resumes to the same bytes."""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.corpora import contents, names
from unmask.errors import Interrupted, OutputError, StoreError
from unmask.store import preparation
from unmask.store.preparation import prepare
from unmask.store.shard_writer import ShardWriter
from unmask.store.store import TokenStore
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.settings import TokenizerSettings

SHARD_BYTES = 4000
"""Three of the twelve documents: four shards."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_text: Path, tiny_store: Path) -> Path:
    """`text.jsonl`, and two tokenizers for it."""
    folder = tmp_path_factory.mktemp("prepare")
    shutil.copy(tiny_text, folder / "text.jsonl")
    shutil.copytree(tiny_store / "tokenizer", folder / "tokenizer")
    train_tokenizer([tiny_text], folder / "other", TokenizerSettings(vocab_size=150))
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """The store that nothing interrupted."""
    store = prepare_here(folder, folder / "whole")
    assert [shard["documents"] for shard in store.manifest["shards"]] == [3, 3, 3, 3]
    return folder / "whole"


def prepare_here(folder: Path, out: Path, **options: Any) -> TokenStore:
    return prepare([folder / "text.jsonl"], folder / "tokenizer", out, **{"shard_bytes": SHARD_BYTES, **options})


# -------------------------------------------------------------------------------------------------- stopped and killed

CHILD = """
import multiprocessing, sys
from unmask.store import preparation
from unmask.cli.main import main
from unmask.store import encoding, shard_writer

encoding.CHUNK_BYTES = 1000
preparation.prepare.__kwdefaults__["shard_bytes"] = 4000

def stop(place):
    def wait(self_or_path, *arguments):
        result = place(self_or_path, *arguments)
        number = getattr(self_or_path, "_number", None)
        if number == SHARD or str(self_or_path).endswith(f"tokens-0000{SHARD}.bin"):
            print("ready", *[child.pid for child in multiprocessing.active_children()], flush=True)
            sys.stdin.read()
        return result
    return wait

SHARD, PLACE = int(sys.argv.pop(1)), sys.argv.pop(1)
if PLACE == "in a shard":
    shard_writer.ShardWriter.add = stop(shard_writer.ShardWriter.add)
if PLACE == "before its record":
    shard_writer.describe_file = stop(shard_writer.describe_file)
if __name__ == "__main__":
    main()
"""
"""`unmask` that stops in shard SHARD until its standard input is closed: twice in the same place for every test."""


@contextmanager
def preparing(
    folder: Path, out: Path, shard: int, place: str, num_workers: int = 1
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process that has come to a place in a shard, in a group of its own, and waits there; and its workers' ids."""
    command = [sys.executable, "-c", CHILD, str(shard), place, "prepare", str(folder / "text.jsonl")]
    command += ["--tokenizer", str(folder / "tokenizer"), "--out", str(out), "--workers", str(num_workers)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready"), process.stderr.read() if process.stderr else ""
            yield process, [int(pid) for pid in line.split()[1:]]
        finally:
            process.kill()


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Lets a process go on to its end: its exit code and the last line of its errors, after any lines of progress."""
    _, errors = process.communicate()
    assert "Traceback" not in errors
    return process.returncode, errors.splitlines()[-1]


def shard_files(*numbers: int) -> list[str]:
    names = ("documents-{:05d}.bin", "sentences-{:05d}.bin", "shard-{:05d}.json", "tokens-{:05d}.bin")
    return sorted(name.format(number) for name in names for number in numbers)


def test_a_worker_that_is_killed_is_told_and_finished_shards_are_kept(
    folder: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    with preparing(folder, out, 2, "in a shard", num_workers=2) as (process, workers):
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        _, errors = process.communicate()
    assert process.returncode == 2
    *_, told, kept = errors.splitlines()
    assert told == "error: a worker process was killed by SIGKILL (out of memory?): try fewer --workers"
    # What the workers were asked before one was killed may have been answered: then shard 2 was finished too.
    assert kept in [f"{n} finished shard(s) are kept: the same command with --resume continues" for n in (2, 3)]
    assert "Traceback" not in errors
    assert all(path.name.rpartition("-")[0] in ("tokens", "sentences", "documents", "shard") for path in out.iterdir())
    prepare_here(folder, out, resume=True)
    assert contents(out) == contents(whole)


@pytest.mark.parametrize("place", ["in a shard", "before its record"])
def test_killed_and_resumed_gives_the_same_bytes(folder: Path, whole: Path, tmp_path: Path, place: str) -> None:
    out = tmp_path / "store"
    with preparing(folder, out, 2, place) as (process, _):
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert set(shard_files(0, 1)) < set(names(out))
    with pytest.raises(StoreError, match=r"an unfinished store .*--resume` continues it"):
        TokenStore(out)
    with pytest.raises(OutputError, match=r"exists already .*pass --resume to continue it, or --overwrite"):
        prepare_here(folder, out)
    kept = (out / "tokens-00000.bin").stat().st_ino
    prepare_here(folder, out, resume=True)
    assert contents(out) == contents(whole)
    assert (out / "tokens-00000.bin").stat().st_ino == kept, "a finished shard was made again"


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGINT, 130, "stopped by Ctrl-C"), (signal.SIGTERM, 143, "stopped by SIGTERM")],
)
def test_a_signal_keeps_finished_shards_and_says_so(
    folder: Path, whole: Path, tmp_path: Path, number: int, code: int, message: str
) -> None:
    out = tmp_path / "store"
    with preparing(folder, out, 2, "in a shard") as (process, _):
        process.send_signal(number)
        told = f"{message}; 2 finished shard(s) are kept: the same command with --resume continues"
        assert finished(process) == (code, told)
    assert names(out) == shard_files(0, 1)
    prepare_here(folder, out, resume=True)
    assert contents(out) == contents(whole)


def test_a_signal_before_the_first_shard_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    with preparing(folder, tmp_path / "store", 0, "in a shard") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert finished(process) == (143, "stopped by SIGTERM; no shard was finished, so nothing is kept")
    assert names(tmp_path) == []


def ended(pids: Sequence[int]) -> bool:
    """Whether processes end within half a minute: a wait for something that comes at once, or never."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with os.fdopen(descriptor):
            if not select.select([descriptor], [], [], 30)[0]:
                return False
    return True


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waiting for another's process needs Linux")
@pytest.mark.parametrize("how", ["killed", "told with its whole group"])
def test_workers_end_with_the_process_that_started_them(folder: Path, tmp_path: Path, how: str) -> None:
    out = tmp_path / "store"
    with preparing(folder, out, 2, "in a shard", num_workers=2) as (process, workers):
        assert len(workers) == 2
        if how == "killed":
            process.send_signal(signal.SIGKILL)
            process.wait()
        else:
            os.killpg(process.pid, signal.SIGTERM)
            code, told = finished(process)
            assert (code, told.split(";")[0]) == (143, "stopped by SIGTERM")
            assert names(out) == shard_files(0, 1)
        assert ended(workers)


# ------------------------------------------------------------------------------------------------------------- resuming


@pytest.fixture
def stopped(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of which two shards are finished."""
    out = tmp_path / "stopped"
    add = ShardWriter.add

    def stop_in_shard_2(self: ShardWriter, chunk: Any) -> None:
        if self._number == 2:
            raise Interrupted("stopped by SIGTERM", signal.SIGTERM)
        add(self, chunk)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "add", stop_in_shard_2)
        with pytest.raises(Interrupted):
            prepare_here(folder, out)
    assert names(out) == shard_files(0, 1)
    return out


Resume = Callable[[Path, Path], TokenStore]
"""Goes on with the store at a path, given the folder of texts and tokenizers."""


def with_text(change: Callable[[list[str]], list[str]]) -> Resume:
    def resume(folder: Path, out: Path) -> TokenStore:
        changed = out.parent / "changed.jsonl"
        documents = (folder / "text.jsonl").read_text("utf-8").splitlines(keepends=True)
        changed.write_text("".join(change(documents)), "utf-8")
        return prepare([changed], folder / "tokenizer", out, resume=True, shard_bytes=SHARD_BYTES)

    return resume


def with_another_tokenizer(folder: Path, out: Path) -> TokenStore:
    return prepare([folder / "text.jsonl"], folder / "other", out, resume=True, shard_bytes=SHARD_BYTES)


def with_another_size(folder: Path, out: Path) -> TokenStore:
    return prepare_here(folder, out, resume=True, shard_bytes=9)


DOCUMENT = '{"text": "Changed."}\n'


@pytest.mark.parametrize(
    ("resume", "different"),
    [
        pytest.param(with_text(lambda documents: [DOCUMENT, *documents[1:]]), "text", id="the first document"),
        pytest.param(with_text(lambda documents: documents[::-1]), "text", id="another order"),
        pytest.param(with_text(lambda documents: documents[:2]), "text", id="less than one shard"),
        pytest.param(with_text(lambda documents: documents[:3]), "text", id="shard 0 and no more"),
        pytest.param(with_another_tokenizer, "tokenizer", id="another tokenizer"),
        pytest.param(with_another_size, "shard_bytes", id="another size"),
    ],
)
def test_resuming_with_anything_else_is_refused(folder: Path, stopped: Path, resume: Resume, different: str) -> None:
    before = contents(stopped)
    with pytest.raises(StoreError, match=rf"{stopped}: what is there was made from another .*{different}.*--overwrite"):
        resume(folder, stopped)
    assert contents(stopped) == before


def test_a_shard_that_does_not_say_its_splitter_is_refused(folder: Path, stopped: Path) -> None:
    path = stopped / "shard-00000.json"
    record = json.loads(path.read_text())
    del record["made_from"]["splitter"]
    path.write_text(json.dumps(record))
    with pytest.raises(StoreError, match="made from another --sentences: start"):
        prepare_here(folder, stopped, resume=True)


def test_text_added_behind_is_taken_in(folder: Path, stopped: Path) -> None:
    """What has been written stays right: only the finished shards have to be those of the text."""
    store = with_text(lambda documents: [*documents, DOCUMENT])(folder, stopped)
    assert store.num_documents == 13
    store.verify()


def test_a_damaged_finished_shard_is_made_again(folder: Path, whole: Path, stopped: Path) -> None:
    tokens = stopped / "tokens-00001.bin"
    tokens.write_bytes(b"\x01" + tokens.read_bytes()[1:])
    (stopped / "shard-00000.json").write_text("[]")
    prepare_here(folder, stopped, resume=True)
    assert contents(stopped) == contents(whole)


def test_a_fault_while_resuming_loses_no_finished_shard(
    folder: Path, whole: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(stopped)
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "finished_shard", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            prepare_here(folder, stopped, resume=True)
    assert contents(stopped) == before
    prepare_here(folder, stopped, resume=True)
    assert contents(stopped) == contents(whole)


def test_a_complete_store_is_opened_if_it_is_the_same(folder: Path, whole: Path, tmp_path: Path) -> None:
    before = contents(whole)
    assert prepare_here(folder, whole, resume=True).num_documents == 12
    with pytest.raises(StoreError, match="made from another tokenizer"):
        with_another_tokenizer(folder, whole)
    (tmp_path / "text.jsonl").write_text(DOCUMENT)
    with pytest.raises(StoreError, match="made from another text"):
        prepare([tmp_path / "text.jsonl"], folder / "tokenizer", whole, resume=True)
    assert contents(whole) == before


def test_resuming_where_there_is_nothing_begins(folder: Path, whole: Path, tmp_path: Path) -> None:
    prepare_here(folder, tmp_path / "store", resume=True)
    assert contents(tmp_path / "store") == contents(whole)


# --------------------------------------------------------------------------------------------------------- a full disk


@contextmanager
def disk_full_after(monkeypatch: pytest.MonkeyPatch, num_files: int) -> Iterator[None]:
    """So many files are written; the next one finds no space when it is flushed to the disk."""
    left = [num_files]

    def fsync(descriptor: int) -> None:
        left[0] -= stat.S_ISREG(os.fstat(descriptor).st_mode)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


FILES_OF_A_SHARD = 4


@pytest.mark.parametrize("num_files", [0, 1, 2, 3, 4, 5, 7, 8, "tokenizer", "manifest"])
def test_a_full_disk_keeps_finished_shards_only(
    folder: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_files: int | str
) -> None:
    out = tmp_path / "store"
    num_shards = len(TokenStore(whole).manifest["shards"])
    if not isinstance(num_files, int):
        num_files = FILES_OF_A_SHARD * num_shards + {"tokenizer": 1, "manifest": 4}[num_files]
    with disk_full_after(monkeypatch, num_files), pytest.raises(OutputError) as told:
        prepare_here(folder, out)
    num_kept = min(num_shards, num_files // FILES_OF_A_SHARD)
    first, *more = str(told.value).splitlines()
    assert first.startswith(f"the disk is full while writing {out}")
    assert first.endswith("free some space, or write elsewhere")
    if not num_kept:
        assert names(tmp_path) == more == []
        return
    assert more == [f"{num_kept} finished shard(s) are kept: the same command with --resume continues"]
    assert names(out) == shard_files(*range(num_kept))
    prepare_here(folder, out, resume=True)
    assert contents(out) == contents(whole)


def test_a_write_that_fails_is_a_full_disk_too(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(self: ShardWriter, chunk: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ShardWriter, "add", add)
    with pytest.raises(OutputError, match="the disk is full"):
        prepare_here(folder, tmp_path / "store")
    assert names(tmp_path) == []


@pytest.mark.parametrize("num_files", range(5))
def test_a_full_disk_leaves_no_tokenizer(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_files: int
) -> None:
    with disk_full_after(monkeypatch, num_files), pytest.raises(OutputError, match="the disk is full while writing"):
        train_tokenizer([folder / "text.jsonl"], tmp_path / "made", TokenizerSettings(vocab_size=200))
    assert names(tmp_path) == []
    shutil.copytree(folder / "other", tmp_path / "made")
    with disk_full_after(monkeypatch, num_files), pytest.raises(OutputError, match="the disk is full while writing"):
        train_tokenizer([folder / "text.jsonl"], tmp_path / "made", TokenizerSettings(vocab_size=300), overwrite=True)
    assert contents(tmp_path / "made") == contents(folder / "other")
    assert names(tmp_path) == ["made"]


@pytest.mark.parametrize("command", ["prepare", "tokenizer train"])
def test_a_truly_full_disk(folder: Path, tiny_disk: Path, command: str) -> None:
    (tiny_disk / "filler").write_bytes(b"x" * (40 << 10))
    words = [*(sys.executable, "-m", "unmask", *command.split(), str(folder / "text.jsonl"))]
    words += ["--out", str(tiny_disk / "made")]
    words += ["--tokenizer", str(folder / "tokenizer"), "--workers", "1"] if command == "prepare" else []
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"error: the disk is full while writing {tiny_disk}")
    assert "Traceback" not in done.stderr
    assert names(tiny_disk) == ["filler"]
