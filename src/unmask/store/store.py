"""The token store: a corpus tokenized once, as flat memory-mapped arrays that serve every objective.

    manifest.json           sizes, checksums, counts, provenance; written last: a directory without it is unfinished
    tokens-00000.bin        token ids, uint16 (vocabulary up to 65,536) or uint32
    sentences-00000.bin     uint32, one per sentence: where it ends among the shard's tokens
    documents-00000.bin     one record per document: where it ends among the shard's sentences, and a hash of its text
    tokenizer/              the tokenizer that made the ids

Special tokens are not stored: packing adds them. All numbers are little-endian.

The store of a word tokenizer (ELMo) also keeps the bytes of each word, since its model reads characters. Its manifest
declares two side arrays with their types, under `side_arrays`:

    tokens-00000.bin        the UTF-8 of the words, one after another
    word_ends-00000.bin     uint32, one per word: where it ends among the shard's bytes
    word_ids-00000.bin      ids in the output vocabulary, uint16 or uint32: what `tokens` holds in other stores

In both kinds of store a token is an id, and sentence ends count ids: code that reads only ids works on either.

If documents came with annotations, a store of ids declares one more side array:

    spans-00000.bin         uint32, three per span: its first token in the shard, the token after its last, its kind (by
                            `unmask.corpus.annotations.KINDS`); in order; a shard without spans has no such file
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.corpus.annotations import KINDS
from unmask.errors import StoreError
from unmask.store.manifest import (
    DOCUMENT,
    SENTENCE,
    SPAN,
    WORD_END,
    manifest_checksum,
    part_name,
    read_manifest,
    token_dtype,
    verify_file,
)


@dataclass(frozen=True)
class StoredDocument:
    """One document as token ids.

    Attributes:
        tokens: (tokens,) unsigned, all sentences one after another.
        sentence_ends: (sentences,) int64, where each sentence ends in `tokens`; the last is the number of tokens.
    """

    tokens: NDArray[np.unsignedinteger[Any]]
    sentence_ends: NDArray[np.int64]


@dataclass(frozen=True)
class StoredWords:
    """The UTF-8 of some tokens of a document, in a store of words.

    Attributes:
        utf8: (bytes,) uint8, one word after another.
        ends: (words,) int64, where each word ends in `utf8`.
    """

    utf8: NDArray[np.uint8]
    ends: NDArray[np.int64]


class Shard:
    """One shard; each of its files is verified and memory-mapped once, on first use."""

    def __init__(
        self, directory: Path, number: int, files: dict[str, dict[str, Any]], dtype: np.dtype[Any], ids: str = "tokens"
    ) -> None:
        self._directory = directory
        self._number = number
        self._files = files
        self._dtype = dtype
        self._ids = ids

    def document(self, index: int) -> StoredDocument:
        start = self.first_token(index)
        ends = self.sentences[self._first_sentence(index) : self._first_sentence(index + 1)].astype(np.int64)
        return StoredDocument(self.tokens[start : int(ends[-1])], ends - start)

    def first_token(self, index: int) -> int:
        sentence = self._first_sentence(index)
        return int(self.sentences[sentence - 1]) if sentence else 0

    def _first_sentence(self, index: int) -> int:
        return int(self.documents["sentence_end"][index - 1]) if index else 0

    def words(self, start: int, end: int) -> StoredWords:
        """Tokens `start` to `end` of the shard, in a store of words."""
        first = int(self.word_ends[start - 1]) if start else 0
        ends = self.word_ends[start:end].astype(np.int64)
        return StoredWords(self.utf8[first : int(ends[-1])] if len(ends) else self.utf8[:0], ends - first)

    def spans_of(self, index: int, start: int, end: int, kind: int) -> NDArray[np.int64]:
        """(spans, 2) int64: the spans of one kind in tokens `start` to `end` of document `index`, clipped."""
        first = self.first_token(index)
        bounds = np.array([first, first + end], dtype=np.uint32)  # any other type would convert the whole column
        rows = self.spans[slice(*np.searchsorted(self.spans[:, 0], bounds))].astype(np.int64)
        places = rows[(rows[:, 2] == kind) & (rows[:, 1] > first + start), :2] - first
        return places.clip(start, end)

    @cached_property
    def tokens(self) -> NDArray[np.unsignedinteger[Any]]:
        return self._map(self._ids, self._dtype)

    @cached_property
    def utf8(self) -> NDArray[np.uint8]:
        return self._map("tokens", np.dtype(np.uint8))

    @cached_property
    def word_ends(self) -> NDArray[np.uint32]:
        return self._map("word_ends", WORD_END)

    @cached_property
    def sentences(self) -> NDArray[np.uint32]:
        return self._map("sentences", SENTENCE)

    @cached_property
    def spans(self) -> NDArray[np.uint32]:
        has_spans = part_name("spans", self._number) in self._files
        return (self._map("spans", SPAN) if has_spans else np.zeros(0, SPAN)).reshape(-1, 3)

    @cached_property
    def documents(self) -> NDArray[Any]:
        return self._map("documents", DOCUMENT)

    def _map(self, part: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        name = part_name(part, self._number)
        verify_file(self._directory / name, self._files[name])
        if not self._files[name]["bytes"]:
            return np.zeros(0, dtype)  # an empty file cannot be mapped
        return np.memmap(self._directory / name, dtype=dtype, mode="r").view(np.ndarray)


class TokenStore:
    """A complete store, read only.

    Opening reads the manifest and checks every file's size; each file's checksum is verified on first use.

    Args:
        directory: what `unmask prepare` made.

    Raises:
        StoreError: it is not a store, is unfinished or of another format version, or a file's size has changed.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = directory = Path(directory)
        self.manifest = read_manifest(directory)
        self._starts = [0, *accumulate(shard["documents"] for shard in self.manifest["shards"])]
        dtype = token_dtype(self.vocab_size)
        ids = "word_ids" if self.has_words else "tokens"
        self.shards = [
            Shard(directory, number, self.manifest["files"], dtype, ids)
            for number in range(len(self.manifest["shards"]))
        ]

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
        """Some tokens of the document at `index` in writing; only for a store that `has_words`."""
        assert self.has_words, "a store of ids alone"
        shard, place = self._place(index)
        first = shard.first_token(place)
        return shard.words(first + start, first + end)

    def num_spans(self, kind: str) -> int:
        """How many spans of a kind (a key of `unmask.corpus.annotations.KINDS`) all documents have together."""
        return int(self.manifest.get(f"{kind}_spans", 0))

    def spans(self, index: int, start: int, end: int, kind: str) -> NDArray[np.int64]:
        """(spans, 2) int64, in order, not overlapping: the spans of one kind in tokens `start` to `end` of the document
        at `index`, clipped to these; each span's first token, counted in the document, and the token after its last."""
        shard, place = self._place(index)
        return shard.spans_of(place, start, end, KINDS[kind])

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

    def token_counts(self) -> NDArray[np.int64]:
        """(vocabulary,) int64: how often each entry occurs."""
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        for shard in self.shards:
            for start in range(0, len(shard.tokens), 1 << 24):
                counts += np.bincount(shard.tokens[start : start + (1 << 24)], minlength=self.vocab_size)
        return counts

    def verify(self) -> None:
        """Reads every file and compares checksums.

        Raises:
            StoreError: a file differs from what was written.
        """
        if self.manifest.get("sha256") != manifest_checksum(self.manifest):
            raise StoreError(
                f"{self.directory / 'manifest.json'}: its own checksum is not that of what it says, so at least one "
                "byte has changed: restore the file or prepare the store again"
            )
        for name, expected in self.manifest["files"].items():
            verify_file(self.directory / name, expected)

    def _place(self, index: int) -> tuple[Shard, int]:
        assert 0 <= index < self.num_documents, "no such document"
        number = bisect_right(self._starts, index) - 1
        return self.shards[number], index - self._starts[number]
