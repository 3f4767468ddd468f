"""What a token store holds, in numbers: lengths, counts of entries, duplicates.

Everything is read once, piece by piece, from the memory-mapped shards: memory does not grow with the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.store.shard import Shard
from unmask.store.store import TokenStore

_PIECE = 1 << 22
"""How many numbers are read at once."""
_EXACT = 1 << 20
"""Lengths below this are counted by value; longer ones, of which a store can hold few, are kept in a list."""
_HASHES_AT_ONCE = 1 << 22
"""How many documents have their hashes sorted at once when looking for duplicates."""
_NUM_LONGEST = 3
_NUM_EXAMPLES = 3


@dataclass
class LengthCounts:
    """How often each length occurs; exact."""

    _counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_EXACT, dtype=np.int64))
    _longer: list[int] = field(default_factory=list)

    def add(self, lengths: NDArray[np.integer[Any]]) -> None:
        """Counts some more; all of them 0 or more."""
        is_long = lengths >= _EXACT
        self._longer += lengths[is_long].tolist()
        counted = np.bincount(lengths[~is_long])
        self._counts[: len(counted)] += counted

    @property
    def num(self) -> int:
        return int(self._counts.sum()) + len(self._longer)

    @property
    def total(self) -> int:
        """The sum of all lengths."""
        return int(self._counts @ np.arange(_EXACT)) + sum(self._longer)

    @property
    def mean(self) -> float:
        return self.total / max(1, self.num)

    @property
    def longest(self) -> int:
        return max(self._longer) if self._longer else int(np.flatnonzero(self._counts).max(initial=0))

    def quantile(self, share: float) -> int:
        """The smallest length that at least `share` of all lengths do not exceed; `share` in (0, 1]."""
        wanted = share * self.num
        reached = np.cumsum(self._counts)
        place = int(np.searchsorted(reached, wanted - 1e-9))
        if place < _EXACT:
            return place
        return sorted(self._longer)[int(np.ceil(wanted - 1e-9)) - int(reached[-1]) - 1]

    def between(self, start: int, end: int | None = None) -> int:
        """How many lengths are at least `start` and below `end`."""
        stop = np.inf if end is None else end
        return int(self._counts[start:end].sum()) + sum(start <= length < stop for length in self._longer)

    def sum_from(self, start: int) -> int:
        """The sum of the lengths that are at least `start`."""
        counted = self._counts[start:]
        return int(counted @ np.arange(start, start + len(counted))) + sum(n for n in self._longer if n >= start)


@dataclass(frozen=True)
class LongSentence:
    """A sentence among the longest: the document that it is in, and its tokens."""

    document: int
    tokens: NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Duplicates:
    """Documents that are in the store more than once, token for token.

    Args:
        num_documents: of the store.
        copies: number of copies -> how many distinct documents have it: {1: 80, 3: 2} are 86 documents.
        examples: the places of some documents and of their first copies.
    """

    num_documents: int
    copies: dict[int, int]
    examples: tuple[tuple[int, int], ...]

    @property
    def num_distinct(self) -> int:
        return sum(self.copies.values())

    @property
    def share(self) -> float:
        """The share of all documents that are a copy of an earlier one."""
        return 1 - self.num_distinct / max(1, self.num_documents)

    def times_repeated(self, of_documents: float = 0.95) -> int:
        """How many copies at least `of_documents` of the distinct documents have: 1 unless the corpus repeats."""
        left = of_documents * self.num_distinct
        for times in sorted(self.copies, reverse=True):
            left -= self.copies[times]
            if left <= 1e-9:
                return times
        return 1


@dataclass(frozen=True)
class StoreStatistics:
    """What one reading of a store finds.

    Args:
        token_counts: (vocabulary,) how often each entry occurs.
        sentence_lengths: of the sentences, in tokens.
        document_lengths: of the documents, in tokens.
        num_single: documents of one sentence.
        longest: the longest sentences, the longest first.
    """

    token_counts: NDArray[np.int64]
    sentence_lengths: LengthCounts
    document_lengths: LengthCounts
    num_single: int
    longest: tuple[LongSentence, ...]


Advance = Callable[[float], None]


def count_store(store: TokenStore, advance: Advance = lambda count: None) -> StoreStatistics:
    """Reads a whole store; each file's checksum is verified on the way.

    Args:
        store: an opened store.
        advance: called with the number of tokens read since its last call.

    Raises:
        StoreError: a file differs from what was written.
    """
    token_counts = np.zeros(store.vocab_size, dtype=np.int64)
    num_single = first_document = 0
    sentences, documents = LengthCounts(), LengthCounts()
    longest: list[LongSentence] = []
    for shard in store.shards:
        for start in range(0, len(shard.tokens), _PIECE):
            token_counts += np.bincount(shard.tokens[start : start + _PIECE], minlength=len(token_counts))
            advance(len(shard.tokens[start : start + _PIECE]))
        for first_sentence, lengths in _differences(shard.sentences):
            sentences.add(lengths)
            found = [
                _sentence(shard, first_document, first_sentence + place) for place in _largest(lengths, _NUM_LONGEST)
            ]
            longest = sorted([*longest, *found], key=lambda sentence: -len(sentence.tokens))[:_NUM_LONGEST]
        ends_of_documents = shard.documents["sentence_end"]
        num_single += sum(int(np.count_nonzero(lengths == 1)) for _, lengths in _differences(ends_of_documents))
        last = 0
        for start in range(0, len(ends_of_documents), _PIECE):
            ends = shard.sentences[ends_of_documents[start : start + _PIECE].astype(np.int64) - 1].astype(np.int64)
            documents.add(np.diff(ends, prepend=last))
            last = int(ends[-1])
        first_document += len(ends_of_documents)
    return StoreStatistics(token_counts, sentences, documents, num_single, tuple(longest))


def find_duplicates(store: TokenStore) -> Duplicates:
    """Finds documents that are equal token for token: by the stored 32 bits of hash, then by the tokens themselves."""
    copies: dict[int, int] = {}
    examples: list[tuple[int, int]] = []
    num_parts = -(-store.num_documents // _HASHES_AT_ONCE)
    shards = store.shards
    for part in range(num_parts):
        hashes, places = _hashes_of_part(shards, part, num_parts)
        order = np.argsort(hashes, kind="stable")
        hashes, places = hashes[order], places[order]
        starts = np.flatnonzero(np.diff(hashes, prepend=-1))
        sizes = np.diff(starts, append=len(hashes))
        copies[1] = copies.get(1, 0) + int(np.count_nonzero(sizes == 1))
        for start, size in zip(starts[sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):
            same: dict[bytes, list[int]] = {}  # by tokens: equal hashes do not prove equality
            for place in places[start : start + size].tolist():
                tokens = store.document(place).tokens.tobytes()
                seen = same.setdefault(tokens, [place, 0])
                seen[1] += 1
                if seen[1] == 2 and len(examples) < _NUM_EXAMPLES:
                    examples.append((seen[0], place))
            for _, times in same.values():
                copies[times] = copies.get(times, 0) + 1
    return Duplicates(store.num_documents, {times: count for times, count in copies.items() if count}, tuple(examples))


def _differences(ends: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """The differences between successive ends, in pieces, each with the place of its first."""
    last = 0
    for start in range(0, len(ends), _PIECE):
        piece = ends[start : start + _PIECE].astype(np.int64)
        yield start, np.diff(piece, prepend=last)
        last = int(piece[-1])


def _largest(lengths: NDArray[np.int64], most: int) -> list[int]:
    """The places of the largest numbers."""
    places: list[int] = np.argpartition(lengths, -min(most, len(lengths)))[-most:].tolist()
    return places


def _sentence(shard: Shard, first_document: int, place: int) -> LongSentence:
    start = int(shard.sentences[place - 1]) if place else 0
    document = int(np.searchsorted(shard.documents["sentence_end"], place, side="right"))
    return LongSentence(first_document + document, shard.tokens[start : int(shard.sentences[place])])


def _hashes_of_part(shards: list[Shard], part: int, num_parts: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The hashes in one of `num_parts` equal parts of their range, and the places of their documents."""
    hashes, places, first = [], [], 0
    for shard in shards:
        column = shard.documents["text_hash"]
        for start in range(0, len(column), _PIECE):
            piece = column[start : start + _PIECE].astype(np.int64)
            chosen = np.flatnonzero(piece * num_parts >> 32 == part)
            hashes.append(piece[chosen])
            places.append(chosen + (first + start))
        first += len(column)
    return np.concatenate(hashes), np.concatenate(places)
