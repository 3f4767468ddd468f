"""Encodes text whose characters all stand for themselves: `[MASK]` in it is a bracket, a word and a bracket.

Half of the time of encoding goes into normalising. Printable ASCII, common letters, marks and symbols and, where the
text is composed at the end, Hangul syllables come out of BERT's normaliser one by one as they went in, lower case
aside; a text of nothing else skips it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import cache

from tokenizers import Tokenizer

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
        self._lowercase, unchanged = unchanged_characters(backend)
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
    """A tokenizer of its own that takes special tokens in a text for the characters they are made of.

    Args:
        backend: any tokenizer.
        normalized: True leaves its normaliser out, for texts that have been through it.
    """
    definition = json.loads(backend.to_str())
    copy = open_definition(definition | {"normalizer": None} if normalized else definition)
    copy.encode_special_tokens = True
    return copy


def _ids(backend: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def unchanged_characters(backend: Tokenizer) -> tuple[bool, str]:
    """Whether the normaliser lowercases, and the characters that it otherwise leaves alone whatever their neighbours.

    The steps known here touch no neighbours of such characters: BERT's goes one by one, and NFC joins a character only
    to a combining mark or to a conjoining Hangul jamo, neither of which is among them. Stripping accents takes Hangul
    apart, which NFC mends where it comes last.
    """
    definition = json.loads(backend.to_str())
    said = definition["normalizer"] or {}
    steps = said["normalizers"] if said.get("type") == "Sequence" else [said]
    finds_ordinary_tokens = any(not token["special"] for token in definition["added_tokens"])
    if not steps or any(step.get("type") not in ("BertNormalizer", "NFC") for step in steps) or finds_ordinary_tokens:
        return False, ""
    of_bert = [step for step in steps if step["type"] == "BertNormalizer"]
    lowercase = any(step["lowercase"] for step in of_bert)
    strips = [step["lowercase"] if step["strip_accents"] is None else step["strip_accents"] for step in of_bert]
    hangul_stays = not any(strips) or steps[-1]["type"] == "NFC"
    return lowercase, _ASCII + _common_characters() + (_HANGUL if hangul_stays else "")


def splits_han(backend: Tokenizer) -> bool:
    """Whether BERT's normaliser is there and sets spaces around Han characters."""
    said = json.loads(backend.to_str())["normalizer"] or {}
    steps = said["normalizers"] if said.get("type") == "Sequence" else [said]
    return any(step.get("type") == "BertNormalizer" and step["handle_chinese_chars"] for step in steps)


@cache
def _common_characters() -> str:
    """Letters, numbers, marks and symbols of common use that are in one piece under every normalisation to come.

    Left out is the capital sigma, whose lower case depends on what follows, to Python though not to the library.
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
