"""Answers found in their passage: at their offset, elsewhere, or spelt otherwise."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.tasks.qa.answer_places import FIRST_TAKEN, MOVED, RESPELT, AnswerPlace, find_answer

PASSAGE = "Mina saw a red kite. Later a blue kite flew by."


@pytest.mark.parametrize(
    ("text", "start", "place"),
    [
        ("a red kite", 9, AnswerPlace(9, 19)),
        ("kite", 34, AnswerPlace(34, 38)),
        ("a red kite", 0, AnswerPlace(9, 19, MOVED)),  # there once: wherever the offset points
        ("a red kite", -5, AnswerPlace(9, 19, MOVED)),
        ("kite", 36, AnswerPlace(34, 38, MOVED)),  # there twice: the nearer one, if it is near
        ("kite", 300, None),
        ("kite", 24, AnswerPlace(15, 19, MOVED)),  # 9 characters away against 10
        ("a red kite", None, AnswerPlace(9, 19)),
        ("kite", None, AnswerPlace(15, 19, FIRST_TAKEN)),
        ("a green kite", 9, None),
        (" a red  kite\n", 9, AnswerPlace(9, 19, RESPELT)),
        ("a\u200bred", 9, None),  # a letter's breadth, but no blank
        ("a \u200bred\ufeff kite", 9, AnswerPlace(9, 19, RESPELT)),
        ("a\u00a0red kite", 9, AnswerPlace(9, 19, RESPELT)),
        ("\u200b", 9, None),
    ],
)
def test_places(text: str, start: int | None, place: AnswerPlace | None) -> None:
    assert find_answer(PASSAGE, text, start) == place


def test_two_that_are_equally_near_are_not_told_apart() -> None:
    assert find_answer("a kite, a kite", "kite", 6) is None
    assert find_answer("a kite, a kite", "kite", 5) == AnswerPlace(2, 6, MOVED)
    assert find_answer("kite kite", "kite", 0) == AnswerPlace(0, 4)
    assert find_answer("kitee kite", "kite", 3) is None


@pytest.mark.parametrize("text", ["값을 각각", "café crème", "각"])
def test_composed_and_decomposed(text: str) -> None:
    decomposed = unicodedata.normalize("NFD", text)
    assert decomposed != text
    found = find_answer(f"그 {text}.", decomposed, 2)
    assert found == AnswerPlace(2, 2 + len(text), RESPELT)
    found = find_answer(f"그 {decomposed}.", text, 2)
    assert found == AnswerPlace(2, 2 + len(decomposed), RESPELT)


def test_no_character_is_cut() -> None:
    assert find_answer("각자", "\u1100\u1161", 0) is None  # 가 is no part of 각
    assert find_answer("cafe\u0301 x", "é", None) == AnswerPlace(3, 5, RESPELT)
    assert find_answer("x e\u0301", "e ", None) is None


@given(
    passage=st.text(st.sampled_from("ab é\u0301각\u200b\u00a0\n"), min_size=1, max_size=20),
    cut=st.tuples(st.integers(0, 19), st.integers(1, 20)),
    offset=st.integers(-3, 25) | st.none(),
)
def test_whatever_is_in_the_passage_is_found_or_several_are(
    passage: str, cut: tuple[int, int], offset: int | None
) -> None:
    text = passage[min(cut) : max(cut)]
    found = find_answer(passage, text, offset)
    if found is not None and found.repaired != RESPELT:
        assert passage[found.start : found.end] == text
    elif found is None and text:
        assert sum(passage.startswith(text, at) for at in range(len(passage))) > 1
