"""Letters by script: counted one by one against Unicode, and in text of several languages."""

from __future__ import annotations

import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.corpus.cleaning.scripts import letters_by_script, script_names, script_of


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("", {}),
        ("12 + 3 = 15! \t\n", {}),
        ("naïve Café", {"Latin": 9}),
        ("한국어 (Korean) 漢字", {"Hangul": 3, "Latin": 6, "Han": 2}),
        ("ㄱ\u1100가", {"Hangul": 3}),
        ("Ωμέγα слово", {"Greek": 5, "Cyrillic": 5}),
        ("ひらがなカタカナー", {"Hiragana": 4, "Katakana": 4, "Common": 1}),  # the long vowel mark is of both kana
        ("e\u0301 हिन्दी", {"Latin": 1, "Devanagari": 3}),  # marks are no letters
        ("𝒙 𐍈 👩", {"Common": 1, "Gothic": 1}),
    ],
)
def test_letters_are_counted_by_script(text: str, letters: dict[str, int]) -> None:
    assert letters_by_script(text) == letters


@given(st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("aZ0 가漢é"))))
def test_every_letter_is_counted_once_and_nothing_else(text: str) -> None:
    expected = Counter(script_of(character) for character in text if unicodedata.category(character).startswith("L"))
    assert letters_by_script(text) == expected


def test_every_script_of_a_letter_has_a_name_in_the_list() -> None:
    names = script_names()
    assert {"Latin", "Hangul", "Han", "Cyrillic", "Common"} <= set(names)
    assert {script_of(chr(code)) for code in range(0, 0x30000, 7) if chr(code).isalpha()} <= set(names)
