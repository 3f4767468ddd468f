"""Entities that point into a text by its characters, `[[start, end, label]]`, as tags of its words or characters."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from unmask.errors import InputError
from unmask.io.rows import Row
from unmask.tasks.tagging.schemes import OUTSIDE

Span = tuple[int, int]
"""First character, and the one after the last."""

_NAMES = ("entities", "label", "labels")
"""Where entities are looked for; doccano writes `label`, which may also be the class of a text, and is no list then."""
_KEYS = (("start", "end", "label"), ("start_offset", "end_offset", "label"))


class EntityInsideWord(InputError):  # noqa: N818  what is wrong
    """An entity begins or ends inside a word, so that tags of words cannot say where it is."""


def find_entities_field(row: Row, tags_name: str | None) -> Any:
    """The entities of a row, where it has them in place of tags; None if it has none.

    Args:
        tags_name: the column of its tags, which may hold entities too; None if there is none.
    """
    if tags_name is not None:
        value = row[tags_name]
        return value if isinstance(value, list) and value and isinstance(value[0], list | Mapping) else None
    if row.fields.get("entities") is not None:
        return row.fields["entities"]
    return next((row.fields[name] for name in _NAMES if isinstance(row.fields.get(name), list)), None)


def tags_of_entities(entities: Any, text: str, units: Sequence[Span], source: str) -> list[str]:
    """BIO tags of units from entities given by character offsets.

    Raises:
        InputError: they are no entities, or two share a unit.
        EntityInsideWord: one does not begin and end where units do.
    """
    tags = [OUTSIDE] * len(units)
    if not isinstance(entities, list):
        raise InputError(f"{source}: entities is {json.dumps(entities)[:60]}: expected a list of [start, end, label]")
    for entity in entities:
        start, end, label = _checked_entity(entity, len(text), source)
        inside = [place for place, unit in enumerate(units) if unit[0] < end and start < unit[1]]
        if not inside or any(tags[place] != OUTSIDE for place in inside):
            problem = "shares a word with another one" if inside else "holds no word"
            raise InputError(
                f"{source}: the entity {text[start:end]!r} ({label}) {problem}: expected each word in one at most"
            )
        first, last = units[inside[0]], units[inside[-1]]
        if first[0] < start or end < last[1]:
            begins, word = ("begins", first) if first[0] < start else ("ends", last)
            raise EntityInsideWord(
                f"{source}: the entity {text[start:end]!r} ({label}) {begins} inside the word {text[slice(*word)]!r}, "
                "and words are tagged: train with task.units=characters, or correct its place"
            )
        for place in inside:
            tags[place] = f"{'B' if place == inside[0] else 'I'}-{label}"
    return tags


def _checked_entity(entity: Any, length: int, source: str) -> tuple[int, int, str]:
    given = entity
    if isinstance(entity, Mapping):
        keys = next((keys for keys in _KEYS if keys[0] in entity), _KEYS[0])
        given = [entity.get(key) for key in keys]
    if isinstance(given, list) and len(given) == 3:
        start, end, label = given
        if type(start) is int and type(end) is int and 0 <= start < end <= length and isinstance(label, str) and label:
            return start, end, label
    raise InputError(
        f"{source}: the entity {json.dumps(entity, ensure_ascii=False)[:60]}: expected [start, end, label], characters "
        f"of the text from 0 to {length}"
    )


def split_words(text: str, punctuation: bool) -> list[Span]:
    """The words of a text, separated by white space.

    Args:
        punctuation: True also cuts punctuation and symbols off both edges of a word, one by one, as corpora of entities
            do; `@` and `#` stay before a name.
    """
    spans: list[Span] = []
    for has_text, group in groupby(range(len(text)), key=lambda place: not text[place].isspace()):
        places = list(group)
        if not has_text:
            continue
        start, end = places[0], places[-1] + 1
        first, last = start, end
        while punctuation and first < end and _is_mark(text[first]) and not (text[first] in "@#" and first + 1 < end):
            first += 1
        while punctuation and last > first and _is_mark(text[last - 1]):
            last -= 1
        spans += [(place, place + 1) for place in range(start, first)]
        spans += [(first, last)] if first < last else []
        spans += [(place, place + 1) for place in range(last, end)]
    return spans


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"
