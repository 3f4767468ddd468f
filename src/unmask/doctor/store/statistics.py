"""What a token store holds, in numbers: lengths, counts of entries, duplicates.

Everything is read once from the memory-mapped shards: memory grows with the hashes and lengths of documents alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.store.store import TokenStore

_NUM_LONGEST = 3
_NUM_EXAMPLES = 3


@dataclass
class LengthCounts:
    """How often each length occurs."""

    # (longest length + 1,) by length
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, dtype=np.int64))

    def add(self, lengths: NDArray[np.integer[Any]]) -> None:
        """Counts some more; all of them 0 or more."""
        counts = np.bincount(lengths, minlength=len(self.counts))
        counts[: len(self.counts)] += self.counts
        self.counts = counts

    @property
    def num(self) -> int:
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        """The sum of all lengths."""
        return self.sum_from(0)

    @property
    def mean(self) -> float:
        return self.total / max(1, self.num)

    @property
    def longest(self) -> int:
        return int(np.flatnonzero(self.counts).max(initial=0))

    def quantile(self, share: float) -> int:
        """The smallest length that at least `share` of all lengths do not exceed; `share` in (0, 1]."""
        return int(np.searchsorted(np.cumsum(self.counts), share * self.num - 1e-9))

    def between(self, start: int, end: int | None = None) -> int:
        """How many lengths are at least `start` and below `end`."""
        return int(self.counts[start:end].sum())

    def sum_from(self, start: int) -> int:
        """The sum of the lengths that are at least `start`."""
        return int(self.counts[start:] @ np.arange(start, max(start, len(self.counts))))


@dataclass(frozen=True)
class LongSentence:
    """A sentence among the longest: the document that it is in, and its tokens."""

    document: int
    tokens: NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Duplicates:
    """Documents that are in the store more than once, token for token."""

    num_documents: int  # of the store
    copies: dict[int, int]  # number of copies -> how many distinct documents have it: {1: 80, 3: 2} are 86 documents
    examples: tuple[tuple[int, int], ...]  # the places of some documents and of their first copies

    @property
    def num_distinct(self) -> int:
        return sum(self.copies.values())

    @property
    def share(self) -> float:
        """The share of all documents that are a copy of an earlier one."""
        return 1 - self.num_distinct / max(1, self.num_documents)

    def times_repeated(self) -> int:
        """How many copies at least 95 % of the distinct documents have: 1 unless the corpus repeats."""
        left = 0.95 * self.num_distinct
        for times in sorted(self.copies, reverse=True):
            left -= self.copies[times]
            if left <= 1e-9:
                return times
        return 1


@dataclass(frozen=True)
class StoreStatistics:
    """What one reading of a store finds."""

    token_counts: NDArray[np.int64]  # (vocabulary,) how often each entry occurs
    sentence_lengths: LengthCounts  # of the sentences, in tokens
    document_lengths: LengthCounts  # of the documents, in tokens
    num_single: int  # documents of one sentence
    longest: tuple[LongSentence, ...]  # the longest sentences, the longest first


def count_store(store: TokenStore, advance: Callable[[float], None] = lambda count: None) -> StoreStatistics:
    """Reads a whole store; each file's checksum is verified on the way.

    Args:
        advance: see `TokenStore.token_counts`.

    Raises:
        StoreError: a file differs from what was written.
    """
    token_counts = store.token_counts(advance)
    documents, num_sentences = store.sizes()
    sentences, longest, first_document = LengthCounts(), list[LongSentence](), 0
    for shard in store.shards:
        lengths = np.diff(shard.sentences, prepend=0)
        sentences.add(lengths)
        ends = shard.documents["sentence_end"]
        for place in np.argsort(-lengths, kind="stable")[:_NUM_LONGEST].tolist():
            document = first_document + int(np.searchsorted(ends, place, side="right"))
            end = int(shard.sentences[place])
            longest.append(LongSentence(document, shard.tokens[end - int(lengths[place]) : end]))
        first_document += len(ends)
    longest.sort(key=lambda sentence: -len(sentence.tokens))
    num_single = int(np.count_nonzero(num_sentences == 1))
    return StoreStatistics(
        token_counts, sentences, LengthCounts(np.bincount(documents)), num_single, tuple(longest[:_NUM_LONGEST])
    )


def find_duplicates(store: TokenStore) -> Duplicates:
    """Finds documents that are equal token for token: by the stored 32 bits of hash, then by the tokens themselves."""
    examples: list[tuple[int, int]] = []
    hashes = np.concatenate([shard.documents["text_hash"] for shard in store.shards])
    places = np.argsort(hashes, kind="stable")
    starts = np.flatnonzero(np.diff(hashes[places].astype(np.int64), prepend=-1))
    sizes = np.diff(starts, append=len(hashes))
    copies = Counter({1: int(np.count_nonzero(sizes == 1))})
    for start, size in zip(starts[sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):
        same: dict[bytes, list[int]] = {}  # by tokens: equal hashes do not prove equality
        for place in places[start : start + size].tolist():
            same.setdefault(store.document(place).tokens.tobytes(), []).append(place)
        copies.update(len(equal) for equal in same.values())
        examples += [(equal[0], equal[1]) for equal in same.values() if len(equal) > 1][: _NUM_EXAMPLES - len(examples)]
    return Duplicates(store.num_documents, {times: count for times, count in copies.items() if count}, tuple(examples))
