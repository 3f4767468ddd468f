"""Documents to sequences: BERT's segment pairs (Devlin et al. 2019, appendix A.2).

The corpus is permuted by a keyed bijection and taken in blocks of at most 4,096 documents. The plan of a block, which
is its sequences and their order, is a pure function of (seed, copy, block), so a resumed run re-plans one block and
goes on.

Departures from Google's `create_pretraining_data.py`:
- a short target length is drawn for each sequence, not once for each document, since documents may be whole books;
- exactly half of the pairs are IsNext: where a chunk holds one sentence only, it is given the sentence after it, or at
  the end of a document cut in two ("a sentence is any span of contiguous text"), where Google's code makes it NotNext;
- a sentence longer than a sequence is cut into pieces that fit, where Google's code throws its end away.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.chance import Draws, Permutation, key, uniform
from unmask.data.settings import PackingSettings
from unmask.data.store import StoredDocument, TokenStore
from unmask.errors import InputError

BLOCK_DOCUMENTS = 4096
NUM_SPECIAL_TOKENS = 3
"""`[CLS]`, and `[SEP]` after each segment."""

_ORDER, _PLAN, _SHUFFLE = 1, 2, 3
"""What a key is for, its last part: the order of documents, the plan of a block, the order of its sequences."""

IS_NEXT, NOT_NEXT = 0, 1
"""The labels of next-sentence prediction, as in Google's code and `transformers`."""


@dataclass(frozen=True)
class Span:
    """A run of tokens of one document: `document` is its place in the store, `start` and `end` count its tokens."""

    document: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class SegmentPair:
    """A planned sequence: segment A, segment B, and whether B follows A (0) or comes from another document (1)."""

    a: Span
    b: Span
    next_sentence_label: int


class Split:
    """The training or the held-out documents of a store, told apart by the SHA-256 of their text.

    Args:
        store: an opened store.
        held_out: share of documents that is held out.
        is_held_out: True for the held-out documents, False for the others.
    """

    def __init__(self, store: TokenStore, held_out: float, is_held_out: bool) -> None:
        self.store = store
        self.is_held_out = is_held_out
        self._threshold = int(held_out * 2**32)
        held_out_documents = int(np.count_nonzero(store.text_hashes() < self._threshold))
        self.num_documents = held_out_documents if is_held_out else store.num_documents - held_out_documents

    def __contains__(self, document: int) -> bool:
        return (self.store.text_hash(document) < self._threshold) == self.is_held_out

    def draw_other(self, document: int, draws: Draws) -> int:
        """A document of this split, evenly drawn, that is not `document`."""
        while True:
            other = draws.integer(0, self.store.num_documents - 1)
            if other != document and other in self:
                return other


