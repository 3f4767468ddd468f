"""Sequences of two segments: BERT's segment pairs (Devlin et al. 2019, appendix A.2), and RoBERTa's sentence pairs
(Liu et al. 2019, section 4.2), for next-sentence prediction, for sentence-order prediction (ALBERT: Lan et al. 2020,
section 3.1), or for neither.

Without a sentence objective the pairs are those of next-sentence prediction, as in BERT's row "no NSP" (its section
5.1), where only the loss is left out.

Departures from Google's `create_pretraining_data.py`, and ALBERT's:
- a short target length is drawn for each sequence, not once for each document, since documents may be whole books;
- exactly half of the pairs are IsNext: if a chunk holds only one sentence, it gets the sentence after it, or at the end
  of a document is cut in two ("a sentence is any span of contiguous text"); Google's code makes it NotNext;
- likewise both segments of sentence-order prediction always come from one document; a document of a single token, which
  cannot give two segments, is left out there;
- a sentence longer than a sequence is cut into pieces that fit; Google's code discards its end.

Of sentence pairs RoBERTa's paper says only that both are natural sentences, contiguous or from two documents. If the
last sentence of a document needs a contiguous one, it is paired with the sentence before it, which is then shown twice;
a document of one sentence is cut in two. Such sequences are short: the paper uses more of them in a batch, so that the
number of tokens stays the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from unmask.chance import Draws
from unmask.packing.planning import PlannedSequence, Span, fitting_ends
from unmask.packing.settings import SentenceObjective
from unmask.packing.split import Split

IS_NEXT, NOT_NEXT = 0, 1
"""The labels of next-sentence prediction, as in Google's code and `transformers`."""

IN_ORDER, SWAPPED = 0, 1
"""The labels of sentence-order prediction, as in ALBERT's code and `transformers`."""


@dataclass(frozen=True)
class SegmentPairs:
    """A and B are runs of sentences that fill the sequence.

    Args:
        longest: most tokens of A and B together, at least 2.
        short_sequence_prob: share of sequences whose target length is drawn uniformly between 2 and `longest`.
    """

    longest: int
    sentence_objective: SentenceObjective
    short_sequence_prob: float

    def plan(self, split: Split, documents: Iterable[int], draws: Draws) -> Iterator[PlannedSequence]:
        for document in documents:
            ends = fitting_ends(split.store.document(document).sentence_ends, self.longest)
            if self.sentence_objective == "sop":
                yield from self._plan_in_order(document, ends, draws)
            else:
                yield from self._plan_next(split, document, ends, draws)

    def _plan_next(self, split: Split, document: int, ends: list[int], draws: Draws) -> Iterator[PlannedSequence]:
        first = 0  # the first sentence of the chunk, whose last is `last`
        while first < len(ends):
            target = self._draw_target(draws)
            start, last = _chunk(ends, first, target)
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
                b = _draw_other_segment(split, document, target - len(a), draws)
                first = last_of_a + 1
            yield _next_sequence(*truncate_pair(a, b, self.longest, draws), is_next, self.sentence_objective)

    def _plan_in_order(self, document: int, ends: list[int], draws: Draws) -> Iterator[PlannedSequence]:
        first = 0
        while first < len(ends):
            start, last = _chunk(ends, first, self._draw_target(draws))
            if last == first and last + 1 < len(ends):
                last += 1
            if ends[-1] - ends[last] == 1:  # a single token is left, which could not be cut in two
                last = len(ends) - 1
            if last > first:
                middle = ends[first + draws.integer(0, last - first - 1)]
            elif ends[last] - start >= 2:
                middle = start + draws.integer(1, ends[last] - start - 1)
            else:
                return
            a, b = Span(document, start, middle), Span(document, middle, ends[last])
            yield _ordered_sequence(*truncate_pair(a, b, self.longest, draws), draws)
            first = last + 1

    def _draw_target(self, draws: Draws) -> int:
        is_short = draws.uniform() < self.short_sequence_prob
        return draws.integer(2, self.longest) if is_short else self.longest


