"""What `unmask.tasks.minimal_pairs.comparing` makes of scores that are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from unmask.errors import InputError
from unmask.io.progress import Advance
from unmask.tasks.minimal_pairs.comparing import PairScores, encode_pairs, score_pairs
from unmask.tasks.minimal_pairs.reading import MinimalPair, Paradigm
from unmask.tasks.minimal_pairs.scorers import Sentence, TokenScores


class GivenScores:
    """Sentences such as `words -2.5`, read as their words, with the score that they name."""

    def encode(self, texts: Sequence[str]) -> list[Sentence]:
        for text in texts:
            if text == "long":
                raise InputError(f"{text!r}: too many tokens")
        return [Sentence(text, np.array([ord(letter) for letter in text.split()[0]])) for text in texts]

    def token_scores(self, sentences: Sequence[Sentence], advance: Advance) -> list[TokenScores]:
        advance(len(sentences))
        scores = [float(sentence.text.split()[1]) for sentence in sentences]
        return [TokenScores(np.array([0, 1]), np.array([score - 1, 1])) for score in scores]


RIGHT, WRONG = MinimalPair("good -2", "bad -3"), MinimalPair("good -3", "bad -2")
EQUALLY_LIKELY, ALIKE = MinimalPair("good -2", "bad -2"), MinimalPair("same -2", "same -3")


def of(name: str, term: str, *pairs: MinimalPair) -> Paradigm:
    return Paradigm(name, term, pairs)


def score(paradigms: Sequence[Paradigm], advance: Advance = lambda _: None) -> PairScores:
    scorer = GivenScores()
    return score_pairs(
        scorer, paradigms, encode_pairs(scorer, [pair for each in paradigms for pair in each.pairs]), advance
    )


def test_percentages_count_paradigms_alike() -> None:
    paradigms = [
        of("gender", "agreement", RIGHT, RIGHT, WRONG, RIGHT),
        of("number", "agreement", *[WRONG] * 8, RIGHT, RIGHT),
        of("island", "", RIGHT),
    ]
    found = score(paradigms).figures()
    assert {name: each["accuracy"] for name, each in found["paradigms"].items()} == pytest.approx(
        {"gender": 75, "number": 20, "island": 100}
    )
    assert {name: each["term"] for name, each in found["paradigms"].items()} == {
        "gender": "agreement",
        "number": "agreement",
        "island": "",
    }
    assert found["terms"].keys() == {"agreement"}
    assert found["terms"]["agreement"] == score(paradigms[:2]).figures()["metrics"]
    assert found["terms"]["agreement"]["accuracy"] == pytest.approx((75 + 20) / 2)
    assert found["metrics"]["accuracy"] == pytest.approx((75 + 20 + 100) / 3)
    assert (found["n"], found["alike"]) == (15, 0)


def test_equally_likely_sentences_and_equal_ids_are_wrong() -> None:
    found = score([of("all", "", RIGHT, EQUALLY_LIKELY, ALIKE, EQUALLY_LIKELY)]).figures()
    assert found["metrics"]["accuracy"] == 25
    assert found["alike"] == 1


def test_each_pair_is_told_with_its_scores() -> None:
    of_files = [
        MinimalPair(pair.good, pair.bad, f"a.jsonl:{line}") for line, pair in enumerate((RIGHT, WRONG, ALIKE), 1)
    ]
    scored = score([of("one", "", *of_files[:1]), of("other", "", *of_files[1:])])
    names = ["paradigm", "place", "sentence_good", "sentence_bad", "score_good", "score_bad", "right"]
    assert [list(row) for row in scored.rows()] == [names] * 3
    assert [tuple(row.values()) for row in scored.rows()] == [
        ("one", "a.jsonl:1", "good -2", "bad -3", -2, -3, True),
        ("other", "a.jsonl:2", "good -3", "bad -2", -3, -2, False),
        ("other", "a.jsonl:3", "same -2", "same -3", -2, -3, False),
    ]


def test_pairs_keep_their_paradigm_over_several_rounds_of_scoring() -> None:
    advanced: list[float] = []
    paradigms = [of("right", "", *[RIGHT] * 700), of("wrong", "", *[WRONG] * 900)]
    found = score(paradigms, advanced.append).figures()
    assert [each["accuracy"] for each in found["paradigms"].values()] == [100, 0]
    assert advanced == [500, 500, 500, 100]


def test_sentences_that_cannot_be_scored_are_told_with_their_places_before_any_is_scored() -> None:
    advanced: list[float] = []
    long = [MinimalPair("long", "bad -2", "a.jsonl:701"), MinimalPair("good -2", "long", "b.jsonl:3")]
    with pytest.raises(InputError) as refused:
        score([of("all", "", *[RIGHT] * 700, *long)], advanced.append).figures()
    assert str(refused.value).splitlines() == [
        "a.jsonl:701: 'long': too many tokens",
        "  b.jsonl:3: the same",
        "  2 rows in all cannot be used",
    ]
    assert not advanced


def test_an_interval_is_wilsons() -> None:
    """Its ends are the shares whose distance from the one that was seen is 1.96 of their own deviations."""
    found = score([of("some", "", *[RIGHT] * 300, *[WRONG] * 100)]).figures()["metrics"]
    for end in (found["low"], found["high"]):
        assert abs(75 - end) == pytest.approx(1.96 * (end * (100 - end) / 400) ** 0.5)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_no_interval_claims_certainty(size: int) -> None:
    """Wilson's of n out of n is from n / (n + 1.96^2)."""
    found = score([of("sure", "", *[RIGHT] * size), of("never", "", *[WRONG] * size)]).figures()
    sure, never, mean = found["paradigms"]["sure"], found["paradigms"]["never"], found["metrics"]
    end = 100 * size / (size + 1.96**2)
    assert (sure["low"], sure["high"]) == pytest.approx((end, 100))
    assert (never["low"], never["high"]) == pytest.approx((0, 100 - end))
    assert (mean["low"], mean["high"]) == pytest.approx((50 - (100 - end) / 2, 50 + (100 - end) / 2))


def test_the_interval_of_a_mean_adds_those_of_paradigms_by_squares() -> None:
    """Three of the same: the ends are 1 / sqrt(3) as far from the mean."""
    pairs = [*[RIGHT] * 9, WRONG]
    alone = score([of("a", "", *pairs)]).figures()["metrics"]
    mean = score([of(name, "", *pairs) for name in "abc"]).figures()["metrics"]
    assert [mean["low"] - 90, mean["high"] - 90] == pytest.approx(
        [(alone["low"] - 90) / 3**0.5, (alone["high"] - 90) / 3**0.5]
    )
