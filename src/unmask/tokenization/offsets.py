"""Texts as ids with the place of each token in the text, for tasks that point into it (spans, tags).

The library's offsets leave out the marks that its normaliser composed or removed: of `e` and a combining accent only
the `e` is covered, of three Hangul jamo only the first. Here a token's place extends over the marks that follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tokenizers

from unmask.corpus.cleaning.scripts import is_mark as is_mark
from unmask.io.encodings import normalized
from unmask.tokenization.opening import Tokenizer


@dataclass(frozen=True)
class AlignedText:
    """The tokens of one text, without added special tokens.

    Starts ascend. Tokens that share a character, such as the bytes of one, have the same place.
    """

    ids: list[int]  # one per token
    starts: list[int]  # the characters of the original text that each token covers, without white space around them
    ends: list[int]

    def __len__(self) -> int:
        return len(self.ids)


def align(tokenizer: Tokenizer, texts: Sequence[str]) -> list[AlignedText]:
    """Encodes texts as `tokenizer.encode_batch` does with special tokens in the text, and keeps the places."""
    if tokenizer.reads_words:
        return [AlignedText(*tokenizer.encode_with_places(text)) for text in texts]
    if tokenizer.segmenter == "none":
        return align_with(tokenizer.backend, texts)
    segmented = [tokenizer.segment(text) for text in texts]
    return [_placed(*pair) for pair in zip(texts, segmented, align_with(tokenizer.backend, segmented), strict=True)]


def _placed(text: str, segmented: str, aligned: AlignedText) -> AlignedText:
    """The same tokens with their places in the text before it was composed and segmented, which has the same characters
    in the same order, white space aside: in `나 는` the token `는` is at 2, and in `나는` at 1."""
    bounds = _bounds_of_composed(text)
    begins: list[int] = []  # of each character of `segmented`, in `text`
    ends = [0]  # of the characters before each place in `segmented`, in `text`
    for character in segmented:
        begin, end = (ends[-1], ends[-1]) if character.isspace() else next(bounds)
        begins.append(begin)
        ends.append(end)
    starts = [
        begins[start] if start < end else ends[start] for start, end in zip(aligned.starts, aligned.ends, strict=True)
    ]
    return AlignedText(aligned.ids, starts, [ends[end] for end in aligned.ends])


def _bounds_of_composed(text: str) -> Iterator[tuple[int, int]]:
    """Where each character of the composed text (NFC), white space aside, begins and ends in the text itself. Only
    marks compose, with what is before them."""
    start = 0
    for end in range(1, len(text) + 1):
        if end < len(text) and is_mark(text[end]) and not text[end - 1].isspace():
            continue
        composed = normalized("NFC", text[start:end])
        if composed.isspace():  # first: U+2000 and U+2001 compose to other blanks
            pass
        elif composed != text[start:end]:
            yield from [(start, end)] * len(composed)
        else:
            yield from ((place, place + 1) for place in range(start, end))
        start = end


def align_with(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> list[AlignedText]:
    """Encodes texts as the library's tokenizer does, and keeps the places."""
    encodings = backend.encode_batch(list(texts), add_special_tokens=False)
    return [_trimmed(text, encoding.ids, encoding.offsets) for text, encoding in zip(texts, encodings, strict=True)]


def _trimmed(text: str, ids: list[int], offsets: Sequence[tuple[int, int]]) -> AlignedText:
    starts, ends = [], []
    for start, end in offsets:
        while start < end and text[start].isspace():
            start += 1
        while end > start and text[end - 1].isspace():
            end -= 1
        starts.append(start)
        ends.append(end)
    if not text.isascii():
        _go_over_marks(text, starts, ends)
    return AlignedText(ids, starts, ends)


def _go_over_marks(text: str, starts: list[int], ends: list[int]) -> None:
    """Moves each end past the marks that follow it, as far as no other token stands there."""
    limit = len(text)  # where the next token with a different start begins
    for index in range(len(starts) - 1, -1, -1):
        if index + 1 < len(starts) and starts[index + 1] > starts[index]:
            limit = starts[index + 1]
        while starts[index] < ends[index] < limit and is_mark(text[ends[index]]):
            ends[index] += 1