@dataclass(frozen=True)
class SentencePairs:
    """A and B are single sentences, of at most `longest` tokens together; longer ones are cut as segments are."""

    longest: int
    sentence_objective: SentenceObjective

    def plan(self, split: Split, documents: Iterable[int], draws: Draws) -> Iterator[PlannedSequence]:
        for document in documents:
            ends = fitting_ends(split.store.document(document).sentence_ends, self.longest)
            sentences = [Span(document, start, end) for start, end in zip([0, *ends], ends, strict=False)]
            if self.sentence_objective == "sop":
                yield from self._plan_in_order(sentences, draws)
            else:
                yield from self._plan_next(split, sentences, draws)

    def _plan_next(self, split: Split, sentences: list[Span], draws: Draws) -> Iterator[PlannedSequence]:
        first = 0
        while first < len(sentences):
            is_next = draws.uniform() < 0.5
            neighbours = _neighbours(sentences, first, draws) if is_next else None
            if neighbours is None:
                is_next = False
                a = sentences[first]
                neighbours = a, _draw_other_segment(split, a.document, 1, draws)
            yield _next_sequence(*truncate_pair(*neighbours, self.longest, draws), is_next, self.sentence_objective)
            first += 2 if is_next else 1

    def _plan_in_order(self, sentences: list[Span], draws: Draws) -> Iterator[PlannedSequence]:
        for first in range(0, len(sentences), 2):
            neighbours = _neighbours(sentences, first, draws)
            if neighbours is not None:
                yield _ordered_sequence(*truncate_pair(*neighbours, self.longest, draws), draws)


def _chunk(ends: list[int], first: int, target: int) -> tuple[int, int]:
    """Sentences from `first` until `target` tokens are reached: where they start, and the last of them."""
    start = ends[first - 1] if first else 0
    return start, min(bisect_left(ends, start + target, first), len(ends) - 1)


def _neighbours(sentences: list[Span], first: int, draws: Draws) -> tuple[Span, Span] | None:
    """A sentence and the one after it, or before it at a document's end; if it is the only one, its two halves."""
    if first + 1 < len(sentences):
        return sentences[first], sentences[first + 1]
    if first:
        return sentences[first - 1], sentences[first]
    only = sentences[first]
    if len(only) < 2:
        return None
    middle = only.start + draws.integer(1, len(only) - 1)
    return Span(only.document, only.start, middle), Span(only.document, middle, only.end)


def _draw_other_segment(split: Split, document: int, target: int, draws: Draws) -> Span:
    """Sentences of another document, from a random one until `target` tokens are reached; at least one."""
    other = split.draw_other(document, draws)
    ends = split.store.document(other).sentence_ends
    first = draws.integer(0, len(ends) - 1)
    start = int(ends[first - 1]) if first else 0
    last = min(max(int(np.searchsorted(ends, start + target)), first), len(ends) - 1)
    return Span(other, start, int(ends[last]))


def _next_sequence(a: Span, b: Span, is_next: bool, sentence_objective: SentenceObjective) -> PlannedSequence:
    label = IS_NEXT if is_next else NOT_NEXT
    return PlannedSequence(((a,), (b,)), label if sentence_objective == "nsp" else None)


def _ordered_sequence(a: Span, b: Span, draws: Draws) -> PlannedSequence:
    if draws.uniform() < 0.5:
        return PlannedSequence(((b,), (a,)), SWAPPED)
    return PlannedSequence(((a,), (b,)), IN_ORDER)


def truncate_pair(a: Span, b: Span, longest: int, draws: Draws) -> tuple[Span, Span]:
    """Removes tokens from the longer segment (B if they are equal), each from its front or its back at random, until
    both fit.

    How many each segment loses is not random, so only the share from the front is drawn (a binomial for each segment).
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
