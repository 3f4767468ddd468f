"""What cleaning does to one document: which characters and lines go, what is booked, which documents are dropped."""

from __future__ import annotations

import re
import sys
import time
import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.corpus.cleaning.boilerplate import RULES, is_boilerplate
from unmask.corpus.cleaning.cleaning import check_scripts, clean, unusual_characters
from unmask.corpus.cleaning.draft import Draft
from unmask.corpus.settings import CleaningSettings
from unmask.errors import SettingsError

MARKS = "a\r\n\x00\x85\u2028\xad\u200b\u200c\u200d\ufeff\u0301\u0958\u2126ᄀ가\u11a8ക\u0d4d👩 "
TRICKY = st.text(st.characters(codec="utf-8") | st.sampled_from(MARKS))


def cleaned(text: str, settings: CleaningSettings | None = None) -> Draft:
    size = len(text.encode("utf-8"))
    draft = Draft(text, "somewhere", size, size)
    clean(draft, settings or CleaningSettings())
    return draft


def removed(draft: Draft) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for what, count, _ in draft.removed:
        totals[what] += count
    return totals


# -------------------------------------------------------------------------------------------------------- characters


@pytest.mark.parametrize(
    ("text", "expected", "booked"),
    [
        ("plain\ttext\n", "plain\ttext\n", {}),
        ("a\x00b\x07c\x7fd\x9be", "abcde", {"control characters": 4}),
        ("a\r\nb\rc\x0cd\x0be\x85f\u2028g\u2029h\ni", "a\nb\nc\nd\ne\nf\ng\nh\ni", {"line breaks made newlines": 7}),
        ("\ufeffze\u200bro\u2060 wi\u00addth\u200e", "zero width", {"zero-width characters": 5}),
        ("e\u0301", "é", {"documents composed (NFC)": 1}),
        ("e\u200b\u0301", "é", {"zero-width characters": 1, "documents composed (NFC)": 1}),
        ("각\u1100\u1161", "각가", {"documents composed (NFC)": 1}),
        ("\u0958", "\u0915\u093c", {"documents composed (NFC)": 1}),  # NFC makes it longer
        ("می\u200cخواهم", "می\u200cخواهم", {}),  # Persian: the joiner parts the letters
        ("ക\u200d ക്\u200d", "ക\u200d ക്\u200d", {}),  # Malayalam: also at the end of a word
        ("👩\u200d👩\u200d👧 ❤️\u200d🔥", "👩\u200d👩\u200d👧 ❤️\u200d🔥", {}),
        ("\u200dla\u200ctin 한\u200d글 👩\u200d\u200d", "latin 한글 👩\u200d", {"zero-width characters": 4}),
        ("\u2126\u200d", "Ω", {"zero-width characters": 1, "documents composed (NFC)": 1}),  # the ohm sign is an omega
    ],
)
def test_characters(text: str, expected: str, booked: dict[str, int]) -> None:
    draft = cleaned(text)
    assert draft.text == expected
    assert removed(draft) == booked
    assert draft.dropped is None


@given(TRICKY)
def test_cleaned_text_is_normalised_and_stays_as_it_is(text: str) -> None:
    once = cleaned(text).text
    again = cleaned(once)
    assert unicodedata.is_normalized("NFC", once)
    assert (again.text, again.removed) == (once, [])
    assert all(character in "\t\n" or unicodedata.category(character) != "Cc" for character in once)
    assert not set(once) & set("\u2028\u2029\u200b\u2060\ufeff\u00ad")


@given(TRICKY, st.booleans(), st.booleans(), st.booleans())
def test_bytes_are_kept_account_of_by_every_step(text: str, nfc: bool, control: bool, zero_width: bool) -> None:
    settings = CleaningSettings(nfc=nfc, control_characters=control, zero_width_characters=zero_width)
    draft = cleaned(text, settings)
    assert draft.utf8_bytes == len(draft.text.encode("utf-8"))
    assert draft.utf8_bytes == draft.bytes_read - sum(num_bytes for _, _, num_bytes in draft.removed)


