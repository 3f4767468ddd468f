"""Corpora that are odd or change while they are read, preparations hit from outside: told, and nothing is lost."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.commands import Command, check_refused, tree_of, write_documents, write_files
from support.corpora import GOOD, contents, names, table
from unmask.corpus.cleaning import duplicates
from unmask.errors import InputError, OutputError
from unmask.store import preparation, shard_writer
from unmask.store.preparation import prepare
from unmask.store.store import TokenStore

# ------------------------------------------------------------------------------------------------- odd, but text


def test_one_line_of_20_megabytes_without_a_space(unmask: Command, place: Path, tokenizer: Path) -> None:
    write_files({"a.jsonl": '{"text": "The dog barks."}\n{"text": "' + "abcdefghij" * 2_000_000 + '"}\n'})
    code, output, errors = unmask("prepare", "a.jsonl", "--tokenizer", tokenizer, "--out", "made", "--workers", 1)
    assert code == 0, errors
    assert "met 1 line of more than a megabyte\n" in output
    store = TokenStore(Path("made"))
    assert (store.num_documents, store.manifest["text"]["long_lines"]) == (2, 1)
    assert store.manifest["text"]["utf8_bytes"] == 20_000_014


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte_bpe"])
def test_a_vocabulary_larger_than_the_text_gives_is_told(
    unmask: Command, place: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_files({"a.txt": GOOD * 3})
    words = ["tokenizer", "train", "a.txt", "--kind", kind, "--vocab-size", 5000, "--out", "made"]
    code, _, errors = unmask(*words)
    assert code == 0, errors
    assert "entries, fewer than the 5,000 asked for: the text gives no more" in caplog.text
    assert unmask("prepare", "a.txt", "--tokenizer", "made", "--out", "store", "--workers", 1).code == 0


# ----------------------------------------------------------------------------------- files that change under the reader


def change_after_estimate(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Between the estimate of what the store needs and the reading of the text."""
    estimate = preparation._report_and_check_disk

    def estimate_and_change(*arguments: Any) -> None:
        estimate(*arguments)
        change()

    monkeypatch.setattr(preparation, "_report_and_check_disk", estimate_and_change)


