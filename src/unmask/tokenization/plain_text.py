"""Encodes text whose characters all stand for themselves: `[MASK]` in it is a bracket, a word and a bracket.

Half of the time of encoding goes into normalising. Printable ASCII and, where the text is composed at the end, Hangul
syllables and common quotation marks and dashes come out of BERT's normaliser one by one as they went in, lower case
aside; a text of nothing else skips it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.normalizers import Sequence as NormalizerSequence

_ASCII = "".join(map(chr, range(0x20, 0x7F)))
_HANGUL_AND_MARKS = "".join(
    chr(point) for points in (range(0xAC00, 0xD7A4), range(0x2010, 0x2028), range(0x3008, 0x3012)) for point in points
)


class PlainTextEncoder:
    """Encodes texts without looking for special tokens in them, and without adding any."""

    def __init__(self, backend: Tokenizer) -> None:
        """Makes its own copy of `backend`, which may be any tokenizer; only BERT's normaliser is ever skipped."""
        self._full = _copy(backend)
        self._lowercase, unchanged = unchanged_characters(backend)
        self._is_normal = re.compile(f"[{re.escape(unchanged)}]*").fullmatch if unchanged else None
        self._short = _copy(backend)
        self._short.normalizer = NormalizerSequence([])

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


def _copy(backend: Tokenizer) -> Tokenizer:
    copy = Tokenizer.from_str(backend.to_str())
    copy.encode_special_tokens = True
    return copy


def _ids(backend: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def unchanged_characters(backend: Tokenizer) -> tuple[bool, str]:
    """Whether the normaliser lowercases, and the characters that it otherwise leaves alone whatever their neighbours.

    The steps known here touch no neighbours of such characters: BERT's goes one by one, and NFC joins a character only
    to a combining mark or to a Hangul jamo, neither of which is among them. That each by itself stays is tried out.
    """
    normalizer = backend.normalizer
    said = json.loads(backend.to_str())["normalizer"] or {}
    steps = said["normalizers"] if said.get("type") == "Sequence" else [said]
    known = all(step.get("type") in ("BertNormalizer", "NFC") for step in steps)
    finds_ordinary_tokens = any(not token.special for token in backend.get_added_tokens_decoder().values())
    if normalizer is None or not known or finds_ordinary_tokens:
        return False, ""
    lowercase = normalizer.normalize_str("A") == "a"
    sets = [_ASCII, _HANGUL_AND_MARKS]
    unchanged = [each for each in sets if normalizer.normalize_str(each) == (each.lower() if lowercase else each)]
    return lowercase, "".join(unchanged)
