"""Exact match and F1 against cases worked by hand and the figures of the official scorers."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest

from unmask.errors import InputError
from unmask.tasks.qa.examples import QaExample
from unmask.tasks.qa.metrics import (
    Normalisation,
    QaScore,
    compare,
    normalise_korquad,
    normalise_squad,
    normalise_triviaqa,
)


def example(*golds: str) -> QaExample:
    return QaExample("1", "?", "", None, golds, {}, "x:1")


def prediction(answer: str, probability: float | None = None, best: str | None = None) -> dict[str, Any]:
    told = {} if probability is None else {"no_answer_probability": probability}
    return {"answer": answer, **told, **({} if best is None else {"n_best": [{"answer": best}]})}


@pytest.mark.parametrize(
    ("normalise", "text", "normal"),
    [
        (normalise_squad, "The  Cat's,\tan ANT", "cats ant"),
        (normalise_squad, "theory a the", "theory"),
        (normalise_squad, "U.S.A.", "usa"),
        (normalise_squad, "“the”", "“ ”"),  # punctuation is ASCII's
        (normalise_squad, "각각 A 값", "각각 값"),
        (normalise_korquad, "《값》을", "값 을"),
        (normalise_korquad, "‘The’ (A) 'b'", "the a b"),
        (normalise_korquad, '"1989년", 2월.', "1989년 2월"),
        (normalise_korquad, "1,989", "1989"),
        (normalise_triviaqa, "Stratford-upon-Avon", "stratford upon avon"),
        (normalise_triviaqa, "The_Beatles’  ‘Help!’", "beatles help"),
        (normalise_triviaqa, "O´Neill`s A-Team", "o neill s team"),
        (normalise_triviaqa, "U.S.A.", "u s"),  # the last letter becomes an article, as in the authors' script
        (normalise_triviaqa, "“the”", "“ ”"),
    ],
)
def test_texts_are_normalised_as_the_official_scorers_do(
    normalise: Callable[[str], str], text: str, normal: str
) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize("normalisation", ["squad", "korquad", "triviaqa"])
def test_an_answer_of_a_decomposed_passage_is_right(normalisation: Normalisation) -> None:
    decomposed = unicodedata.normalize("NFD", "서울 café")
    for answer, gold in ((decomposed, "서울 café"), ("서울 café", decomposed)):
        assert compare(answer, (gold,), normalisation) == (1, 1)


def test_triviaqa_is_scored_by_its_own_rule() -> None:
    score = QaScore("triviaqa")
    score.add([example("stratford upon avon")], [prediction("Stratford-upon-Avon")])
    assert score.metrics() == {"f1": 100.0, "exact_match": 100.0}


def test_f1_by_hand() -> None:
    # Two of three words, two of four: precision 2/3, recall 1/2.
    assert compare("a red kite flew", ("red kite of paper",)) == (0.0, pytest.approx(4 / 7))
    assert compare("red red", ("red",)) == (0.0, pytest.approx(2 / 3))
    assert compare("Kite!", ("bird", "the kite")) == (1.0, 1.0)
    assert compare("", ("kite",)) == (0.0, 0.0)
    assert compare("the", ()) == (1.0, 1.0)
    assert compare("kite", ()) == (0.0, 0.0)
    # Characters: 3 of 4 are 3 of 3; blanks do not count.
    assert compare("대한민국", ("대한 민",), "korquad") == (0.0, pytest.approx(6 / 7))


def test_squad1_by_hand() -> None:
    score = QaScore()
    score.add([example("red kite", "kite"), example("blue")], [prediction("a kite"), prediction("blue kite")])
    assert score.num_examples == 2
    assert score.metrics() == {"exact_match": 50.0, "f1": pytest.approx(100 * (1 + 2 / 3) / 2)}


def test_squad2_by_hand() -> None:
    score = QaScore(unanswerable=True)
    score.add([example("red kite")], [prediction("kite", 0.1)])  # F1 2/3
    score.add([example("blue")], [prediction("", 0.6, "blue")])  # would be right
    score.add([example(), example()], [prediction("", 0.7, "grey"), prediction("green", 0.2)])
    # Answered one after another: 2 + 2/3, - 1, + 1, - 1: best with the first alone, or with all up to .6 for EM.
    assert score.metrics() == pytest.approx({
        "exact": 25.0, "f1": 100 * (2 / 3 + 1) / 4, "total": 4,
        "HasAns_exact": 0.0, "HasAns_f1": 100 / 3, "HasAns_total": 2,
        "NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2,
        "best_exact": 50.0, "best_exact_thresh": 0.0, "best_f1": 100 * (2 + 2 / 3) / 4, "best_f1_thresh": 0.1,
    })  # fmt: skip
    # Runs are compared by the first: before the threshold is chosen.
    assert [*score.metrics()][:3] == ["best_f1", "f1", "exact"]
    # Between the questions at .1 and at .2, in scores of the best span minus no answer.
    leads = [math.log(0.9 / 0.1), math.log(0.8 / 0.2)]
    assert score.best_null_threshold() == pytest.approx(sum(leads) / 2)


def test_best_threshold_at_either_end() -> None:
    never = QaScore(unanswerable=True)
    never.add([example(), example()], [prediction("kite", 0.5), prediction("kite", 0.2)])
    assert never.best_null_threshold() == pytest.approx(math.log(4) + 1)
    always = QaScore(unanswerable=True)
    always.add([example("kite"), example("red"), example()], [prediction(x, 0.5) for x in ("kite", "red", "blue")])
    assert always.best_null_threshold() == pytest.approx(-1)  # 2 against 1: all are equally probable
    assert QaScore(unanswerable=True).best_null_threshold() == 0.0


def test_best_threshold_where_all_probabilities_are_one() -> None:
    score = QaScore(unanswerable=True)
    for lead, golds in ((-60.0, ()), (-41.0, ("kite",)), (-40.0, ("kite",))):
        best = {"n_best": [{"answer": "kite", "score": lead}], "null_score": 0.0}
        score.add([example(*golds)], [prediction("", 1.0) | best])
    score.add([example()], [prediction("", 1.0) | {"n_best": [], "null_score": 0.0}])  # a passage without a token
    assert score.best_null_threshold() == -50.5
    assert score.metrics()["best_f1"] == 100.0


def test_without_probabilities_there_is_no_best_threshold() -> None:
    score = QaScore(unanswerable=True)
    score.add([example("kite"), example()], [prediction("kite"), prediction("")])
    assert score.metrics()["exact"] == 100.0
    assert "best_f1" not in score.metrics()


def test_which_names_where_the_task_does_not_say() -> None:
    score = QaScore(unanswerable=None)
    score.add([example("kite")], [prediction("kite")])
    assert set(score.metrics()) == {"exact_match", "f1"}
    score.add([example()], [prediction("kite")])
    assert score.metrics()["HasAns_total"] == 1


def test_unknown_answers_are_passed_over() -> None:
    score = QaScore()
    score.add([QaExample(None, "?", "", None, None, {}, "x:1")], [prediction("kite")])
    assert score.num_examples == 0


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        (["", "", ""], "all 3 questions were given no answer"),
        (["kite", "kite", "kite"], "all 3 answers are 'kite'"),
        (["kite", "kite", ""], None),
    ],
)
def test_models_that_tell_nothing_apart(answers: list[str], fault: str | None) -> None:
    score = QaScore(unanswerable=True)
    score.add([example("kite"), example(), example("blue")], [prediction(answer) for answer in answers])
    assert score.degenerate() == fault


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"answer": None},
        {"answer": "x", "no_answer_probability": 2},
        {"answer": "x", "n_best": [{}]},
        {"answer": "x", "n_best": ["x"]},
    ],
)
def test_predictions_that_are_none(damaged: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"x:1: its prediction (says|has no)"):
        QaScore(unanswerable=True).add([example("kite")], [damaged])