def test_a_file_that_vanishes_after_the_estimate(
    unmask: Command, place: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files({"a.txt": GOOD, "b.txt": GOOD})
    change_after_estimate(monkeypatch, lambda: Path("b.txt").unlink(missing_ok=True))
    words = ["prepare", "a.txt", "b.txt", "--tokenizer", tokenizer, "--out", "made", "--workers", 1]
    stopped = unmask(*words)
    assert stopped.code == 2
    assert stopped.errors.splitlines()[-1].startswith("error: b.txt: cannot be read: No such file or directory")
    assert tree_of(place).keys() == {"a.txt"}
    write_files({"b.txt": GOOD})
    code, output, errors = unmask(*words, "--on-error", "skip")
    assert code == 0, errors
    assert "passed over 1 record: unreadable file\n" in output
    assert TokenStore(Path("made")).num_documents == 2


def test_a_file_that_vanishes_before_the_estimate(
    unmask: Command, place: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files({"a.txt": GOOD, "b.txt": GOOD})
    find = preparation.find_corpora

    def find_and_lose(*arguments: Any) -> Any:
        found = find(*arguments)
        Path("b.txt").unlink()
        return found

    monkeypatch.setattr(preparation, "find_corpora", find_and_lose)
    finished = unmask("prepare", "a.txt", "b.txt", "--tokenizer", tokenizer, "--out", "made", "--workers", 1)
    check_refused(finished, "b.txt: cannot be read: No such file or directory")
    assert tree_of(place).keys() == {"a.txt"}


def test_a_file_that_changes_after_the_estimate_is_stored_as_it_is_then(
    unmask: Command, place: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files({"a.txt": GOOD * 20, "b.txt": "Something else."})
    assert unmask("prepare", "b.txt", "--tokenizer", tokenizer, "--out", "expected", "--workers", 1).code == 0
    change_after_estimate(monkeypatch, lambda: shutil.copy("b.txt", "a.txt"))
    assert unmask("prepare", "a.txt", "--tokenizer", tokenizer, "--out", "made", "--workers", 1).code == 0
    made, expected = TokenStore(Path("made")), TokenStore(Path("expected"))
    assert made.manifest["files"]["tokens-00000.bin"] == expected.manifest["files"]["tokens-00000.bin"]
    assert made.manifest["sources"] == [{"file": "a.txt", "bytes": 15, "documents": 1}]


# --------------------------------------------------------------------------------------------------- hit from outside


def test_a_script_that_every_worker_would_run_anew_is_told(tiny_text: Path, tokenizer: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    given = (str(tiny_text), str(tokenizer), str(tmp_path / "store"))
    script.write_text(f"import unmask\nunmask.prepare(*{given}, workers=2)\n", "utf-8")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    told = "OutputError: a worker process ended with exit code 1: a script in which there are workers needs `if __name"
    assert told in ended.stderr.splitlines()[-1]


def test_what_a_killed_preparation_left_is_gone_when_resumed(tiny_text: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Hashes half sorted, a shard half written, a list of what was passed over."""
    out, whole = tmp_path / "store", tmp_path / "whole"
    prepare([tiny_text], tokenizer, whole, shard_bytes=4000)
    shutil.copytree(whole, out)
    (out / "manifest.json").unlink()
    (out / ".unfinished-hashes").mkdir()
    for name in (".unfinished-hashes/run-00000", ".unfinished-tokens-00001.bin", "skipped.jsonl"):
        (out / name).write_bytes(b"x")
    prepare([tiny_text], tokenizer, out, shard_bytes=4000, resume=True)
    assert tree_of(out) == tree_of(whole)


@pytest.fixture
def to_replace(tiny_store: Path, tmp_path: Path) -> Path:
    """A store of its own, in a folder of its own."""
    shutil.copytree(tiny_store, tmp_path / "in" / "store")
    return tmp_path / "in" / "store"


def test_a_killed_attempt_to_replace_a_store_can_be_made_again(
    tiny_text: Path, tokenizer: Path, to_replace: Path, tmp_path: Path
) -> None:
    """A part of the new one lies beside the old one, as a power cut would leave it."""
    before = contents(to_replace)
    unfinished = to_replace.with_name(".unfinished-store")
    unfinished.mkdir()
    (unfinished / "tokens-00000.bin").write_bytes(b"xx")
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match="not UTF-8"):
        prepare([tmp_path / "bad.txt"], tokenizer, to_replace, overwrite=True)
    assert contents(to_replace) == before
    prepare([tiny_text], tokenizer, to_replace, overwrite=True)
    assert TokenStore(to_replace).num_documents == 12
    assert names(to_replace.parent) == ["store"]


def test_what_a_preparation_left_that_was_killed_at_its_end_is_gone_when_resumed(
    tiny_text: Path, tokenizer: Path, to_replace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of shards that the manifest holds already, and the store that was replaced."""
    out = tmp_path / "new" / "store"

    def stop(*_: object) -> None:
        raise ValueError("killed")

    monkeypatch.setattr(shard_writer, "remove_records", stop)
    with pytest.raises(ValueError, match="killed"):
        prepare([tiny_text], tokenizer, out)
    monkeypatch.undo()
    shutil.copytree(to_replace, out.with_name(".unfinished-.replaced-store"))
    assert (out / "shard-00000.json").exists()
    prepare([tiny_text], tokenizer, out, resume=True)
    assert not list(out.glob("shard-*"))
    assert names(out.parent) == ["store"]


def test_a_store_that_a_killed_attempt_set_aside_has_its_name_again(
    tiny_text: Path, tokenizer: Path, to_replace: Path
) -> None:
    before = contents(to_replace)
    to_replace.rename(to_replace.with_name(".unfinished-.replaced-store"))
    with pytest.raises(OutputError, match="exists already"):
        prepare([tiny_text], tokenizer, to_replace)
    assert contents(to_replace) == before


def test_a_disk_that_is_full_of_sorted_hashes_is_told(
    unmask: Command, tokenizer: Path, tmp_path: Path, tiny_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 bytes for each of 8,000 documents, before the first token is written."""
    monkeypatch.setattr(duplicates.SeenHashes.__init__, "__defaults__", (1000,))
    monkeypatch.setattr(preparation, "check_free_space", lambda *_, **__: "not looked at")
    path = write_documents(tmp_path / "a.jsonl", [f"Document {number}." for number in range(8000)])
    words = ["--tokenizer", tokenizer, "--out", tiny_disk / "made", "--workers", 1, "--duplicates", "documents"]
    code, output, errors = unmask("prepare", path, *words)
    assert (code, output) == (2, "")
    told = errors.splitlines()[-1]
    assert told == f"error: the disk is full while writing {tiny_disk}/made: free some space, or write elsewhere"
    assert list(tiny_disk.iterdir()) == []


def test_no_room_to_unpack_a_parquet_is_no_fault_of_the_file(place: Path, tokenizer: Path, tiny_disk: Path) -> None:
    rows = [os.urandom(40).hex() for _ in range(2000)]
    write_files({"a.parquet.gz": gzip.compress(table(text=rows))})
    words = ["--tokenizer", str(tokenizer), "--out", "made", "--workers", "1", "--on-error", "skip"]
    command = [sys.executable, "-m", "unmask", "prepare", "a.parquet.gz", *words]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tiny_disk)})
    told = f"the disk is full while writing {tiny_disk}: free some space, or write elsewhere"
    assert (done.returncode, done.stderr) == (2, f"error: {told}\n")
    assert not Path("made").exists()
