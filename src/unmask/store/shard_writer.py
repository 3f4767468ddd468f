"""Writing a token store: shards one after another, each whole or not at all, and the manifest last.

A finished shard leaves a record, `shard-00000.json`, beside its files; the records become the manifest when the store
is complete, and let an interrupted preparation resume.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unmask.corpus.annotations import KINDS
from unmask.errors import StoreError
from unmask.io.json_files import read_object
from unmask.io.paths import MANIFEST, SKIPPED
from unmask.io.writing import UNFINISHED, describe_file, write_json, writing
from unmask.store.manifest import (
    DOCUMENT,
    FORMAT_VERSION,
    PARTS,
    SENTENCE,
    SPAN,
    WORD_END,
    WORD_PARTS,
    manifest_checksum,
    part_name,
)

STORE_FILES = (
    MANIFEST,
    SKIPPED,
    "tokenizer",
    *(f"{part}-*.bin" for part in (*PARTS, *WORD_PARTS, "spans")),
    "shard-*.json",
    f"{UNFINISHED}*",
)
"""Everything that the directory of a store may hold, finished or not."""


@dataclass(frozen=True)
class WordBytes:
    """The UTF-8 of words, for a store that keeps it along with their ids."""

    utf8: NDArray[np.uint8]  # (bytes,) uint8, of all words one after another
    lengths: NDArray[np.uint32]  # (words,) uint32, the bytes of each, none 0


@dataclass(frozen=True)
class TokenSpans:
    """Annotations as spans of tokens."""

    # (spans, 3) uint32, in order: the first token, the one after the last, and the kind, by
    # `unmask.corpus.annotations.KINDS`. Spans of one kind do not overlap.
    rows: NDArray[np.uint32]
    overlapping: int  # annotations that were left out for a longer one of their kind
    without_tokens: int  # annotations that cover no token


@dataclass(frozen=True)
class EncodedChunk:
    """Some consecutive documents as token ids."""

    tokens: NDArray[np.unsignedinteger[Any]]  # (tokens,) in the store's type
    sentence_lengths: NDArray[np.uint32]  # (sentences,) uint32, tokens in each, none 0
    document_sentences: NDArray[np.uint32]  # (documents,) uint32, sentences in each, none 0
    text_hashes: NDArray[np.uint32]  # (documents,) uint32, the first 32 bits of the SHA-256 of each document's text
    unknown_tokens: int  # how many of the tokens are `[UNK]`
    documents_without_tokens: int  # documents that were left out since they have no token
    words: WordBytes | None = None  # the bytes of every token, for a store of words
    spans: TokenSpans | None = None  # of the annotations, if there were any


@dataclass
class ShardCounts:
    """What a shard holds."""

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    unknown_tokens: int = 0
    documents_without_tokens: int = 0
    entity_spans: int = 0
    noun_phrase_spans: int = 0
    overlapping_spans: int = 0
    spans_without_tokens: int = 0


COUNTS = tuple(field.name for field in fields(ShardCounts))


class ShardWriter:
    """Writes one shard; use in a `with` statement, then call `finish` inside it.

    Args:
        directory: the store's.
        number: of the shard.
        dtype: of a token.
    """

    def __init__(self, directory: Path, number: int, dtype: np.dtype[Any]) -> None:
        self._directory = directory
        self._number = number
        self._dtype = dtype
        self._stack = ExitStack()
        self._counts = ShardCounts()
        self._word_bytes: int | None = None  # None: the store is not one of words
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> ShardWriter:
        self._open(PARTS)
        return self

    def _open(self, parts: Sequence[str]) -> None:
        for part in parts:
            path = self._directory / part_name(part, self._number)
            self._files[part] = self._stack.enter_context(writing(path))

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def add(self, chunk: EncodedChunk) -> None:
        """Appends documents."""
        counts = self._counts
        sentence_ends = counts.tokens + np.cumsum(chunk.sentence_lengths, dtype=np.int64)
        document_ends = counts.sentences + np.cumsum(chunk.document_sentences, dtype=np.int64)
        assert not len(sentence_ends) or sentence_ends[-1] < 1 << 32, "a shard's offsets are 32 bits wide"
        records = np.zeros(len(document_ends), dtype=DOCUMENT)
        records["sentence_end"] = document_ends
        records["text_hash"] = chunk.text_hashes
        ids = chunk.tokens.astype(self._dtype, copy=False).tobytes()
        if chunk.words is None:
            self._files["tokens"].write(ids)
        else:
            self._add_words(chunk.words)
            self._files["word_ids"].write(ids)
        if chunk.spans is not None:
            self._add_spans(chunk.spans)
        self._files["sentences"].write(sentence_ends.astype(SENTENCE).tobytes())
        self._files["documents"].write(records.tobytes())
        counts.documents += len(records)
        counts.sentences += len(sentence_ends)
        counts.tokens += len(chunk.tokens)
        counts.unknown_tokens += chunk.unknown_tokens
        counts.documents_without_tokens += chunk.documents_without_tokens

    def _add_words(self, words: WordBytes) -> None:
        if self._word_bytes is None:
            assert not self._counts.documents, "a store has words in all of its chunks, or in none"
            self._open(WORD_PARTS)
            self._word_bytes = 0
        ends = self._word_bytes + np.cumsum(words.lengths, dtype=np.int64)
        self._word_bytes += len(words.utf8)
        assert self._word_bytes < 1 << 32, "a shard's offsets are 32 bits wide"
        self._files["tokens"].write(words.utf8.tobytes())
        self._files["word_ends"].write(ends.astype(WORD_END).tobytes())

    def _add_spans(self, spans: TokenSpans) -> None:
        counts = self._counts
        counts.entity_spans += int(np.count_nonzero(spans.rows[:, 2] == KINDS["entity"]))
        counts.noun_phrase_spans += int(np.count_nonzero(spans.rows[:, 2] == KINDS["noun_phrase"]))
        counts.overlapping_spans += spans.overlapping
        counts.spans_without_tokens += spans.without_tokens
        if not len(spans.rows):
            return
        if "spans" not in self._files:
            self._open(["spans"])
        moved = spans.rows + np.array([counts.tokens, counts.tokens, 0], dtype=np.uint32)
        self._files["spans"].write(moved.astype(SPAN).tobytes())

    def finish(self, made_from: dict[str, Any]) -> dict[str, Any]:
        """Closes the shard's files and writes its record.

        Args:
            made_from: what must be the same when a preparation is resumed: the tokenizer, the text.
        """
        self._stack.close()
        names = [part_name(part, self._number) for part in self._files]
        record = {
            **asdict(self._counts),
            "files": {name: describe_file(self._directory / name) for name in names},
            "made_from": made_from,
        }
        write_json(record_path(self._directory, self._number), record)
        return record


def record_path(directory: Path, number: int) -> Path:
    """Where the record of a finished shard is."""
    return directory / f"shard-{number:05d}.json"


def read_record(directory: Path, number: int) -> dict[str, Any] | None:
    """The record of a finished shard, or None; also None if the shard's files do not match the record."""
    path = record_path(directory, number)
    try:
        record = read_object(path, StoreError)
        sound = all(describe_file(directory / name) == expected for name, expected in record["files"].items())
        complete = isinstance(record["made_from"], dict) and all(isinstance(record[name], int) for name in COUNTS)
    except (StoreError, OSError, KeyError, TypeError, AttributeError):
        return None
    return record if sound and complete else None


