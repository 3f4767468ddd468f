"""Encodes text in which nothing is read as a special token: `[MASK]` in it is a bracket, a word and a bracket.

Half of the time of encoding is spent on normalisation. BERT's normaliser leaves each character of printable ASCII,
common letters, marks and symbols and, if the text is finally composed, Hangul syllables unchanged except for case; a
text of only such characters skips it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import cache

from tokenizers import Tokenizer

from unmask.tokenization.definition import Definition, steps_of
from unmask.tokenization.library import open_definition

_ASCII = "".join(map(chr, range(0x20, 0x7F)))
_HANGUL = "".join(map(chr, range(0xAC00, 0xD7A4)))
_COMMON = (
    (0x00A1, 0x024F),  # Latin
    (0x0370, 0x045F),  # Greek, Cyrillic
    (0x2010, 0x205E),  # quotation marks, dashes, ellipses
    (0x20A0, 0x22FF),  # currencies, letterlike signs, arrows, mathematics
    (0x2460, 0x26FF),  # numbers in circles, shapes
    (0x3001, 0x30FF),  # East Asian marks, kana
    (0x3131, 0x318E),  # Hangul letters
    (0xFF01, 0xFFEE),  # wide and narrow forms
)


class PlainTextEncoder:
    """Encodes texts without looking for special tokens in them, and without adding any."""

    def __init__(self, backend: Tokenizer) -> None:
        """Makes its own copy of `backend`, which may be any tokenizer; only BERT's normaliser is ever skipped."""
        self._full = plain_copy(backend)
        self._lowercase, unchanged = unchanged_characters(json.loads(backend.to_str()))
        self._is_normal = re.compile(f"[{re.escape(unchanged)}]*").fullmatch if unchanged else None
        self._short = plain_copy(backend, normalized=True)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        if self._is_normal is None:
            return _ids(self._full, texts)
        encoded: list[list[int]] = [[]] * len(texts)
        normal = [index for index, text in enumerate(texts) if self._is_normal(text)]
        other = sorted(set(range(len(texts))).difference(normal))
        ready = [texts[index].lower() if self._lowercase else texts[index] for index in normal]
        for index, ids in zip(normal, _ids(self._short, ready), strict=True):
            encoded[index] = ids
        for index, ids in zip(other, _ids(self._full, [texts[index] for index in other]), strict=True):
            encoded[index] = ids
        return encoded


def plain_copy(backend: Tokenizer, *, normalized: bool = False) -> Tokenizer:
    """A copy of a tokenizer that reads special tokens in a text as ordinary characters.

    Args:
        normalized: True leaves its normaliser out, for texts that are already normalised.
    """
    definition = json.loads(backend.to_str())
    copy = open_definition(definition | {"normalizer": None} if normalized else definition)
    copy.encode_special_tokens = True
    return copy


def _ids(backend: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def unchanged_characters(definition: Definition) -> tuple[bool, str]:
    """Whether the normaliser lowercases, and the characters that it otherwise leaves unchanged in any context.

    The known steps never combine such characters with their neighbours: BERT's normaliser treats each by itself, and
    NFC composes a character only with a combining mark or a conjoining Hangul jamo, and these are not among them.
    Stripping accents decomposes Hangul, which NFC reverses if it comes last.
    """
    steps = list(steps_of(definition["normalizer"], "normalizers"))
    finds_ordinary_tokens = any(not token["special"] for token in definition["added_tokens"])
    if not steps or any(step["type"] not in ("BertNormalizer", "NFC") for step in steps) or finds_ordinary_tokens:
        return False, ""
    of_bert = [step for step in steps if step["type"] == "BertNormalizer"]
    lowercase = any(step["lowercase"] for step in of_bert)
    strips = [step["lowercase"] if step["strip_accents"] is None else step["strip_accents"] for step in of_bert]
    hangul_stays = not any(strips) or steps[-1]["type"] == "NFC"
    return lowercase, _ASCII + _common_characters() + (_HANGUL if hangul_stays else "")


def splits_han(definition: Definition) -> bool:
    """Whether the tokenizer has BERT's normaliser and this puts spaces around Han characters."""
    steps = steps_of(definition["normalizer"], "normalizers")
    return any(step["type"] == "BertNormalizer" and step["handle_chinese_chars"] for step in steps)


@cache
def _common_characters() -> str:
    """Common letters, numbers, marks and symbols that canonical normalisation (NFC, NFD) leaves unchanged.

    The capital sigma is left out: in Python, unlike in the library, its lower case depends on what follows.
    """
    characters = (chr(point) for first, last in _COMMON for point in range(first, last + 1))
    return "".join(
        character
        for character in characters
        if unicodedata.category(character)[0] in "LNPS"
        and unicodedata.normalize("NFD", character) == character
        and len(character.lower()) == 1
        and character != "\u03a3"
    )
