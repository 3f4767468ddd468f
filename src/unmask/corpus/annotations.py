"""Annotations: runs of characters in a document marked as entities or noun phrases, for masking that uses them.

A `.jsonl` document has them beside its text, `"spans": [[start, end, kind], ...]`. They follow the text through
cleaning, which reports its changes as edits, and become spans of tokens in `unmask.store.annotation_places`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from unmask.io.json_files import shown

KINDS: dict[str, int] = {"entity": 1, "noun_phrase": 2}
"""The kinds of annotations, with their numbers in a store."""

FIELD = "spans"
"""The field of a JSON object that holds them."""

EXPECTED = (
    f'expected "{FIELD}" to be a list of [start, end, kind], in characters of the text from 0, the end exclusive, and '
    f"kind one of {', '.join(KINDS)}; fix that line, or give the field another name if it is something else"
)


class Annotation(NamedTuple):
    """Characters `start` to `end` of a text, the end exclusive, and their kind, a key of `KINDS`."""

    start: int
    end: int
    kind: str


class Edit(NamedTuple):
    """A change of a text: the characters from `start` to `end` became `length` characters."""

    start: int
    end: int
    length: int


def annotation_fault(value: object, num_characters: int) -> str | None:
    """What is wrong with the annotations of a document, worded for an error; None if nothing is."""
    if not isinstance(value, list):
        return f"{FIELD!r}: {shown(value)}: {EXPECTED}"
    wrong = next((number for number, each in enumerate(value) if not _is_sound(each, num_characters)), None)
    if wrong is None:
        return None
    return f"{FIELD!r}, item {wrong + 1}: {shown(value[wrong])} in a text of {num_characters:,} characters: {EXPECTED}"


def _is_sound(item: object, num_characters: int) -> bool:
    if not isinstance(item, list) or len(item) != 3:
        return False
    start, end, kind = item
    is_known = isinstance(kind, str) and kind in KINDS
    return type(start) is int and type(end) is int and is_known and 0 <= start < end <= num_characters


def follow(annotations: Iterable[Annotation], edits: Iterable[Edit], num_characters: int) -> tuple[Annotation, ...]:
    """The annotations of a text moved to their places in the changed text, without those that have become empty.

    An annotation that overlaps an edit covers all of the edit's result.

    Args:
        edits: in order, not overlapping, by their places before; the rest of the text is unchanged.
    """
    changes = list(edits)
    firsts = [edit.start for edit in changes]
    growth = [0, *accumulate(edit.length - (edit.end - edit.start) for edit in changes)]

    def place(character: int) -> tuple[int, int]:
        number = bisect_right(firsts, character)
        if number and character < changes[number - 1].end:
            edit = changes[number - 1]
            start = edit.start + growth[number - 1]
            return start, start + edit.length
        return character + growth[number], character + growth[number] + 1

    moved = (
        Annotation(place(start)[0], min(place(end - 1)[1], num_characters), kind) for start, end, kind in annotations
    )
    return tuple(each for each in moved if each.start < each.end)


def removed_lines(lines: Sequence[str], keep: Sequence[bool]) -> Iterator[Edit]:
    """The edits that remove lines of a text, each with the line break after it.

    Args:
        lines: all of the text's, without their breaks.
    """
    start = 0
    for line, stays in zip(lines, keep, strict=True):
        end = start + len(line) + 1
        if not stays:
            yield Edit(start, end, 0)
        start = end