def move_shard(source: Path, directory: Path, number: int) -> None:
    """Moves a finished shard into a store's directory, its record last, and removes the directory it was in."""
    record = record_path(source, number)
    for path in sorted(source.iterdir(), key=lambda path: path == record):
        os.replace(path, directory / path.name)
    source.rmdir()


def remove_records(directory: Path) -> None:
    """Turns finished shards into unfinished ones."""
    for path in directory.glob("shard-*.json"):
        path.unlink()


def remove_unfinished(directory: Path) -> int:
    """Removes everything but finished shards from an unfinished store, and returns how many of those there are."""
    finished = {path.stem.rpartition("-")[2] for path in directory.glob("shard-*.json")}
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name.startswith(UNFINISHED) or path.stem.rpartition("-")[2] not in finished:
            path.unlink()
    return len(finished)


def write_manifest(directory: Path, records: list[dict[str, Any]], description: dict[str, Any]) -> None:
    """Makes the store valid: writes the manifest from the shards' records, which are then removed.

    Args:
        description: further facts about the store: vocabulary, tokenizer, sources, counts of what was cleaned.
    """
    assert records, "a store needs at least one shard"
    tokenizer_files = sorted((directory / "tokenizer").iterdir())
    manifest = {
        "format_version": FORMAT_VERSION,
        **{name: sum(record[name] for record in records) for name in COUNTS},
        **description,
        "shards": [{name: record[name] for name in COUNTS} for record in records],
        "files": {
            **{name: expected for record in records for name, expected in record["files"].items()},
            **{f"tokenizer/{path.name}": describe_file(path) for path in tokenizer_files},
            **{path.name: describe_file(path) for path in directory.glob(SKIPPED)},
        },
    }
    manifest["sha256"] = manifest_checksum(manifest)
    write_json(directory / MANIFEST, manifest)
    remove_records(directory)
