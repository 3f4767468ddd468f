"""The Unicode script of letters (Latin, Hangul, Han ...), which helps to distinguish the languages of a text.

Scripts are those of Unicode Standard Annex 24, as `fontTools` carries them.
"""

from __future__ import annotations

import string
import unicodedata
from collections import Counter
from functools import lru_cache

_ASCII = bytes(range(128))
_ASCII_BUT_LETTERS = bytes(sorted(set(_ASCII) - set(string.ascii_letters.encode())))


def letters_by_script(text: str) -> Counter[str]:
    """How many letters of each script a text has, under Unicode's long names: "Latin", "Hangul", "Han" ...

    Letters are the characters of categories L*: no marks, digits, punctuation or symbols. Letters that several scripts
    share, such as the mark for long vowels of the two kana, are "Common".
    """
    utf8 = text.encode("utf-8")
    not_ascii = utf8.translate(None, _ASCII)
    num_ascii_letters = len(utf8.translate(None, _ASCII_BUT_LETTERS)) - len(not_ascii)
    letters = Counter({"Latin": num_ascii_letters} if num_ascii_letters else {})
    for character, count in Counter(not_ascii.decode("utf-8")).items():
        if character.isalpha():
            letters[script_of(character)] += count
    return letters


@lru_cache(maxsize=1 << 16)
def script_of(character: str) -> str:
    """The long name of a character's script; "Common" or "Inherited" if it has none of its own."""
    from fontTools.unicodedata import script, script_name

    name: str = script_name(script(character))
    return name


def script_names() -> list[str]:
    """The long names of all scripts."""
    from fontTools.unicodedata import Scripts, script_name

    return sorted(script_name(code) for code in Scripts.NAMES)


def is_mark(character: str) -> bool:
    """Whether a character belongs to the one before it: combining marks, medial and final Hangul jamo."""
    return (
        unicodedata.category(character)[0] == "M"
        or "\u1160" <= character <= "\u11ff"
        or "\ud7b0" <= character <= "\ud7ff"
    )
