"""Tags of entities: detecting their scheme, converting them to BIO, and reading entities from them.

Ramshaw and Marcus 1995 (IOB1: B- only where an entity follows another of its type), Tjong Kim Sang and Veenstra 1999
(IOB2, called BIO here: every entity begins with B-), and IOBES with its twin BILOU (E- or L- ends an entity, S- or U-
is one by itself). Internally there is only BIO. Tags of all schemes are read as `conlleval` reads them: any tag that
can begin an entity does. Other tags, of parts of speech or morphemes, are the scheme `none` and stay as they are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Scheme = Literal["BIO", "IOB1", "IOBES", "none"]

OUTSIDE = "O"
_TAG = re.compile(r"([BIESLU])-(.+)", re.DOTALL)
_SYNONYMS = {"L": "E", "U": "S"}
"""BILOU's letters -> those of IOBES."""


@dataclass(frozen=True)
class Entity:
    """Consecutive units that name something together.

    Attributes:
        label: its type.
        first, end: its first unit, and the one after its last.
    """

    label: str
    first: int
    end: int


def split_tag(tag: str) -> tuple[str, str] | None:
    """`B-PER` as ("B", "PER"), with BILOU's letters as those of IOBES; O as ("O", ""); None for any other string."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    match = _TAG.fullmatch(tag)
    return (_SYNONYMS.get(match[1], match[1]), match[2]) if match else None


def detect_scheme(sentences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme of a file, by majority: a few mistakes do not change it.

    Tags are of entities if one begins with `B-`, `I-` ..., and either O occurs or all others begin like that too; any
    other tag is then a mistake. The scheme is IOBES if more entities end with E-, S-, L- or U- than without, and else
    IOB1 if, behind O or another type, more than two thirds of the entities begin with I-.
    """
    has_outside = has_other = False
    num_entities = num_ended = 0
    begun: Counter[str] = Counter()  # how often by which letter
    for tags in sentences:
        parts = [split_tag(tag) for tag in tags]
        has_outside |= (OUTSIDE, "") in parts
        has_other |= None in parts
        for entity in find_entities(tags):
            num_entities += 1
            (letter, label), (last, _) = parts[entity.first] or ("", ""), parts[entity.end - 1] or ("", "")
            num_ended += last in "ES"
            before = parts[entity.first - 1] if entity.first else None
            if before is None or before[1] != label:
                begun[letter] += 1
    if not num_entities or (has_other and not has_outside):
        return "none" if has_other or not has_outside else "BIO"
    if 2 * num_ended > num_entities:
        return "IOBES"
    return "IOB1" if begun["I"] > 2 * begun["B"] else "BIO"


def to_bio(tags: Sequence[str], scheme: Scheme) -> tuple[list[str], list[int]]:
    """A sentence's tags in BIO.

    Args:
        tags: each is O, or has a prefix; anything if the scheme is `none`.
        scheme: the scheme of the file.

    Returns:
        The tags, and the places of those that break the scheme: of an entity without a beginning, or, in IOBES, without
        an end. Both are read as entities.
    """
    if scheme == "none":
        return list(tags), []
    parts = [split_tag(tag) for tag in tags]
    assert None not in parts, "a tag without prefix"
    bio, broken = [], []
    for place, here in enumerate(parts):
        before = parts[place - 1] if place else None
        after = parts[place + 1] if place + 1 < len(parts) else None
        assert here is not None
        letter, label = here
        continues = _continues(before, here)
        if letter == OUTSIDE:
            bio.append(OUTSIDE)
            continue
        bio.append(f"{'I' if continues else 'B'}-{label}")
        unbegun = letter in "IE" and not continues and scheme != "IOB1"
        unended = scheme == "IOBES" and letter in "BI" and not _continues(here, after)
        if unbegun or unended:
            broken.append(place)
    return bio, broken


def find_entities(tags: Sequence[str], strict: bool = False) -> list[Entity]:
    """The entities of a sentence, in order.

    Args:
        tags: in any scheme; tags of no scheme count as O.
        strict: True reads BIO strictly: what does not begin with B- is not an entity (`seqeval`'s strict mode).
    """
    entities: list[Entity] = []
    parts = [split_tag(tag) or (OUTSIDE, "") for tag in tags]
    first: int | None = None
    for place, here in enumerate([*parts, (OUTSIDE, "")]):
        if place and first is not None and not _continues(parts[place - 1], here):
            entities.append(Entity(parts[first][1], first, place))
            first = None
        if first is None and here[0] != OUTSIDE and (here[0] == "B" or not strict):
            first = place
    return entities


def _continues(before: tuple[str, str] | None, here: tuple[str, str] | None) -> bool:
    """Whether the unit tagged `here` belongs to the same entity as the one before it."""
    if before is None or here is None or OUTSIDE in (before[0], here[0]):
        return False
    return before[0] in "BI" and here[0] in "IE" and before[1] == here[1]


def complete_labels(tags: Iterable[str]) -> tuple[str, ...]:
    """Labels of entities for the tags that occur: O first, then B- and I- of every type, sorted; no other tags."""
    types = {parts[1] for parts in map(split_tag, tags) if parts is not None and parts[0] != OUTSIDE}
    return (OUTSIDE, *(f"{letter}-{label}" for label in sorted(types) for letter in "BI"))


def are_bio(labels: Iterable[str]) -> bool:
    """Whether labels are of entities: there is at least one, and all are O or have a prefix."""
    parts = [split_tag(label) for label in labels]
    return bool(parts) and None not in parts


def inside(tag: str) -> str:
    """The tag that continues the entity of a tag: `I-PER` after `B-PER`, O after O."""
    parts = split_tag(tag)
    return tag if parts is None or parts[0] == OUTSIDE else f"I-{parts[1]}"
