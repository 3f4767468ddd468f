"""The token store: a corpus tokenized once, which serves every objective; `unmask.store.manifest` lists its files."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.corpus.annotations import KINDS
from unmask.errors import InputError, StoreError
from unmask.io.paths import as_path
from unmask.io.progress import Advance, not_shown
from unmask.store.manifest import read_manifest, token_dtype, verify_file
from unmask.store.shard import Shard, StoredDocument, StoredWords


class TokenStore:
    """A complete store, read only.

    Opening reads the manifest and checks every file's size; each file's checksum is verified on first use.

    Args:
        directory: what `unmask prepare` made.

    Attributes:
        manifest: how it was made, and what is in it, as plain values; see `unmask.store.manifest`.
        shards: its parts, each an `unmask.store.shard.Shard`.

    Raises:
        StoreError: it is not a store, is unfinished or of another format version, or its manifest or a file's size has
            changed.
        IndexError: from the methods that take one: there is no document of that index.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = directory = as_path(directory, "the directory of a store")
        self.manifest = read_manifest(directory)
        self._starts = [0, *accumulate(shard["documents"] for shard in self.manifest["shards"])]
        dtype = token_dtype(self.vocab_size)
        ids = "word_ids" if self.has_words else "tokens"
        self.shards = [
            Shard(directory, number, self.manifest["files"], dtype, ids)
            for number in range(len(self.manifest["shards"]))
        ]

    def __repr__(self) -> str:
        where, documents, tokens = str(self.directory), self.num_documents, self.num_tokens
        return f"TokenStore({where!r}, documents={documents}, tokens={tokens})"

    @property
    def has_words(self) -> bool:
        """Whether it is a store of words, which keeps the bytes of each token."""
        return "word_ids" in self.manifest.get("side_arrays", {})

    @property
    def vocab_size(self) -> int:
        return int(self.manifest["vocab_size"])

    @property
    def num_documents(self) -> int:
        return int(self.manifest["documents"])

    @property
    def num_tokens(self) -> int:
        return int(self.manifest["tokens"])

    @property
    def size_bytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(int(file["bytes"]) for file in self.manifest["files"].values())

    @property
    def unknown_share(self) -> float:
        """The share of its tokens that are unknown, as counted when it was made."""
        return float(self.manifest["unknown_tokens"] / max(1, self.num_tokens))

    def figures(self) -> dict[str, Any]:
        """How much it holds, as plain numbers."""
        manifest = self.manifest
        return {
            "documents": manifest["documents"],
            "sentences": manifest["sentences"],
            "tokens": manifest["tokens"],
            "text_bytes": manifest["text_bytes"],
            "bytes_per_token": manifest["text_bytes"] / max(1, manifest["tokens"]),
            "unknown_tokens_share": self.unknown_share,
            "vocab_size": manifest["vocab_size"],
            "shards": len(manifest["shards"]),
            "size_bytes": self.size_bytes,
        }

    def fingerprint(self) -> str:
        """The SHA-256 of its files' checksums, the tokenizer's among them: the same wherever the store is."""
        return hashlib.sha256(json.dumps(self.manifest["files"], sort_keys=True).encode()).hexdigest()

    @cached_property
    def tokenizer_directory(self) -> Path:
        """The directory of the tokenizer that made the ids, verified."""
        for name, expected in self.manifest["files"].items():
            if name.startswith("tokenizer/"):
                verify_file(self.directory / name, expected)
        return self.directory / "tokenizer"

    def document(self, index: int) -> StoredDocument:
        """The document at `index`, 0 <= index < num_documents, in the order of the corpus."""
        shard, place = self._place(index)
        return shard.document(place)

    def tokens(self, index: int, start: int, end: int) -> NDArray[np.unsignedinteger[Any]]:
        """(end - start,) unsigned: some tokens of the document at `index`."""
        shard, place = self._place(index)
        first = shard.first_token(place)
        return shard.tokens[first + start : first + end]

    def words(self, index: int, start: int, end: int) -> StoredWords:
        """Some tokens of the document at `index` in writing; raises StoreError unless the store `has_words`."""
        if not self.has_words:
            raise StoreError(f"{self.directory}: a store of ids alone: expected one by a tokenizer of words")
        shard, place = self._place(index)
        first = shard.first_token(place)
        return shard.words(first + start, first + end)

    def num_spans(self, kind: str) -> int:
        """How many spans of a kind (a key of `unmask.corpus.annotations.KINDS`) all documents have together;
        raises InputError for another."""
        return int(self.manifest[f"{_checked(kind)}_spans"])

    def spans(self, index: int, start: int, end: int, kind: str) -> NDArray[np.int64]:
        """(spans, 2) int64, in order, not overlapping: the spans of one kind in tokens `start` to `end` of the document
        at `index`, clipped to these; each span's first token, counted in the document, and the token after its last.
        Raises as `num_spans`."""
        shard, place = self._place(index)
        return shard.spans_of(place, start, end, KINDS[_checked(kind)])

    def sizes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(documents,) int64 twice: the tokens and the sentences of each document."""
        tokens, sentences = [], []
        for shard in self.shards:
            ends = shard.documents["sentence_end"].astype(np.int64)
            sentences.append(np.diff(ends, prepend=0))
            tokens.append(np.diff(shard.sentences[ends - 1].astype(np.int64), prepend=0))
        return np.concatenate(tokens), np.concatenate(sentences)

    def text_hash(self, index: int) -> int:
        """The first 32 bits of the SHA-256 of a document's text."""
        shard, place = self._place(index)
        return int(shard.documents["text_hash"][place])

    def text_hashes(self) -> NDArray[np.uint32]:
        """(documents,) uint32: the hashes of all documents, four bytes each."""
        return np.concatenate([shard.documents["text_hash"] for shard in self.shards])

    def token_counts(self, advance: Advance = not_shown) -> NDArray[np.int64]:
        """(vocabulary,) int64: how often each entry occurs; `advance` gets the number of tokens read each time."""
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        for shard in self.shards:
            for start in range(0, len(shard.tokens), 1 << 24):
                some = shard.tokens[start : start + (1 << 24)]
                counts += np.bincount(some, minlength=self.vocab_size)
                advance(len(some))
        return counts

    def verify(self, advance: Advance = not_shown) -> None:
        """Reads every file and compares checksums; `advance` gets the bytes of each.

        Raises:
            StoreError: a file differs from what was written.
        """
        for name, expected in self.manifest["files"].items():
            verify_file(self.directory / name, expected)
            advance(expected["bytes"])

    def _place(self, index: int) -> tuple[Shard, int]:
        if not 0 <= index < self.num_documents:
            raise IndexError(f"document {index}: expected 0 to {self.num_documents - 1}, as {self.directory} holds")
        number = bisect_right(self._starts, index) - 1
        return self.shards[number], index - self._starts[number]


def _checked(kind: str) -> str:
    if kind not in KINDS:
        raise InputError(f"no annotations are of the kind {kind!r}: expected {' or '.join(KINDS)}")
    return kind
