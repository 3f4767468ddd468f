"""Pieces that hide where an answer or an entity ends. In Korean `서울은` may be one entry of the vocabulary: a token,
of which no output can say that the place is `서울` alone.

A task that finds such spans cuts its pieces there: WordPiece entries that hide the beginning or end of more spans of
the training file than they show are no longer used, and shorter ones, which the model knows too, replace them (`서울`,
`##은`). A departure from the papers, whose English hardly has such pieces.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from unmask.tokenization.offsets import align
from unmask.tokenization.opening import Tokenizer
from unmask.tokenization.tokenizer import TextTokenizer

logger = logging.getLogger("unmask")

_TEXTS_AT_ONCE = 1000


@dataclass(frozen=True)
class SpannedText:
    """A text and what is to be found in it.

    Attributes:
        text: the whole of it.
        spans: the first character of each span, and the one after its last; ascending or not.
        source: where it is.
    """

    text: str
    spans: Sequence[tuple[int, int]]
    source: str


@dataclass(frozen=True)
class _Edge:
    """A token at which a span begins or ends, or both.

    Attributes:
        span: its number in its text.
        entry: the token's.
        piece: the token's part of the text.
        is_hidden: True if the span begins or ends inside it.
    """

    text: SpannedText
    span: int
    entry: int
    piece: str
    is_hidden: bool


def _edges(tokenizer: Tokenizer, texts: Sequence[SpannedText]) -> Iterator[_Edge]:
    """Of all spans; none where no token covers the character."""
    for first in range(0, len(texts), _TEXTS_AT_ONCE):
        some = texts[first : first + _TEXTS_AT_ONCE]
        unique = list(dict.fromkeys(text.text for text in some))
        aligned_texts = dict(zip(unique, align(tokenizer, unique), strict=True))
        for text in some:
            aligned = aligned_texts[text.text]
            for number, (start, end) in enumerate(text.spans):
                touched = {bisect_right(aligned.starts, character) - 1 for character in (start, end - 1)}
                for token in touched.difference([-1]):
                    begin, after = aligned.starts[token], aligned.ends[token]
                    if after > start and begin < end:
                        is_hidden = begin < start or after > end
                        yield _Edge(text, number, aligned.ids[token], text.text[begin:after], is_hidden)


def cut_pieces(tokenizer: Tokenizer, texts: Sequence[SpannedText]) -> Tokenizer:
    """A tokenizer that cuts pieces where spans begin and end, as far as other entries can spell them.

    Args:
        tokenizer: the model's; only of WordPiece can single entries be left out.
        texts: those of the training file.

    Returns:
        The given one if nothing is to be cut.
    """
    if tokenizer.reads_words or tokenizer.kind != "wordpiece":
        return tokenizer
    num_cut = 0
    while hiding := _hiding_entries(tokenizer, texts):
        num_cut += len(hiding)
        tokenizer = tokenizer.without_entries(hiding)
    if num_cut:
        logger.info(
            "%s vocabulary entries are no longer used (task.cut_pieces), because answers or entities begin or end "
            "inside them; shorter entries replace them",
            f"{num_cut:,}",
        )
    return tokenizer


def fit_tokenizer(
    tokenizer: Tokenizer, texts: Sequence[SpannedText], what: str, path: object, *, is_cut: bool
) -> Tokenizer:
    """The tokenizer of a task, of `cut_pieces` if it cuts; warns of spans that remain hidden. See `warn_of_hidden`."""
    fitted = cut_pieces(tokenizer, texts) if is_cut else tokenizer
    warn_of_hidden(fitted, texts, what, path, is_cut=is_cut)
    return fitted


def _hiding_entries(tokenizer: TextTokenizer, texts: Sequence[SpannedText]) -> set[int]:
    """The entries that hide an edge of more spans than they show, and that other entries can spell."""
    balance: Counter[int] = Counter()
    for edge in _edges(tokenizer, texts):
        balance[edge.entry] += 1 if edge.is_hidden else -1
    return {entry for entry, number in balance.items() if number > 0 and tokenizer.can_be_cut(entry)}


def warn_of_hidden(
    tokenizer: Tokenizer, texts: Sequence[SpannedText], what: str, path: object, *, is_cut: bool
) -> None:
    """Warns of spans that begin or end inside a token: no output can be right.

    Args:
        what: the spans' name: `entities`.
        path: of the file.
        is_cut: whether the tokenizer is that of `cut_pieces`.
    """
    hidden = [edge for edge in _edges(tokenizer, texts) if edge.is_hidden]
    if not hidden:
        return
    advice = "take a model whose tokenizer cuts there, for Korean one of morphemes (--segmenter kiwi)"
    if not is_cut and not tokenizer.reads_words and tokenizer.kind == "wordpiece":
        advice = "set task.cut_pieces=true"
    shown = hidden[0]
    start, end = shown.text.spans[shown.span]
    logger.warning(
        "%s: %s of %s %s begin or end inside a piece: no model with this tokenizer can find them exactly (%r at %s, "
        "and the piece %r): %s; if the places are wrong, correct them",
        path,
        f"{len({(id(edge.text), edge.span) for edge in hidden}):,}",
        f"{sum(len(text.spans) for text in texts):,}",
        what,
        shown.text.text[start:end],
        shown.text.source,
        shown.piece,
        advice,
    )
