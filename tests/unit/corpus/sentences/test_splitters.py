"""Every sentence splitter keeps the promises that `split_sentences` makes."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unmask.corpus.sentences.rules import split_sentences
from unmask.corpus.sentences.splitters import SENTENCE_SPLITTERS
from unmask.errors import SettingsError

Splitter = Callable[[str], list[tuple[int, int]]]
MARKS = st.sampled_from([*".!…ㅋ\n\t\u2028“”() \x00", "...", "\r\n", "  "])
WORDS = st.sampled_from(["나는 간다", "좋았어요", "했음", "라고 말했다", "Stop", "1.", "😀", "é", "중"])
TEXT = st.lists(MARKS | WORDS, max_size=25).map("".join) | st.text()


@pytest.fixture(scope="module")
def loaded() -> dict[str, Splitter]:
    return {name: load() for name, load in SENTENCE_SPLITTERS.items()}


@pytest.fixture(scope="module", params=sorted(SENTENCE_SPLITTERS))
def split(request: pytest.FixtureRequest, loaded: dict[str, Splitter]) -> Splitter:
    return loaded[request.param]


def test_sentences_of_two_lines(split: Splitter) -> None:
    text = " 나는 간다. 너는 온다.\u2028\n\t그는 잔다  \n"
    assert [text[start:end] for start, end in split(text)] == ["나는 간다.", "너는 온다.", "그는 잔다"]


@pytest.mark.parametrize("text", ["", " ", "\n\n", "\u3000\n\t"])
def test_white_space_has_no_sentences(split: Splitter, text: str) -> None:
    assert split(text) == []


@given(text=TEXT)
@example(text="가. \x1c나.\x85 다")
def test_bounds_are_tight_in_order_and_leave_out_white_space_only(split: Splitter, text: str) -> None:
    reached = 0
    for start, end in split(text):
        assert reached <= start < end <= len(text)
        assert not text[reached:start].strip()
        sentence = text[start:end]
        assert sentence == sentence.strip()
        assert len(sentence.splitlines()) == 1
        reached = end
    assert not text[reached:].strip()


@given(text=TEXT)
def test_a_text_has_the_same_bounds_whatever_came_before(split: Splitter, text: str) -> None:
    bounds = split(text)
    split("다른 글이다. 그렇다.")
    assert split(text) == bounds


def test_kiwi_finds_an_end_without_a_mark(loaded: dict[str, Splitter]) -> None:
    text = "정말 재미있게 봤습니다 다음에 또 보고 싶네요"
    assert loaded["kiwi"](text) == [(0, 12), (13, len(text))]


def test_a_line_too_long_for_kiwi_is_split_by_the_rules(loaded: dict[str, Splitter]) -> None:
    text = "짧은 글이다\n" + "나는 간다. " * 40_000
    bounds = loaded["kiwi"](text)
    assert bounds[0] == (0, 6)
    assert bounds == split_sentences(text)


def test_rules_are_the_built_in_ones(loaded: dict[str, Splitter]) -> None:
    assert loaded["rules"] is split_sentences


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kiwipiepy", None)
    assert SENTENCE_SPLITTERS["rules"]()("나는 간다.") == [(0, 6)]
    with pytest.raises(SettingsError, match=r"kiwipiepy.*pip install 'unmask\[ko\]'"):
        SENTENCE_SPLITTERS["kiwi"]()
