"""One shard of a token store: a document's tokens and sentences from flat arrays on disk.

    tokens-00000.bin        the ids of all documents, one after another
    sentences-00000.bin     where each sentence ends among these tokens
    documents-00000.bin     where each document ends among these sentences (`sentence_end`), and a hash of its text

So document i is sentences `sentence_end[i - 1]` to `sentence_end[i]`, and its tokens end where the last of them ends.
With sentences of 3, 2 and 4 tokens, the first two in document 0, `sentences` is [3, 5, 9] and `sentence_end` is [2, 3]:
document 1 is sentence 2, which is tokens 5 to 9.

The arrays are memory-mapped: only what is used is read. A store of words (ELMo) keeps their bytes too, and one with
annotations their spans; see `unmask.store.manifest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.store.manifest import DOCUMENT, SENTENCE, SPAN, WORD_END, part_name, verify_file


@dataclass(frozen=True)
class StoredDocument:
    """One document as token ids."""

    tokens: NDArray[np.unsignedinteger[Any]]  # (tokens,) unsigned, all sentences one after another
    # (sentences,) int64, where each sentence ends in `tokens`; the last is the number of tokens
    sentence_ends: NDArray[np.int64]


@dataclass(frozen=True)
class StoredWords:
    """The UTF-8 of some tokens of a document, in a store of words."""

    utf8: NDArray[np.uint8]  # (bytes,) uint8, one word after another
    ends: NDArray[np.int64]  # (words,) int64, where each word ends in `utf8`


class Shard:
    """One shard; each of its files is verified and memory-mapped once, on first use.

    Args:
        directory: of the store.
        number: of the shard, as in the names of its files.
        files: the sizes and checksums of all files of the store, from the manifest.
        dtype: of the ids.
        ids: the file that holds the ids: `tokens`, or `word_ids` in a store of words.
    """

    def __init__(
        self, directory: Path, number: int, files: dict[str, dict[str, Any]], dtype: np.dtype[Any], ids: str
    ) -> None:
        self._directory = directory
        self._number = number
        self._files = files
        self._dtype = dtype
        self._ids = ids

    def document(self, index: int) -> StoredDocument:
        """Document `index` of the shard, from 0."""
        start = self.first_token(index)
        ends = self.sentences[self._first_sentence(index) : self._first_sentence(index + 1)].astype(np.int64)
        return StoredDocument(self.tokens[start : int(ends[-1])], ends - start)

    def first_token(self, index: int) -> int:
        """Where document `index` begins in `tokens`."""
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