@dataclass(frozen=True)
class PairPlanner:
    """Plans segment pairs.

    Args:
        split: the documents to plan.
        settings: target length and short-sequence probability.
        seed: the run's.
    """

    split: Split
    settings: PackingSettings
    seed: int

    def __post_init__(self) -> None:
        if self.split.num_documents < 2:
            name = "held-out" if self.split.is_held_out else "training"
            raise InputError(
                f"{self.split.store.directory}: {self.split.num_documents} {name} document(s), but segment pairs need "
                "two, since a random segment B comes from another document: give more documents (in .txt a blank line "
                "ends one), or change held_out"
            )

    @property
    def num_blocks(self) -> int:
        return -(-self.split.store.num_documents // BLOCK_DOCUMENTS)

    def places(self, block: int) -> range:
        """The places of a block's documents in the order of an epoch."""
        return range(block * BLOCK_DOCUMENTS, min((block + 1) * BLOCK_DOCUMENTS, self.split.store.num_documents))

    def plan_block(self, copy: int, block: int) -> list[SegmentPair]:
        """All sequences of a block, in the order in which they are shown.

        Args:
            copy: the epoch, or the epoch modulo the number of copies.
            block: 0 <= block < num_blocks.
        """
        store = self.split.store
        order = Permutation(store.num_documents, self.seed, copy, _ORDER)
        draws = Draws(self.seed, copy, block, _PLAN)
        pairs: list[SegmentPair] = []
        for place in self.places(block):
            document = order[place]
            if document in self.split:
                pairs.extend(self._plan_document(document, store.document(document), draws))
        keys = torch.full((len(pairs),), key(self.seed, copy, block, _SHUFFLE))
        shuffled = torch.argsort(uniform(keys, torch.arange(len(pairs)), stream=0), stable=True)
        return [pairs[place] for place in shuffled.tolist()]

    def _plan_document(self, document: int, stored: StoredDocument, draws: Draws) -> Iterator[SegmentPair]:
        longest = self.settings.max_length - NUM_SPECIAL_TOKENS
        ends = fitting_ends(stored.sentence_ends, longest)
        first = 0  # the first sentence of the chunk
        while first < len(ends):
            target = longest
            if draws.uniform() < self.settings.short_sequence_prob:
                target = draws.integer(2, longest)
            start = ends[first - 1] if first else 0
            last = min(bisect_left(ends, start + target, first), len(ends) - 1)  # the last sentence of the chunk
            is_next = draws.uniform() < 0.5
            if is_next and last == first and last + 1 < len(ends):
                last += 1
            if last > first:
                last_of_a = first + draws.integer(0, last - first - 1)
                middle = ends[last_of_a]
            else:
                last_of_a = last
                middle = ends[last]
                if is_next and middle - start >= 2:
                    middle = start + draws.integer(1, middle - start - 1)
                else:
                    is_next = False
            a = Span(document, start, middle)
            if is_next:
                b = Span(document, middle, ends[last])
                first = last + 1
            else:
                b = self._draw_other_segment(document, target - len(a), draws)
                first = last_of_a + 1
            a, b = truncate_pair(a, b, longest, draws)
            yield SegmentPair(a, b, IS_NEXT if is_next else NOT_NEXT)

    def _draw_other_segment(self, document: int, target: int, draws: Draws) -> Span:
        """Sentences of another document, from a random one on until `target` tokens are reached; at least one."""
        other = self.split.draw_other(document, draws)
        ends = self.split.store.document(other).sentence_ends
        first = draws.integer(0, len(ends) - 1)
        start = int(ends[first - 1]) if first else 0
        last = min(max(int(np.searchsorted(ends, start + target)), first), len(ends) - 1)
        return Span(other, start, int(ends[last]))


def fitting_ends(sentence_ends: NDArray[np.int64], longest: int) -> list[int]:
    """The ends of sentences, with more ends put into each sentence over `longest` tokens so that every piece fits."""
    lengths = np.diff(sentence_ends, prepend=0)
    ends: list[int] = sentence_ends.tolist()
    if lengths.max() > longest:
        starts = sentence_ends - lengths
        cuts = [np.arange(starts[n] + longest, sentence_ends[n], longest) for n in np.flatnonzero(lengths > longest)]
        ends = np.sort(np.concatenate([sentence_ends, *cuts])).tolist()
    return ends


def truncate_pair(a: Span, b: Span, longest: int, draws: Draws) -> tuple[Span, Span]:
    """Takes tokens from the longer segment (B where they are equal), each from its front or its back at random, until
    both fit.

    Which segment loses how many does not depend on chance, so only the fronts are drawn (a binomial for each segment).
    """
    excess = len(a) + len(b) - longest
    if excess <= 0:
        return a, b
    from_longer = min(excess, abs(len(a) - len(b)))
    rest = excess - from_longer
    from_a = (from_longer if len(a) > len(b) else 0) + rest // 2
    from_b = (from_longer if len(a) <= len(b) else 0) + rest - rest // 2
    return _trim(a, from_a, draws), _trim(b, from_b, draws)


def _trim(span: Span, excess: int, draws: Draws) -> Span:
    front = 0
    for start in range(0, excess, 53):
        bits = min(53, excess - start)
        front += (int(draws.uniform() * 2**53) >> (53 - bits)).bit_count()
    return Span(span.document, span.start + front, span.end - (excess - front))
