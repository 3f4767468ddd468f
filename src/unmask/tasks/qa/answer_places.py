"""Where an answer is in its passage: at the given offset, or where its text is found."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unmask.tokenization.offsets import is_mark

MOVED = "answers that are elsewhere in their passage than their offset says: repaired"
RESPELT = "answers that differ from their passage in white space, invisible characters or Unicode composition: repaired"
FIRST_TAKEN = "answers without an offset whose text is in their passage more than once: the first is taken"

NEAR = 16
"""Most characters that an offset may be off, as it is if UTF-16 or line ends are counted differently."""


@dataclass(frozen=True)
class AnswerPlace:
    """A range of characters of a passage.

    Attributes:
        start, end: in the passage as a Python string.
        repaired: what was wrong, for the counts; None if nothing was.
    """

    start: int
    end: int
    repaired: str | None = None


def find_answer(context: str, text: str, start: int | None) -> AnswerPlace | None:
    """Finds an answer in its passage.

    The text is looked for first as it is spelt, then ignoring differences of white space, invisible characters and
    Unicode composition. If it occurs more than once, the occurrence nearest to the offset is taken if it is within
    `NEAR` characters; without an offset, the first.

    Args:
        start: the given offset, in characters; None if there is none.

    Returns:
        None if it is not there, or if it is unclear which of several occurrences is meant.
    """
    if start is not None and start >= 0 and context.startswith(text, start):
        return AnswerPlace(start, start + len(text))
    if found := _occurrences(context, text):
        begin = _choose(found, start)
        if begin is None:
            return None
        repaired = MOVED if start is not None else FIRST_TAKEN if len(found) > 1 else None
        return AnswerPlace(begin, begin + len(text), repaired)
    return _find_folded(context, text, start)


def _find_folded(context: str, text: str, start: int | None) -> AnswerPlace | None:
    passage, wanted = _fold(context), _fold(text).text.strip()
    found = [at for at in _occurrences(passage.text, wanted) if passage.is_whole(at, at + len(wanted))]
    places = [passage.places[at] for at in found]
    begin = _choose(places, start)
    if begin is None:
        return None
    last = found[places.index(begin)] + len(wanted) - 1
    return AnswerPlace(begin, passage.places[last] + 1, RESPELT)


def _occurrences(context: str, text: str) -> list[int]:
    found = []
    at = context.find(text) if text else -1
    while at >= 0:
        found.append(at)
        at = context.find(text, at + 1)
    return found


def _choose(found: Sequence[int], start: int | None) -> int | None:
    if len(found) < 2 or start is None:
        return found[0] if found else None
    offset: int = start
    distance: Callable[[int], int] = lambda at: abs(at - offset)  # noqa: E731
    nearest, second = sorted(found, key=distance)[:2]
    return nearest if distance(nearest) <= NEAR and distance(nearest) < distance(second) else None


@dataclass(frozen=True)
class _Folded:
    """A text decomposed (NFD), without invisible characters, each run of white space reduced to one blank.

    Attributes:
        places: the place of each character in the original text.
    """

    text: str
    places: list[int]

    def is_whole(self, start: int, end: int) -> bool:
        """Whether neither end cuts a character of the original, or separates a mark from its letter."""
        begins = start == 0 or self.places[start - 1] < self.places[start]
        ends = end == len(self.text) or (self.places[end - 1] < self.places[end] and not is_mark(self.text[end]))
        return begins and ends


def _fold(text: str) -> _Folded:
    characters: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text):
        if character.isspace():
            decomposed = " " if characters[-1:] != [" "] else ""
        elif unicodedata.category(character) == "Cf":
            decomposed = ""
        else:
            decomposed = unicodedata.normalize("NFD", character)
        characters += decomposed
        places += [place] * len(decomposed)
    return _Folded("".join(characters), places)
