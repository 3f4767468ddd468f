"""Shards are whole or not there, records say what they hold, and what is half-written is found and removed."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.corpora import names
from support.stores import chunk_of
from unmask.errors import OutputError, StoreError
from unmask.io.writing import describe_file, sha256
from unmask.store.manifest import DOCUMENT
from unmask.store.shard_writer import (
    EncodedChunk,
    ShardWriter,
    read_record,
    record_path,
    remove_records,
    remove_unfinished,
    write_manifest,
)
from unmask.store.store import TokenStore

U16 = np.dtype("<u2")


def chunk(*documents: list[list[int]], unknown: int = 0, dropped: int = 0) -> EncodedChunk:
    its = chunk_of(documents, range(77, 77 + len(documents)), vocab_size=100)
    return replace(its, unknown_tokens=unknown, documents_without_tokens=dropped)


def write_shard(directory: Path, number: int, *chunks: EncodedChunk) -> dict[str, Any]:
    with ShardWriter(directory, number, U16) as writer:
        for each in chunks:
            writer.add(each)
        return writer.finish({"text": "digest"})


SHARD_0 = ["documents-00000.bin", "sentences-00000.bin", "shard-00000.json", "tokens-00000.bin"]


def test_the_bytes_of_a_shard(tmp_path: Path) -> None:
    chunks = chunk([[1, 2, 3], [4]], [[65535]], unknown=2), chunk(), chunk([[6], [7, 8]], dropped=1)
    record = write_shard(tmp_path, 0, *chunks)
    assert names(tmp_path) == SHARD_0
    assert (tmp_path / "tokens-00000.bin").read_bytes() == np.array([1, 2, 3, 4, 65535, 6, 7, 8], "<u2").tobytes()
    assert (tmp_path / "sentences-00000.bin").read_bytes() == np.array([3, 4, 5, 6, 8], "<u4").tobytes()
    documents = np.frombuffer((tmp_path / "documents-00000.bin").read_bytes(), DOCUMENT)
    assert documents["sentence_end"].tolist() == [2, 3, 5]
    assert documents["text_hash"].tolist() == [77, 78, 77]
    counts = {"documents": 3, "sentences": 5, "tokens": 8, "unknown_tokens": 2, "documents_without_tokens": 1}
    assert record.items() >= counts.items()
    assert record["files"]["tokens-00000.bin"] == {"bytes": 16, "sha256": sha256(tmp_path / "tokens-00000.bin")}
    assert record["made_from"] == {"text": "digest"}
    assert json.loads(record_path(tmp_path, 0).read_text()) == record == read_record(tmp_path, 0)


def test_a_shard_has_its_names_only_once_it_is_finished(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, 0, U16) as writer:
        writer.add(chunk([[1]]))
        assert all(name.startswith(".unfinished-") for name in names(tmp_path))
        writer.finish({})
    assert names(tmp_path) == SHARD_0


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyboardInterrupt()])
def test_a_shard_that_fails_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises((ValueError, KeyboardInterrupt)):  # noqa: PT012, SIM117
        with ShardWriter(tmp_path, 0, U16) as writer:
            writer.add(chunk([[1]]))
            raise error
    assert names(tmp_path) == []


def test_a_full_disk_while_finishing_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fsync(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(OutputError, match="the disk is full"):
        write_shard(tmp_path, 0, chunk([[1]]))
    assert read_record(tmp_path, 0) is None
    assert not any(name.startswith(".unfinished-") for name in names(tmp_path))
    assert remove_unfinished(tmp_path) == 0
    assert names(tmp_path) == []


def without(key: str) -> Callable[[bytes], bytes]:
    return lambda record: json.dumps({name: its for name, its in json.loads(record).items() if name != key}).encode()


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes] | None]] = {
    "no record": ("shard-00003.json", None),
    "not JSON": ("shard-00003.json", lambda whole: whole[:-5]),
    "a list": ("shard-00003.json", lambda whole: b"[]"),
    "a key missing": ("shard-00003.json", without("made_from")),
    "a count missing": ("shard-00003.json", without("sentences")),
    "a byte": ("tokens-00003.bin", lambda whole: b"\x00" + whole[1:]),
    "a file missing": ("tokens-00003.bin", None),
    "longer": ("tokens-00003.bin", lambda whole: whole + b"\x00"),
}
"""The file, and what becomes of it, or None where it is removed."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_counts_only_with_sound_files(tmp_path: Path, damage: str) -> None:
    record = write_shard(tmp_path, 3, chunk([[1, 2]]))
    assert read_record(tmp_path, 3) == record
    name, spoil = DAMAGES[damage]
    if spoil is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(spoil((tmp_path / name).read_bytes()))
    assert read_record(tmp_path, 3) is None


def test_only_finished_shards_are_kept(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, chunk([[1]]))
    write_shard(tmp_path, 1, chunk([[2]]))
    (tmp_path / "tokens-00002.bin").touch()  # killed between the files of a shard
    (tmp_path / ".unfinished-sentences-00002.bin").touch()
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.txt").touch()
    assert len(list(tmp_path.glob("shard-*.json"))) == 2
    assert remove_unfinished(tmp_path) == 2
    assert names(tmp_path) == sorted([*SHARD_0, *(name.replace("00000", "00001") for name in SHARD_0)])
    remove_records(tmp_path)
    assert not list(tmp_path.glob("shard-*.json"))
    assert remove_unfinished(tmp_path) == 0
    assert names(tmp_path) == []


def test_the_manifest_makes_the_store(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.txt").write_text("a\n")
    records = [
        write_shard(tmp_path, 0, chunk([[1, 2]], [[3]], unknown=1)),
        write_shard(tmp_path, 1, chunk(dropped=2)),
        write_shard(tmp_path, 2, chunk([[4], [5, 6]])),
    ]
    write_manifest(tmp_path, records, {"vocab_size": 100})
    assert not list(tmp_path.glob("shard-*.json"))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    counts = {"documents": 3, "sentences": 4, "tokens": 6, "unknown_tokens": 1, "documents_without_tokens": 2}
    assert manifest.items() >= {**counts, "vocab_size": 100, "format_version": 1}.items()
    assert [shard["documents"] for shard in manifest["shards"]] == [2, 0, 1]
    stored = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert manifest["files"].keys() == stored - {"manifest.json"}
    assert manifest["files"]["tokenizer/vocab.txt"] == describe_file(tmp_path / "tokenizer" / "vocab.txt")
    store = TokenStore(tmp_path)
    store.verify()
    assert [store.document(number).tokens.tolist() for number in range(3)] == [[1, 2], [3], [4, 5, 6]]


def test_every_flipped_byte_of_the_manifest_is_found(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.txt").write_text("a\n")
    write_manifest(tmp_path, [write_shard(tmp_path, 0, chunk([[1, 2]], [[3]]))], {"vocab_size": 10, "text": {"ü": 1}})
    TokenStore(tmp_path).verify()
    path = tmp_path / "manifest.json"
    content = path.read_bytes()
    said = json.loads(content)
    for place in range(len(content)):
        changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        path.write_bytes(changed)
        try:
            if json.loads(changed) == said:  # white space alone
                continue
        except ValueError:
            pass
        with pytest.raises(StoreError):
            TokenStore(tmp_path).verify()
