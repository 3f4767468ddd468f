"""Warns of a vocabulary that takes away what a language needs.

BERT strips accents by stripping the marks of all scripts: vowels of Hindi, tones of Thai, those that make て で.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

from unmask.io.encodings import normalized

logger = logging.getLogger("unmask")

_WARNED_SHARE = 0.01
"""Of the letters: English and Korean text have far fewer with marks."""

# Those beyond U+FFFF, of scripts that are hardly written today, would make the expression ten times as slow.
_MARKS = "".join(character for character in map(chr, range(0x300, 0x10000)) if unicodedata.category(character) == "Mn")
_MARKED_LETTER = re.compile(rf"[^\W\d_][{_MARKS}]+")


class LostMarks:
    """Counts the letters that lose their marks."""

    def __init__(self) -> None:
        self._letters: Counter[str] = Counter()

    def see(self, text: str, words: Iterable[str], count: int) -> None:
        """A piece of text, the words that the normaliser makes of it, and how often the piece occurs."""
        if text.isascii() or "".join(words).lower() == text.lower():
            return
        for letter in _MARKED_LETTER.findall(normalized("NFD", text)):
            self._letters[letter] += count

    def warn(self, num_letters: int, or_else: str) -> None:
        """Warns if they are more than a few of `num_letters`; `or_else` ends the advice."""
        share = self._letters.total() / max(1, num_letters)
        if share <= _WARNED_SHARE:
            return
        ((letter, _),) = self._letters.most_common(1)
        logger.warning(
            "%.0f%% of the letters lose their marks in this vocabulary, as in BERT's uncased one: %r becomes %r. "
            "To keep them, set tokenizer.strip_accents=false%s",
            100 * share,
            unicodedata.normalize("NFC", letter),
            letter[0],
            or_else,
        )
