"""Entities that begin or end inside a piece, as Korean names do before a particle: `서울은` may be one entry of the
vocabulary, and its one tag cannot say that only `서울` is a place.

A tagger that learns tags of characters cuts its pieces there: the WordPiece entries inside which entities of the
training file begin or end are matched no more, and shorter ones, which the model knows as well, take their place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.tagging.rows import TaggingExample
from unmask.tasks.tagging.schemes import Entity, find_entities
from unmask.tokenization.opening import Tokenizer
from unmask.tokenization.tokenizer import TextTokenizer

logger = logging.getLogger("unmask")

Windows = list[tuple[Sequence[Any], EncodedExamples]]
"""Labelled `TaggingExample`s, with what `encode_sentences` made of them."""

_MOST_HIDING = 0.1
"""The share of an entry's places in which an entity may begin or end inside it before it is matched no more."""


@dataclass(frozen=True)
class _Hidden:
    """An entity that begins or ends inside a token, which covers the units `first` to `end`, the latter excluded."""

    example: TaggingExample
    entity: Entity
    entry: int  # of the vocabulary
    first: int
    end: int


def _hidden(examples: Sequence[Any], rows: EncodedExamples) -> Iterator[_Hidden]:
    """In the order of the tokens; an entity comes twice if two tokens hide its ends."""
    entities = [find_entities(example.tags or ()) for example in examples]
    of_several = np.flatnonzero(rows.alignment["num_units"].astype(np.int32) > 1)
    numbers = np.repeat(rows.examples, rows.lengths)
    columns = (numbers, rows.input_ids, rows.alignment["units"], rows.alignment["num_units"])
    for number, entry, first, num_units in zip(*(column[of_several].tolist() for column in columns), strict=True):
        end = first + num_units
        for entity in entities[number]:
            if first < entity.first < end or first < entity.end < end:
                yield _Hidden(examples[number], entity, entry, first, end)


def cut_at_entities(
    tokenizer: Tokenizer, windows: Windows, encode: Callable[[Tokenizer], Windows]
) -> tuple[Tokenizer, Windows]:
    """Cuts pieces where entities begin or end, as far as entries without these bounds inside can spell the text.

    Args:
        tokenizer: the model's; only WordPiece has entries that can be left out by themselves.
        windows: the training examples as it encodes them.
        encode: encodes the same examples with another one.

    Returns:
        A tokenizer and its encoding of the examples; those given if nothing is to be cut.
    """
    if tokenizer.reads_words or tokenizer.kind != "wordpiece":
        return tokenizer, windows
    num_cut = 0
    while hiding := _hiding(windows, tokenizer):
        num_cut += len(hiding)
        tokenizer = tokenizer.without_entries(hiding)
        windows = encode(tokenizer)
    if num_cut:
        logger.info(
            "%s entries of the vocabulary are matched no more, as entities begin or end inside them "
            "(task.cut_pieces): shorter ones take their place",
            f"{num_cut:,}",
        )
    return tokenizer, windows


def _hiding(windows: Windows, tokenizer: TextTokenizer) -> set[int]:
    """The entries inside which entities begin or end in more than a share of their places, and that can be cut
    anywhere: each of their characters is an entry too."""
    places, hiding = np.zeros((2, tokenizer.vocab_size), dtype=np.int64)
    for examples, rows in windows:
        places += np.bincount(rows.input_ids[rows.alignment["num_units"].astype(bool)], minlength=len(places))
        for _, same_token in groupby(_hidden(examples, rows), lambda one: (id(one.example), one.first)):
            hiding[next(same_token).entry] += 1
    known = set(tokenizer.token_strings)
    found = set(np.flatnonzero(hiding > _MOST_HIDING * places).tolist()).difference(tokenizer.special_ids)
    return {entry for entry in found if known.issuperset(tokenizer.in_characters(entry))}


def warn_of_cut_entities(windows: Windows, path: object) -> None:
    """Warns of entities that begin or end inside a token: it has one tag, so no output can be right.

    Args:
        path: of the examples' file.
    """
    num_entities = sum(len(find_entities(example.tags or ())) for examples, _ in windows for example in examples)
    found = [one for examples, rows in windows for one in _hidden(examples, rows)]
    if not found:
        return
    hidden = found[0]
    example, entity = hidden.example, hidden.entity
    logger.warning(
        "%s: %s of %s entities begin or end inside a piece: no model with this tokenizer can find them, as each piece "
        "gets one tag (%r at %s, and the piece %r). task.cut_pieces=true cuts WordPiece there; else take a model whose "
        "tokenizer does, for Korean one of morphemes (`unmask tokenizer train --segmenter kiwi`); if the places are "
        "wrong, correct them",
        path,
        f"{len({(id(one.example), one.entity) for one in found}):,}",
        f"{num_entities:,}",
        example.between(entity.first, entity.end),
        example.source,
        example.between(hidden.first, hidden.end),
    )
