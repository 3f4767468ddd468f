"""Unicode's normal forms, in time that grows with the length of the text."""

from __future__ import annotations

import sys
import time
import unicodedata
from functools import cache
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.io.encodings import normalized


@cache
def changed() -> list[str]:
    """Marks, and what is made of letters and marks."""
    characters = map(chr, range(sys.maxunicode + 1))
    return [each for each in characters if unicodedata.combining(each) or unicodedata.normalize("NFD", each) != each]


@given(
    text=st.text(
        st.deferred(lambda: st.sampled_from(changed()))
        | st.sampled_from("aeUग\u1100\u1161\u0f71\u0f73\u0f75\u0f81\u0344")
    )
    | st.lists(
        st.tuples(st.text(max_size=3), st.text("\u0301\u0316\u0f73\u0344\u093c\U0001d165"), st.integers(1, 80))
    ).map(lambda runs: "".join(letters + marks * times for letters, marks, times in runs)),
    form=st.sampled_from(["NFC", "NFD"]),
)
def test_it_is_what_python_makes(text: str, form: Literal["NFC", "NFD"]) -> None:
    assert normalized(form, text) == unicodedata.normalize(form, text)
    assert normalized(form, "ab" * 20 + text * 5) == unicodedata.normalize(form, "ab" * 20 + text * 5)


@pytest.mark.parametrize("marks", ["\u0301\u0316", "\u0f73", "\u0f81\u0344", "\u0f72\u0f71"])
def test_marks_without_end_take_no_time(marks: str) -> None:
    begin = time.process_time()
    text = normalized("NFC", f"a{marks * 40_000}")
    assert time.process_time() - begin < 2
    assert sorted(map(unicodedata.combining, text)) == [*map(unicodedata.combining, text)]


def test_every_character_that_is_marks_has_their_class() -> None:
    hidden = [each for each in changed() if unicodedata.combining(unicodedata.normalize("NFD", each)[0])]
    assert all(unicodedata.combining(each) or each in "\u0f73\u0f75\u0f81" for each in hidden)
