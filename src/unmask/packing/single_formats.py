"""Sequences of one segment: RoBERTa's full-sentences and doc-sentences (Liu et al. 2019, section 4.2), and the single
segments of SpanBERT (Joshi et al. 2020, section 3.3) and GPT-1 (Radford et al. 2018, section 4.1).

In each of them every token of the documents is shown exactly once. A sentence longer than a sequence is cut into pieces
that fit. None of these papers injects short sequences.

Departures from RoBERTa: "the next document" is the next one in an epoch's random order, not in the corpus's; the last
full-sentences sequence of a block of documents may be short; and batches of doc-sentences are not enlarged to make up
for sequences that end with their document: batches are packed, without padding, and a loss is averaged over its
targets, so a short sequence neither wastes anything nor changes any weight.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from unmask.chance import Draws
from unmask.packing.planning import PlannedSequence, Span, fitting_ends
from unmask.packing.split import Split


@dataclass(frozen=True)
class FullSentences:
    """Whole sentences one after another, from one document into the next, with a separator token between documents.

    An example, where `longest` is 8 and two documents have sentences of 3, 4 and 2 and of 5 tokens: the first sequence
    is sentences 1 and 2 (7 tokens), the second is sentence 3, a separator and sentence 4 (8 tokens).

    Args:
        longest: most tokens of text and of separators between documents; `[CLS]` and `[SEP]` around them are not
            counted.
    """

    longest: int

    def plan(self, split: Split, documents: Iterable[int], draws: Draws) -> Iterator[PlannedSequence]:
        spans: list[Span] = []
        space = self.longest
        for document in documents:
            ends = fitting_ends(split.store.document(document).sentence_ends, self.longest)
            first = start = 0
            while first < len(ends):
                if spans:  # of earlier documents: a separator comes first
                    space -= 1
                after = bisect_right(ends, start + space, first)  # the first sentence that does not fit
                if after > first:
                    spans.append(Span(document, start, ends[after - 1]))
                    space -= ends[after - 1] - start
                    first, start = after, ends[after - 1]
                if first < len(ends):
                    yield PlannedSequence((tuple(spans),))
                    spans, space = [], self.longest
        if spans:
            yield PlannedSequence((tuple(spans),))


@dataclass(frozen=True)
class DocSentences:
    """Whole sentences one after another, at most `longest` tokens; a sequence ends with its document, so it may be
    short."""

    longest: int

    def plan(self, split: Split, documents: Iterable[int], draws: Draws) -> Iterator[PlannedSequence]:
        for document in documents:
            yield from FullSentences(self.longest).plan(split, [document], draws)


@dataclass(frozen=True)
class SingleSegments:
    """`longest` consecutive tokens of a document, cut anywhere; the rest at its end is a shorter sequence."""

    longest: int

    def plan(self, split: Split, documents: Iterable[int], draws: Draws) -> Iterator[PlannedSequence]:
        for document in documents:
            num_tokens = len(split.store.document(document).tokens)
            for start in range(0, num_tokens, self.longest):
                yield PlannedSequence(((Span(document, start, min(start + self.longest, num_tokens)),),))
