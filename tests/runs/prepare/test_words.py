"""Preparing a store of words, for ELMo: the same bytes whatever the workers, and going on where it was cut off."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from support.commands import write_documents
from unmask.errors import OutputError
from unmask.store.preparation import prepare
from unmask.store.shard_writer import EncodedChunk, ShardWriter
from unmask.store.store import TokenStore
from unmask.tokenization.kinds.word_characters import WordTokenizer
from unmask.tokenization.learning.word_training import train_word_tokenizer
from unmask.tokenization.opening import open_tokenizer
from unmask.tokenization.settings import TokenizerSettings

DOCUMENTS = [
    f"The {word} of number {number} is here. 나는 {word} 학교에 간다.\nIt's {number * 37} and {word}!"
    for number in range(60)
    for word in ("cat", "dog", "house")
]
SHARD_BYTES = 3_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`text.jsonl`, and `tokenizer`."""
    folder = tmp_path_factory.mktemp("words")
    write_documents(folder / "text.jsonl", DOCUMENTS)
    tokenizer, _ = train_word_tokenizer(DOCUMENTS, TokenizerSettings(vocab_size=30))
    (folder / "tokenizer").mkdir()
    tokenizer.save(folder / "tokenizer")
    return folder


def make(folder: Path, name: str, **options: Any) -> TokenStore:
    return prepare([folder / "text.jsonl"], folder / "tokenizer", folder / name, shard_bytes=SHARD_BYTES, **options)


def digests(store: TokenStore) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in store.directory.glob("*.bin")}


def test_every_word_of_the_text_is_there(folder: Path) -> None:
    store = make(folder, "store")
    assert len(store.shards) > 2
    store.verify()
    tokenizer = open_tokenizer(store.tokenizer_directory)
    assert isinstance(tokenizer, WordTokenizer)
    for number, text in enumerate(DOCUMENTS):
        words = tokenizer.words(text)
        stored = store.words(number, 0, len(words))
        assert bytes(stored.utf8).decode() == "".join(words)
        assert store.document(number).tokens.tolist() == tokenizer.vocabulary_ids(words)
    assert store.manifest["unknown_tokens"] > 0
    assert store.manifest["side_arrays"] == {"word_ends": "<u4", "word_ids": "<u2"}


def test_two_workers_write_the_same_bytes(folder: Path) -> None:
    assert digests(make(folder, "two", workers=2)) == digests(make(folder, "one"))


def test_finished_shards_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = digests(make(folder, "whole"))
    add = ShardWriter.add

    def fail_in_the_third(writer: ShardWriter, chunk: EncodedChunk) -> None:
        add(writer, chunk)
        if writer._number == 2:
            raise OutputError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "add", fail_in_the_third)
        with pytest.raises(OutputError, match="2 finished shard"):
            make(folder, "cut")
    kept = {path: path.stat().st_mtime_ns for path in (folder / "cut").glob("*.bin")}
    assert len(kept) == 2 * 5
    assert not list((folder / "cut").glob("*-00002.bin"))
    assert digests(make(folder, "cut", resume=True)) == expected
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())


def test_a_complete_store_is_opened_again(folder: Path) -> None:
    first = make(folder, "again")
    assert digests(make(folder, "again", resume=True)) == digests(first)
