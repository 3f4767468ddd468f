"""From annotations of characters to spans of tokens, by the offsets that the tokenizer gives for its tokens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers
from numpy.typing import NDArray

from unmask.corpus.annotations import KINDS, Annotation
from unmask.corpus.sentences.rules import sentence_text
from unmask.store.shard_writer import TokenSpans
from unmask.tokenization.offsets import AlignedText, align_with

Bounds = tuple[int, int]
"""Where something begins, and where it ends, exclusive."""


@dataclass(frozen=True)
class AnnotatedText:
    """A document about to be tokenized."""

    text: str  # of the document
    annotations: Sequence[Annotation]  # in it
    sentences: Sequence[Bounds]  # the bounds of its sentences in the text, in order
    first_sentence: int  # the number of its first sentence among all that are encoded at once

    def sentences_of(self, annotation: Annotation) -> range:
        """The numbers, within the document, of the sentences that an annotation overlaps."""
        return range(
            bisect_right(self.sentences, annotation.start, key=lambda bounds: bounds[1]),
            bisect_left(self.sentences, annotation.end, key=lambda bounds: bounds[0]),
        )


def place_annotations(
    documents: Sequence[AnnotatedText], lengths: NDArray[np.uint32], backend: tokenizers.Tokenizer | None
) -> TokenSpans:
    """The token spans of some documents' annotations: all tokens that overlap one of its characters.

    Of overlapping spans of one kind, the longest stays; of equally long ones, the first.

    Args:
        lengths: (sentences,) the number of tokens of each sentence of these documents, in order.
        backend: reads special tokens as plain text. None: the tokens have no offsets, and annotations cover none.
    """
    if backend is None:
        return _collect({}, sum(len(document.annotations) for document in documents))
    ends = np.cumsum(lengths, dtype=np.int64)
    aligned = _align(documents, lengths, backend)
    found: dict[str, list[Bounds]] = {kind: [] for kind in KINDS}
    without_tokens = 0
    for document in documents:
        for annotation in document.annotations:
            tokens: list[int] = []  # the first and the last in each sentence
            for place in document.sentences_of(annotation):
                number = document.first_sentence + place
                offset = document.sentences[place][0]
                touched = _touched(aligned[number], annotation.start - offset, annotation.end - offset)
                tokens += [int(ends[number]) - int(lengths[number]) + token for token in touched]
            if tokens:
                found[annotation.kind].append((tokens[0], tokens[-1] + 1))
            else:
                without_tokens += 1
    return _collect(found, without_tokens)


def _align(
    documents: Sequence[AnnotatedText], lengths: NDArray[np.uint32], backend: tokenizers.Tokenizer
) -> dict[int, AlignedText]:
    """The tokens of the sentences that annotations overlap, by sentence number."""
    sentences: dict[int, str] = {}
    for document in documents:
        for annotation in document.annotations:
            for place in document.sentences_of(annotation):
                text = sentence_text(document.text, *document.sentences[place])
                sentences[document.first_sentence + place] = text
    aligned = dict(zip(sentences, align_with(backend, list(sentences.values())), strict=True))
    assert all(len(each) == lengths[number] for number, each in aligned.items()), "encoded in two ways, one result"
    return aligned


def _touched(aligned: AlignedText, start: int, end: int) -> tuple[int, ...]:
    """The first and the last token that overlap characters `start` to `end`; empty if none does."""
    first = bisect_right(aligned.ends, start)
    last = bisect_left(aligned.starts, end) - 1
    while first <= last and aligned.starts[first] == aligned.ends[first]:  # white space, which has no place
        first += 1
    while first <= last and aligned.starts[last] == aligned.ends[last]:
        last -= 1
    return (first, last) if first <= last else ()


def _collect(found: dict[str, list[Bounds]], without_tokens: int) -> TokenSpans:
    kept = {kind: keep_longest(spans) for kind, spans in found.items()}
    rows = sorted((start, end, KINDS[kind]) for kind, spans in kept.items() for start, end in spans)
    return TokenSpans(
        rows=np.array(rows, dtype=np.uint32).reshape(-1, 3),
        overlapping=sum(map(len, found.values())) - len(rows),
        without_tokens=without_tokens,
    )


def keep_longest(spans: Iterable[Bounds]) -> list[Bounds]:
    """Keeps of overlapping spans the longest, or the first of equally long ones; in order."""
    kept: list[Bounds] = []
    for start, end in sorted(spans, key=lambda span: (span[0] - span[1], span[0])):
        place = bisect_left(kept, (start, end))
        is_free = (place == 0 or kept[place - 1][1] <= start) and (place == len(kept) or end <= kept[place][0])
        if is_free:
            insort(kept, (start, end))
    return kept
