"""Which characters a vocabulary keeps: the most frequent ones, and more of them if a script has thousands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from unmask.errors import TooLittleTextError

if TYPE_CHECKING:
    from unmask.tokenization.settings import TokenizerSettings

_LATIN_ALPHABET_SIZE = 1000
_HANGUL_OR_HAN_ALPHABET_SIZE = 6000
_HANGUL_OR_HAN_SHARE = 0.01
"""Least share of the characters at which Hangul or Han counts as present: an English corpus has a few of both."""
_HANGUL_AND_HAN = (
    (0x1100, 0x11FF),  # Hangul jamo
    (0x3130, 0x318F),  # Hangul compatibility jamo
    (0x3400, 0x4DBF),  # Han, extension A
    (0x4E00, 0x9FFF),  # Han
    (0xAC00, 0xD7A3),  # Hangul syllables
    (0xF900, 0xFAFF),  # Han, compatibility
    (0x20000, 0x323AF),  # Han, later extensions
)


def count_characters(words: Mapping[str, int]) -> Counter[str]:
    """How often each character occurs in words with counts."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    return characters


def choose_alphabet(characters: Counter[str], settings: TokenizerSettings) -> list[str]:
    """The most frequent characters, ascending.

    Raises:
        InputError: no character is frequent enough.
    """
    size = settings.alphabet_size
    if size is None:
        east_asian = sum(count for character, count in characters.items() if _is_hangul_or_han(character))
        present = east_asian >= _HANGUL_OR_HAN_SHARE * characters.total()
        size = _HANGUL_OR_HAN_ALPHABET_SIZE if present else _LATIN_ALPHABET_SIZE
    frequent = [(-count, character) for character, count in characters.items() if count >= settings.min_character_count]
    if not frequent:
        raise TooLittleTextError(
            f"no text to train on: no character is seen {settings.min_character_count} times; "
            "give more text, or set tokenizer.min_character_count lower"
        )
    return sorted(character for _, character in sorted(frequent)[:size])


def _is_hangul_or_han(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in _HANGUL_AND_HAN)