def test_marks_without_end_take_no_time() -> None:
    begin = time.process_time()
    below, above = "\u0316", "\u0301"
    assert cleaned("e" + (below + above) * 20_000).text == "é" + below * 20_000 + above * 19_999
    assert time.process_time() - begin < 1


def test_steps_can_be_switched_off() -> None:
    text = "e\u0301\r\n\x00\u200b"
    off = CleaningSettings(nfc=False, control_characters=False, zero_width_characters=False)
    assert cleaned(text, off).text == text
    assert cleaned(text, off.model_copy(update={"nfc": True})).text == "é\r\n\x00\u200b"
    assert cleaned(text, off.model_copy(update={"control_characters": True})).text == "e\u0301\n\u200b"
    assert cleaned(text, off.model_copy(update={"zero_width_characters": True})).text == "e\u0301\r\n\x00"


def test_no_usual_character_concerns_any_step() -> None:
    """The scan that spares nearly all text: what it lets pass is not removed, and neither is nor takes a mark."""
    every = "".join(chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF)
    usual = set(every) - unusual_characters(every)
    assert set("aé한漢カяω\t\n“”—…€👩") <= usual
    text = "".join(sorted(usual))
    assert cleaned(text, CleaningSettings(nfc=False)).text == text
    second_of_pairs = set()
    for character in every:
        parts = unicodedata.decomposition(character).split()
        if parts and not parts[0].startswith("<"):
            second_of_pairs.update(chr(int(part, 16)) for part in parts[1:])
    hangul_vowels_and_finals = set(map(chr, [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]))
    assert not usual & (second_of_pairs | hangul_vowels_and_finals)
    assert not [c for c in usual if unicodedata.combining(c) or unicodedata.normalize("NFC", c) != c]


# ------------------------------------------------------------------------------------------------------------- lines

BOILERPLATE = [
    "This site uses cookies to offer you a better experience.",
    "By continuing to browse, you agree to our use of cookies.",
    "Accept all cookies",
    "© 2019 Example Media Ltd.",
    "Copyright (c) 2004, The Example Company",
    "Copyright 2011 Example. All Rights Reserved.",
    "무단 전재 및 재배포 금지",
    "<저작권자 ⓒ 보기신문, 무단 전재 및 재배포 금지>",
    "Click here to see the gallery",
    "Read more »",
    "더 보기",
    "Home | About us | Contact",
    "Home > News > World",
    "홈 > 뉴스 > 사회",
    "로그인 | 회원가입 | 고객센터",
    "Skip to main content",
    "« Previous post",
    "본문 바로가기",
    "Share this on Facebook",
    "Follow us on Twitter",
    "페이스북으로 공유하기",
    "Subscribe to our weekly newsletter",
    "Enter your email address",
    "구독하기",
    "Please enable JavaScript to view the comments.",
    "JavaScript is disabled in your browser.",
    "이 페이지를 보려면 자바스크립트를 활성화해 주세요.",
    "- 12 -",
    "Page 3 of 40",
    "[7]",
    "12쪽",
    "* * *",
    "—————",
    "홍길동 기자 gildong@example.com",
    "▶ 관련기사: 어제의 일",
    "기사입력 2020-03-01 09:30 최종수정 2020-03-01 10:00",
    "[사진=보기신문]",
]
TEXT = [
    "",
    "A cookie is a small piece of data that a website stores on the computer of the person who visits it.",
    "We baked cookies all afternoon.",
    "The phrase “All rights reserved” originated in the Buenos Aires Convention of 1910.",
    "Copyright was first given by law in 1710.",
    "He would click here and there with his tongue.",
    "Home is where the heart is.",
    "x > y > z holds whenever x is the largest.",
    "News travelled slowly.",
    "They share this house with two dogs.",
    "You can follow me if you like.",
    "Follow the river to the bridge.",
    "She subscribed to two newspapers.",
    "JavaScript is a language for web pages.",
    "자바스크립트를 사용하여 캔버스를 그릴 수 있다:",
    "1984",
    "Chapter 12",
    "12 men were there.",
    "“Yes.”",
    "네.",
    "홍길동 기자는 그날 부산에 있었다.",
    "무단 전재를 금지하는 법은 1957년에 만들어졌고, 그 뒤로 여러 번 고쳐졌다.",
    "▶ 버튼을 누르면 다음 곡으로 넘어간다.",
    "입력 값이 2020보다 크면 멈춘다.",
    "사진은 1900년 무렵에 찍은 것이다.",
]


