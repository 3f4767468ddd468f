"""Abstaining, and choosing what to label next."""

from __future__ import annotations

from typing import Any

import pytest

from unmask.errors import SettingsError
from unmask.inference.abstaining import Abstaining, certainty
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import open_task

CLASSIFICATION = open_task(TaskSettings(name="classification"), ColumnSettings())
CHOICE = open_task(TaskSettings(name="choice"), ColumnSettings())


def label(probability: float, **more: Any) -> dict[str, Any]:
    return {"label": "a", "score": probability, "probabilities": {"a": probability, "b": 1 - probability}, **more}


def test_certainty_is_that_of_the_decision() -> None:
    assert certainty(label(0.7)) == 0.7
    assert certainty({"choice": 1, "probabilities": [0.2, 0.5, 0.3]}) == 0.5
    assert certainty({"labels": ["a"], "probabilities": {"a": 0.9, "b": 0.4, "c": 0.01}}) == 0.6
    several = {"labels": [], "probabilities": {"a": 0.3, "b": 0.1}}
    assert certainty(several, {"a": 0.32}) == pytest.approx(0.53125), "just under its threshold"
    assert certainty(several, {"a": 0.3}) == 0.5
    assert certainty({"labels": ["a"], "probabilities": {"a": 1.0}}, {"a": 1.0}) == 1
    with_threshold = TaskSettings(name="classification", multi_label=True, thresholds={"a": 0.32})
    [kept] = Abstaining(abstain_below=0.6)([several], open_task(with_threshold, ColumnSettings()))
    assert (kept["abstained"], kept["labels"]) == (True, None)
    assert kept["certainty"] == pytest.approx(0.53125), "what is compared is told"


def test_below_the_threshold_there_is_no_decision() -> None:
    told = list(Abstaining(abstain_below=0.8)([label(0.79), label(0.8)], CLASSIFICATION))
    assert [(one["label"], one["abstained"], one["score"]) for one in told] == [(None, True, 0.79), ("a", False, 0.8)]
    [choice] = Abstaining(abstain_below=0.8)([{"choice": 0, "probabilities": [0.5, 0.5]}], CHOICE)
    assert (choice["choice"], choice["abstained"], "label" in choice) == (None, True, False)
    assert list(Abstaining()([label(0.5)], CLASSIFICATION)) == [label(0.5)]


def test_how_often_it_abstained_is_said(caplog: pytest.LogCaptureFixture) -> None:
    list(Abstaining(abstain_below=0.8)([label(0.9), label(0.7), label(0.6)], CLASSIFICATION))
    assert "the model abstained on 2 of 3 inputs, being under 0.8 certain" in caplog.text
    caplog.clear()
    list(Abstaining(abstain_below=0.5)([label(0.9)], CLASSIFICATION))
    assert not caplog.text


def test_the_least_certain_come_first_and_of_equals_the_earlier() -> None:
    given = [label(each, number=number) for number, each in enumerate([0.9, 0.6, 0.6, 0.55, 0.99])]
    kept = list(Abstaining(most_uncertain=3)(given, CLASSIFICATION))
    assert [(one["number"], one["certainty"]) for one in kept] == [(3, 0.55), (1, 0.6), (2, 0.6)]
    assert len(list(Abstaining(most_uncertain=9)(given, CLASSIFICATION))) == 5


def test_in_a_table_to_label_next_no_guess_stands_under_a_column_of_labels() -> None:
    chosen, given = Abstaining(most_uncertain=1), [label(0.6, input={"text": "it"})]
    [row] = chosen.for_table(given, CLASSIFICATION)
    assert list(row.items())[:2] == [("predicted", "a"), ("score", 0.6)]
    assert row["input"] == {"text": "it", "label": ""}
    [row] = chosen.for_table([label(0.6, input={"text": "it", "label": "b"})], CLASSIFICATION)
    assert row["input"] == {"text": "it", "label": "b"}, "which somebody has filled in"
    named = open_task(CLASSIFICATION.settings, ColumnSettings(text="review", label="stars"), lenient=True)
    given = [label(0.6, input={name: "it"}) for name in ("review", "text")]
    rows = Abstaining(most_uncertain=2).for_table(given, named)
    assert [set(row["input"]) for row in rows] == [{"review", "stars"}, {"text", "label"}]
    named = open_task(CLASSIFICATION.settings, ColumnSettings(text="text", label="score"), lenient=True)
    [row] = chosen.for_table([label(0.6, input={"text": "it"})], named)
    assert (row["predicted.score"], "score" in row, row["input"]) == (0.6, False, {"text": "it", "score": ""})
    several = {"labels": ["a"], "probabilities": {"a": 0.9}, "input": {"text": "it"}}
    task = open_task(TaskSettings(name="classification", multi_label=True), ColumnSettings())
    [row] = chosen.for_table([several], task)
    assert (row["predicted"], row["input"]) == (["a"], {"text": "it"}), "where an empty cell would be an answer"
    choice = {"choice": 0, "probabilities": [0.5, 0.5], "input": {"context": "it"}}
    [row] = chosen.for_table([choice], CHOICE)
    assert (row["predicted"], row["input"], "choice" in row) == (0, {"context": "it"}, False)
    assert list(Abstaining().for_table(given, CLASSIFICATION)) == given


def test_what_does_not_apply_is_refused() -> None:
    for wrong in ({"abstain_below": 0.0}, {"abstain_below": 1.5}, {"most_uncertain": 0}):
        with pytest.raises(SettingsError, match="expected"):
            Abstaining(**wrong)
    task = open_task(TaskSettings(name="stsb"), ColumnSettings())
    for given, option in ({"abstain_below": 0.5}, "--abstain-below"), ({"most_uncertain": 3}, "--most-uncertain"):
        with pytest.raises(SettingsError, match=f"{option} is for labels and choices, and the model's task is stsb"):
            Abstaining(**given).check(task)
    Abstaining().check(task)
