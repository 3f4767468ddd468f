"""Words of Korean templates: morphemes joined by Kiwi, and the wrong forms that minimal pairs need.

A word (eojeol) is written as morphemes with an operator between each two:

- `책+을` lets Kiwi join them: it chooses the allomorph (`커피+을` is 커피를) and conjugates (`돕/VV+었+다` is 도왔다);
- `책-을` attaches the other allomorph, which is wrong there (책를);
- `돕~어서` attaches the allomorph that a regular stem has (돕아서);
- `작/VA=는` attaches the letters as they are (작는).

`/TAG` is Kiwi's part of speech; without one the first morpheme is a noun, and what follows is a particle after a noun
and an ending after a verb. Endings that begin with a bare consonant are written so: `ㄴ`, `ㄹ`, `ㅂ시다`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

_FIRST_SYLLABLE, _LAST_SYLLABLE = 0xAC00, 0xD7A3
_VOWELS, _FINALS = 21, 28
_FINAL_RIEUL = 8
_BRIGHT_VOWELS = (0, 2, 8)  # ㅏ, ㅑ (only in 얇-, 얕-) and ㅗ, in the order of Unicode's vowels
_FINAL_LETTERS = str.maketrans({"ㄴ": "\u11ab", "ㄹ": "\u11af", "ㅂ": "\u11b8"})

PARTICLES = {
    **dict.fromkeys(("이", "가", "께서"), "JKS"),
    **dict.fromkeys(("을", "를"), "JKO"),
    **dict.fromkeys(("에", "에서", "에게", "께", "으로", "로", "보다", "처럼"), "JKB"),
    **dict.fromkeys(("은", "는", "도", "만", "까지", "부터", "밖에", "이나", "이라도", "마다"), "JX"),
    **dict.fromkeys(("과", "와", "이랑"), "JC"),
    "의": "JKG",
    "아": "JKV",
    "요": "JX",
}
"""The tag of a particle, by its form."""

_ENDINGS = {
    **dict.fromkeys(("었", "았", "겠", "시"), "EP"),
    **dict.fromkeys(("는", "은", "을", "ㄴ", "ㄹ"), "ETM"),
    "기": "ETN",
    **dict.fromkeys(("다", "ㄴ다", "는다", "습니다", "ㅂ니다", "ㅂ시다", "자", "어라", "으십시오", "으세요"), "EF"),
    **dict.fromkeys(("네", "니", "군", "구나", "는구나", "냐", "을까", "지", "은가", "는가", "어요", "을게"), "EF"),
}
"""The tag of an ending, by its form; of any other it is EC, a connective."""

_OPERATOR = re.compile(r"([+~=]|-(?![IR]))")  # VV-I and VV-R are tags: irregular and regular stems
_TAKES_ENDINGS = ("V", "XSV", "XSA", "EP")

# The allomorph after a vowel, by that after a consonant.
_ALLOMORPHS = {"이": "가", "을": "를", "은": "는", "과": "와", "이나": "나", "이랑": "랑", "이라도": "라도"}
_RIEUL_IS_A_VOWEL = {
    "으로": "로",
    "으면": "면",
    "으려고": "려고",
    "으러": "러",
    "으니까": "니까",
    "으면서": "면서",
    "으세요": "세요",
    "으십시오": "십시오",
}
_HARMONY = {"어": "아", "었": "았"}


class Joiner:
    """Joins the morphemes of words with one analyser; a word is joined once.

    Args:
        kiwi: a `kiwipiepy.Kiwi`.
    """

    def __init__(self, kiwi: Any) -> None:
        self._kiwi = kiwi
        self._join_word = cache(self._join)

    def sentence(self, template: str) -> str:
        """The sentence of a template without slots: each of its words, joined."""
        return " ".join(self._join_word(word) for word in template.split())

    def _join(self, word: str) -> str:
        body = word.rstrip(".,?!")
        first, *parts = _OPERATOR.split(body)
        if not parts:
            return word.split("/")[0] + word[len(body) :] if "/" in word else word
        morphemes, surface = [_tagged(first, "NNG")], ""
        for operator, morpheme in zip(parts[::2], parts[1::2], strict=True):
            if operator == "+" and not surface:
                morphemes.append(_tagged(morpheme, _tag(morpheme, morphemes[-1][1])))
            else:
                stem = surface or self._stem(morphemes)
                surface = stem + {"-": other_allomorph, "~": allomorph}.get(operator, _as_is)(stem, morpheme)
        return (surface or self._kiwi.join(morphemes)) + word[len(body) :]

    def _stem(self, morphemes: list[tuple[str, str]]) -> str:
        """What wrong forms are put after: the letters of a stem, or the word so far where it has an ending already."""
        if morphemes[-1][1].startswith(("E", "J")):
            return str(self._kiwi.join(morphemes))
        return "".join(form for form, _ in morphemes)


def allomorph(stem: str, form: str) -> str:
    """The form of a particle or an ending after a regular stem, by rule and without the analyser.

    Args:
        stem: ends in a syllable of Hangul.
        form: as it stands after a consonant, or after a stem whose last vowel is not ㅏ or ㅗ: `이`, `으면`, `어서`;
            one that does not change is returned as it is.
    """
    if form[0] in _HARMONY:
        return _HARMONY[form[0]] + form[1:] if vowel(stem[-1]) in _BRIGHT_VOWELS else form
    after_vowel = _ALLOMORPHS.get(form, _RIEUL_IS_A_VOWEL.get(form, form))
    vowels = (0, _FINAL_RIEUL) if form in _RIEUL_IS_A_VOWEL else (0,)
    return after_vowel if final(stem[-1]) in vowels else form


def other_allomorph(stem: str, form: str) -> str:
    """The allomorph that does not belong after the stem; the arguments are those of `allomorph`."""
    if form[0] in _HARMONY:
        both = (form, _HARMONY[form[0]] + form[1:])
    else:
        both = (form, (_ALLOMORPHS | _RIEUL_IS_A_VOWEL)[form])
    return both[allomorph(stem, form) == both[0]]


def _as_is(stem: str, form: str) -> str:
    return form


def final(syllable: str) -> int:
    """The number of a syllable's final consonant in Unicode's order; 0 where it ends in its vowel."""
    return _index(syllable) % _FINALS


def vowel(syllable: str) -> int:
    """The number of a syllable's vowel in Unicode's order."""
    return _index(syllable) // _FINALS % _VOWELS


def _index(syllable: str) -> int:
    code = ord(syllable)
    if not _FIRST_SYLLABLE <= code <= _LAST_SYLLABLE:
        raise ValueError(f"{syllable!r} is not a syllable of Hangul")
    return code - _FIRST_SYLLABLE


def _tagged(morpheme: str, tag: str) -> tuple[str, str]:
    form, _, named = morpheme.partition("/")
    return (form.translate(_FINAL_LETTERS) if form[0] in "ㄴㄹㅂ" else form), named or tag


def _tag(morpheme: str, before: str) -> str:
    if before.startswith(_TAKES_ENDINGS):
        return _ENDINGS.get(morpheme, "EC")
    if "/" not in morpheme and morpheme not in PARTICLES:
        raise ValueError(f"{morpheme!r} is no particle that is known here, and has no tag")
    return PARTICLES.get(morpheme, "NNG")
