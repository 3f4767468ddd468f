"""How often each word of a corpus occurs, counted in one pass, in memory bounded by a byte budget.

A corpus larger than the budget is sampled by whole documents while it is read. Every document gets a level from a hash
of (seed, its number): half of them level 0, a quarter level 1, an eighth level 2 and so on. Each level has its own
counts; whenever the text counted exceeds the budget, the lowest level is discarded and no longer counted. What remains
at the end is a uniform sample, without knowing the size of the corpus beforehand or reading the text twice.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass
class _Level:
    pre_tokens: Counter[str] = field(default_factory=Counter)
    num_documents: int = 0
    num_bytes: int = 0


@dataclass(frozen=True)
class WordCounts:
    """Words with their counts, and how much text they come from."""

    words: Counter[str]  # occurrences of each word
    num_documents: int  # documents counted
    num_bytes: int  # bytes of UTF-8 counted
    num_documents_read: int  # documents read, including those left out of the sample
    num_bytes_read: int  # likewise bytes


def count_words(
    texts: Iterable[str],
    split: Callable[[str], list[str]],
    sample_bytes: int,
    seed: int,
    pre_tokens: Callable[[str], Iterable[str]] = str.split,
    see: Callable[[str, list[str], int], None] | None = None,
) -> WordCounts:
    """Counts the words of `texts`.

    Args:
        texts: one document each; iterated once.
        split: splits a pre-token of text into words; called once for every distinct pre-token, which is many times
            cheaper than once for every text.
        sample_bytes: most bytes of text to count; a single document may exceed it.
        pre_tokens: cuts a text where no word spans the cut; by default at white space.
        see: is given each distinct pre-token, its words, and how often it occurs.
    """
    levels: dict[int, _Level] = {}
    lowest = 0
    num_documents = num_bytes = 0
    for index, text in enumerate(texts):
        size = len(text.encode())
        num_documents += 1
        num_bytes += size
        number = _level_of_document(seed, index)
        if number >= lowest:
            level = levels.setdefault(number, _Level())
            level.pre_tokens.update(pre_tokens(text))
            level.num_documents += 1
            level.num_bytes += size
            while len(levels) > 1 and sum(level.num_bytes for level in levels.values()) > sample_bytes:
                lowest = min(levels) + 1
                del levels[lowest - 1]
    return WordCounts(
        words=_split_pre_tokens([level.pre_tokens for level in levels.values()], split, see),
        num_documents=sum(level.num_documents for level in levels.values()),
        num_bytes=sum(level.num_bytes for level in levels.values()),
        num_documents_read=num_documents,
        num_bytes_read=num_bytes,
    )


def _level_of_document(seed: int, index: int) -> int:
    """How many zero bits the document's hash ends with: k with probability 2^-(k+1)."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    bits = int.from_bytes(digest, "big")
    return (bits & -bits).bit_length() - 1 if bits else 64


def _split_pre_tokens(
    levels: list[Counter[str]], split: Callable[[str], list[str]], see: Callable[[str, list[str], int], None] | None
) -> Counter[str]:
    """Adds up the counts and splits the pre-tokens into words; empties `levels` on the way, to save memory."""
    pre_tokens: Counter[str] = Counter()
    for level in levels:
        pre_tokens.update(level)
        level.clear()
    words: Counter[str] = Counter()
    while pre_tokens:
        pre_token, count = pre_tokens.popitem()
        found = split(pre_token)
        for word in found:
            words[word] += count
        if see is not None:
            see(pre_token, found, count)
    return words