@pytest.mark.parametrize("line", BOILERPLATE)
def test_furniture_is_found(line: str) -> None:
    assert is_boilerplate(line)
    assert is_boilerplate(f"  {line.upper()} ")


@pytest.mark.parametrize("line", TEXT)
def test_text_is_left_alone(line: str) -> None:
    assert not is_boilerplate(line)


def test_every_rule_has_an_example() -> None:
    for name, expressions in RULES.items():
        assert any(re.fullmatch("|".join(expressions), line, re.IGNORECASE) for line in BOILERPLATE), name


def test_a_long_line_is_never_furniture() -> None:
    assert is_boilerplate("Copyright 2011 ".ljust(200, "x"))
    assert not is_boilerplate("Copyright 2011 ".ljust(201, "x"))


def test_boilerplate_lines_go_and_are_booked() -> None:
    on = CleaningSettings(boilerplate_lines=True)
    draft = cleaned("구독하기\nA first line.\n\n12\nA second line.\n© 2019 Someone", on)
    assert draft.text == "A first line.\n\nA second line."
    assert draft.removed == [("boilerplate lines", 3, 13 + 3 + 16)]  # a break with each; Hangul and © count as bytes
    assert cleaned("One.\nTwo.\n구독하기\nThree.", on).removed == [("boilerplate lines", 1, 13)]
    assert cleaned("A first line.\n12").text == "A first line.\n12"
    assert cleaned("12\n\n구독하기", on).dropped == "nothing left"


# --------------------------------------------------------------------------------------------------- whole documents


@pytest.mark.parametrize("text", ["", " \n\t", "\u200b\x00", "\u3000"])
def test_documents_without_text_are_empty(text: str) -> None:
    assert cleaned(text).dropped == "empty"
    assert cleaned(text, CleaningSettings(min_characters=5)).dropped == "empty"


def test_short_documents_are_dropped() -> None:
    settings = CleaningSettings(min_characters=4)
    assert cleaned("한국어.", settings).dropped is None
    assert cleaned("  한국어   \n", settings).dropped == "too short"


def test_documents_need_their_share_of_one_of_the_scripts() -> None:
    settings = CleaningSettings(min_script_share={"Hangul": 0.5, "Han": 0.9})
    assert cleaned("한글 ab", settings).dropped is None
    assert cleaned("한글 abc", settings).dropped == "too little of Hangul or Han"
    assert cleaned("漢字漢字漢字漢字漢字a", settings).dropped is None
    assert cleaned("2020-01-01", settings).dropped == "too little of Hangul or Han"
    assert cleaned("abc", settings.model_copy(update={"min_characters": 9})).dropped == "too short"


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"Korean": 0.5}, "there is no script 'Korean': expected Unicode's name, such as Latin, Hangul, Han"),
        ({"Latin": 50.0}, "Latin: 50.0 is no share: expected a number from 0 to 1"),
    ],
)
def test_a_wrong_script_or_share_is_refused(shares: dict[str, float], message: str) -> None:
    with pytest.raises(SettingsError, match="min_script_share") as error:
        check_scripts(CleaningSettings(min_script_share=shares))
    assert message in str(error.value)
