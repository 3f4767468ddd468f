"""Files of predictions, scored without a model: absent labels, the label that F1 is of, and many labels an example."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as reference

from support.files import write, write_rows
from support.tasks import new_task
from unmask.errors import InputError, SettingsError
from unmask.inference.prediction_scoring import evaluate_predictions, score_official
from unmask.tasks.settings import ColumnSettings


def said(label: str, names: list[str]) -> dict[str, Any]:
    """A prediction as `predict` writes it, with its probabilities in the order of `names`."""
    return {"label": label, "probabilities": {name: 0.6 if name == label else 0.2 for name in names}}


# ---- Absent labels


def test_an_example_that_no_label_applies_to_counts(tmp_path: Path) -> None:
    """Scikit-learn, on all rows: half of them have the empty text that means no label."""
    names = ["good", "long", "short"]
    generator = np.random.default_rng(5)
    true, predicted = generator.random((2, 40, 3)) < 0.3
    assert 8 < (~true.any(1)).sum() < 32
    cells = [",".join(np.array(names)[row]) for row in true]
    data = write(tmp_path / "dev.csv", "text,label\n" + "".join(f'a,"{cell}"\n' for cell in cells))
    chances = dict.fromkeys(names, 0.5)
    said_of = [{"labels": np.array(names)[row].tolist(), "probabilities": chances} for row in predicted]
    path = write_rows(tmp_path / "said.jsonl", *said_of)
    result = evaluate_predictions(path, data)
    assert result["n"] == 40
    assert result["metrics"] == pytest.approx(
        {
            "f1_micro": reference.f1_score(true, predicted, average="micro"),
            "f1_macro": reference.f1_score(true, predicted, average="macro"),
            "accuracy": reference.accuracy_score(true, predicted),
        }
    )


def test_many_labels_that_are_null_are_refused(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "dev.jsonl", {"text": "a", "label": ["x"]}, {"text": "a", "label": None})
    path = write_rows(tmp_path / "said.jsonl", *[{"labels": ["x"], "probabilities": {"x": 0.9, "y": 0.1}}] * 2)
    with pytest.raises(InputError, match=r"dev\.jsonl:2: the column 'label' holds null"):
        evaluate_predictions(path, data)


@pytest.mark.parametrize(
    ("task", "prediction", "right", "wrong", "told"),
    [
        ("classification", said("pos", ["neg", "pos"]), "pos", "", "is empty: fill it in"),
        ("classification", {"label": "pos"}, "pos", "", "is empty: fill it in"),
        ("sst2", {"label": "1"}, "1", "", "is empty: fill it in"),
        ("regression", {"value": 1.0}, "2.5", "", "is empty: fill it in"),
        ("regression", {"value": 1.0}, "2.5", "NA", "holds 'NA': expected a finite number"),
    ],
)
def test_an_empty_label_is_refused_as_it_is_with_a_model(
    tmp_path: Path, task: str, prediction: dict[str, Any], right: str, wrong: str, told: str
) -> None:
    text = "sentence" if task == "sst2" else "text"
    data = write(tmp_path / "dev.csv", f"{text},label\na,{right}\nb,{wrong}\nc,{right}\n")
    path = write_rows(tmp_path / "said.jsonl", *[prediction] * 3)
    with pytest.raises(InputError, match=rf"dev\.csv:3: the column 'label' {told}"):
        evaluate_predictions(path, data, task)


def test_an_empty_choice_is_refused_too(tmp_path: Path) -> None:
    rows = [{"context": "a", "choices": ["b", "c"], "label": label} for label in (0, "")]
    path = write_rows(tmp_path / "said.jsonl", *[{"choice": 0, "probabilities": [0.9, 0.1]}] * 2)
    with pytest.raises(InputError, match=r"dev\.jsonl:2: the column 'label' is empty: fill it in"):
        evaluate_predictions(path, write_rows(tmp_path / "dev.jsonl", *rows), "choice")


def test_what_is_left_out_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    labels = ["neutral", "-", "entailment"]
    data = write_rows(
        tmp_path / "dev.jsonl", *({"premise": "a", "hypothesis": "b", "label": label} for label in labels)
    )
    assert (
        evaluate_predictions(write_rows(tmp_path / "said.jsonl", *[{"label": "neutral"}] * 3), data, "snli")["n"] == 2
    )
    assert "dev.jsonl: 2 examples, 1 without an agreed label skipped" in caplog.text
    caplog.clear()
    data = write_rows(
        tmp_path / "new.jsonl", {"text": "a"}, {"text": "b", "label": "x"}, {"text": "c"}
    )  # never labelled
    assert evaluate_predictions(write_rows(tmp_path / "said.jsonl", *[said("x", ["x", "y"])] * 3), data)["n"] == 1
    assert "new.jsonl: 1 example, 2 without an agreed label skipped" in caplog.text


def test_figures_that_mislead_are_told_as_they_are_with_a_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = write(tmp_path / "dev.csv", 'text,label\na,x\nb,"x,y"\n')
    chances = {"x": 0.9, "y": 0.2, "z": 0.6}
    evaluate_predictions(
        write_rows(tmp_path / "said.jsonl", *[{"labels": ["x", "z"], "probabilities": chances}] * 2), data
    )
    assert f"{data}: no example has 1 of the 3 labels: each of them counts as 0 in f1_macro" in caplog.text
    assert f"{data}: all 2 predictions are alike (x, z), and the labels are not" in caplog.text


# ---- Abstentions


@pytest.mark.parametrize("task", ["classification", "choice"])
def test_what_was_answered_is_scored_and_its_share_is_told(tmp_path: Path, task: str) -> None:
    texts: dict[str, Any] = {"text": "a"} if task == "classification" else {"context": "a", "choices": ["b", "c"]}
    right, wrong, name = ("x", "y", "label") if task == "classification" else (0, 1, "choice")
    data = write_rows(tmp_path / "dev.jsonl", *({**texts, "label": right} for _ in range(4)), texts)  # one unlabelled
    chances: Any = {"x": 0.5, "y": 0.5} if task == "classification" else [0.5, 0.5]
    answers = [None, right, wrong, right, None]
    rows = [{name: each, "probabilities": chances, "abstained": each is None} for each in answers]
    result = evaluate_predictions(write_rows(tmp_path / "said.jsonl", *rows), data, task)
    assert result["n"] == 3
    assert result["metrics"]["accuracy"] == pytest.approx(2 / 3)
    assert result["metrics"]["answered"] == 3 / 4
    none = write_rows(tmp_path / "none.jsonl", *[{**rows[0]}] * 5)
    with pytest.raises(InputError, match=r"none\.jsonl: every prediction abstains: expected an answer"):
        evaluate_predictions(none, data, task)


def test_a_table_of_predictions_is_not_read(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "dev.jsonl", {"text": "a", "label": "x"})
    with pytest.raises(InputError, match=r"said\.csv: .* read from \.jsonl: .* `unmask predict .* --out said\.jsonl`"):
        evaluate_predictions(write(tmp_path / "said.csv", "text,input.label,label\na,x,x\n"), data)


# ---- Which prediction is of which example


def numbered(tmp_path: Path, ids: list[Any], predicted: list[Any], name: str = "id") -> tuple[Path, Path]:
    """Examples whose label is that of their id, and perfect predictions, by `ids` and `predicted`."""
    data = write_rows(tmp_path / "dev.jsonl", *({"text": "a", "label": f"l{i}", name: i} for i in ids))
    rows = ({"id": i, **said(f"l{i}", [f"l{i}" for i in ids])} for i in predicted)
    return write_rows(tmp_path / "said.jsonl", *rows), data


def test_predictions_are_paired_by_id(tmp_path: Path) -> None:
    said_at, data = numbered(tmp_path, [1, 2, 3, 4], ["4", "3", "1", "2"])
    result = evaluate_predictions(said_at, data)
    assert (result["n"], result["metrics"]["accuracy"]) == (4, 1.0)
    said_at, data = numbered(tmp_path, [1, 2, 3], [3, 2, 1], name="number")
    columns = ColumnSettings(id="number")
    assert evaluate_predictions(said_at, data, columns=columns)["metrics"]["accuracy"] == 1.0
    same_ids, data = numbered(tmp_path, [1, 1, 2, 2], [1, 1, 2, 2])  # in one order they need not be different
    assert evaluate_predictions(same_ids, data)["metrics"]["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("ids", "predicted", "told"),
    [
        ([1, 2, 3], [3, 1, 4], r"dev\.jsonl:2: the id '2' is not in .*said\.jsonl \(1 such in all\)"),
        ([1, 2, 3], [1, 2], r"dev\.jsonl:3: the id '3' is not in .*said\.jsonl"),
        ([1, 2], [2, 1, 7, 8], r"said\.jsonl:3: the id '7' is not in .*dev\.jsonl \(2 such in all\)"),
        ([1, 2, 3], [3, 3, 1], r"said\.jsonl:1 and .*said\.jsonl:2 have the same id, '3'"),
    ],
)
def test_ids_that_do_not_match_are_refused(tmp_path: Path, ids: list[int], predicted: list[int], told: str) -> None:
    with pytest.raises(InputError, match=told):
        evaluate_predictions(*numbered(tmp_path, ids, predicted))


# ---- Labels


def f1_of(tmp_path: Path, task: str, order: list[str], **settings: Any) -> float:
    """The F1 of predictions that name the labels in an order."""
    column, low, high = ("text", "2", "10") if task == "classification" else ("sentence", "0", "1")
    data = write_rows(tmp_path / "dev.jsonl", *({column: "a", "label": label} for label in (low, high, high, low)))
    predictions = (said(label, order) for label in (low, high, low, low))
    result = evaluate_predictions(write_rows(tmp_path / "said.jsonl", *predictions), data, task, settings=settings)
    return float(result["metrics"]["f1"])


# One of two positives found, none wrongly: 2/3. Of the other label: two of two found, and one wrongly: 4/5.


@pytest.mark.parametrize("order", [["2", "10"], ["10", "2"]])
def test_f1_is_of_the_same_label_in_whatever_order_predictions_name_them(tmp_path: Path, order: list[str]) -> None:
    """Of the second by value: as text, 10 would stand before 2."""
    assert f1_of(tmp_path, "classification", order) == pytest.approx(2 / 3)
    assert f1_of(tmp_path, "classification", order, labels=["10", "2"]) == pytest.approx(4 / 5)
    assert f1_of(tmp_path, "classification", order, labels=["2", "10"]) == pytest.approx(2 / 3)


@pytest.mark.parametrize("order", [["0", "1"], ["1", "0"]])
def test_f1_is_of_the_second_label_of_the_data_set(tmp_path: Path, order: list[str]) -> None:
    assert f1_of(tmp_path, "sst2", order) == pytest.approx(2 / 3)
    assert f1_of(tmp_path, "sst2", order, labels=["1", "0"]) == pytest.approx(4 / 5)


def test_the_order_may_be_said_where_predictions_have_no_probabilities(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "dev.jsonl", *({"text": "a", "label": label} for label in ("a", "b", "b", "a")))
    path = write_rows(tmp_path / "said.jsonl", *({"label": label} for label in ("a", "b", "a", "a")))
    assert evaluate_predictions(path, data)["metrics"]["f1"] == pytest.approx(2 / 3)
    assert evaluate_predictions(path, data)["positive_label"] == "b"
    swapped = evaluate_predictions(path, data, settings={"labels": ["b", "a"]})
    assert (swapped["metrics"]["f1"], swapped["positive_label"]) == (pytest.approx(4 / 5), "a")


def test_labels_other_than_those_of_the_predictions_are_refused(tmp_path: Path) -> None:
    for labels in (["2", "10", "30"], ["2", "3"]):
        with pytest.raises(SettingsError, match=r"task\.labels .*: expected those of the predictions, 2, 10, in any"):
            f1_of(tmp_path, "classification", ["10", "2"], labels=labels)
    tagged = write_rows(tmp_path / "tags.jsonl", {"tokens": ["a"], "tags": ["O"]})
    with pytest.raises(SettingsError, match=r"task\.labels cannot be set here"):
        evaluate_predictions(tagged, tagged, "tagging", settings={"labels": ["O", "B-X"]})


# ---- Answers by id


def test_official_answers_without_their_suffix_are_told_so(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "dev.jsonl", {"id": "1", "question": "q", "context": "a kite", "answers": ["kite"]})
    path = write_rows(tmp_path / "said", {"1": "kite", "2": "dog"})
    with pytest.raises(
        InputError, match=r"said: one JSON object, \{id: answer\}, which is read from \.json: name it so"
    ):
        evaluate_predictions(path, data, "korquad1")
    result = evaluate_predictions(path.rename(tmp_path / "said.json"), data, "qa")
    assert result["metrics"] == {"exact_match": 100, "f1": 100}


@pytest.mark.parametrize("fields", [{"id": "1", "said": "kite"}, {"answer": None}])
def test_one_answer_is_not_taken_for_a_file_of_answers(tmp_path: Path, fields: dict[str, Any]) -> None:
    data = write_rows(tmp_path / "dev.jsonl", {"id": "1", "question": "q", "context": "a kite", "answers": ["kite"]})
    with pytest.raises(InputError, match="its prediction has no answer"):
        evaluate_predictions(write_rows(tmp_path / "said.jsonl", fields), data, "qa")


# ---- Files of the official scorers


def squad(path: Path, **answers: list[str]) -> Path:
    questions = [
        {"id": name, "question": "?", "answers": [{"text": text, "answer_start": 0} for text in texts]}
        for name, texts in answers.items()
    ]
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "x", "qas": questions}]}]}), encoding="utf-8")
    return path


def write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def official(
    name: str, data: Path, answers: Path, probabilities: Path | None = None, threshold: float = 1.0
) -> tuple[int, dict[str, float]]:
    task = new_task(name)
    score = task.score()
    score_official(score, task.load_golds(data), data, answers, probabilities, threshold)
    return score.num_examples, score.metrics()


def test_official_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = squad(tmp_path / "data.json", a=["kite"], b=["blue"], c=[])
    answers = write_json(tmp_path / "p.json", {"a": "kite", "c": "grey", "z": ""})
    probabilities = write_json(tmp_path / "n.json", {"a": 0.5, "c": 0.75})
    with caplog.at_level(logging.WARNING, "unmask"):
        number, metrics = official("squad2", data, answers, probabilities, 0.6)
    assert (number, metrics["exact"], metrics["NoAns_exact"]) == (2, 100.0, 100.0)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "no prediction for 1 question (b): they are left out, as the official scorer does",
        f"predictions for 1 question (z), which {data} does not have",
    ]
    data = squad(tmp_path / "data.json", a=["kite"], b=["blue"])
    assert official("squad1", data, answers) == (2, {"exact_match": 50.0, "f1": 50.0})


def test_a_withheld_answer_is_wrong_where_there_is_one(tmp_path: Path) -> None:
    """Worked by hand through `apply_no_ans_threshold` of SQuAD 2.0's scorer: over the threshold a question scores 1 if
    it has no answer and 0 if it has one, here `the`, which normalises to nothing; else an empty answer matches it."""
    data = squad(tmp_path / "data.json", a=["the"], b=["a."], c=[])
    answers = write_json(tmp_path / "p.json", {"a": "", "b": "", "c": "grey"})
    probabilities = write_json(tmp_path / "n.json", {"a": 0.9, "b": 0.1, "c": 0.9})
    _, metrics = official("squad2", data, answers, probabilities, 0.5)
    assert (metrics["HasAns_exact"], metrics["HasAns_f1"], metrics["NoAns_f1"]) == (50.0, 50.0, 100.0)
    assert (metrics["best_exact"], metrics["best_exact_thresh"]) == (pytest.approx(100.0), 0.9)


@pytest.mark.parametrize(
    ("answers", "probabilities", "message"),
    [
        ([], None, r"p\.json: expected one JSON object, \{id: answer\}"),
        ({"a": ["연"]}, None, r"p\.json: the answer of a is \[\"연\"\]: expected a text"),
        ({"z": "x"}, None, r"p\.json: no prediction for any question of .*data\.json"),
        ({"a": "x"}, {"b": 1}, r"n\.json: no probability for a"),
        ({"a": "x"}, {"a": "1"}, r"n\.json: the probability of no answer of a is \"1\": expected a number"),
        ({"a": "x"}, {"a": 7}, r"no_answer_probability 7: expected a number in 0\.\.1"),
    ],
)
def test_official_files_damaged(tmp_path: Path, answers: Any, probabilities: Any, message: str) -> None:
    data = squad(tmp_path / "data.json", a=["kite"], c=[])
    na_probs = None if probabilities is None else write_json(tmp_path / "n.json", probabilities)
    with pytest.raises(InputError, match=message):
        official("squad2", data, write_json(tmp_path / "p.json", answers), na_probs)


def test_ids_of_questions_are_needed_once_each(tmp_path: Path) -> None:
    row = {"question": "?", "context": "x", "answers": "x"}
    answers = write_json(tmp_path / "p.json", {"a": "x"})
    for rows, told in (([{"id": "a", **row}] * 2, "2: a second question with the id a"), ([row], "1: no id")):
        with pytest.raises(InputError, match=rf"data\.jsonl:{told}"):
            official("qa", write_rows(tmp_path / "data.jsonl", *rows), answers)


@pytest.mark.parametrize(
    ("task", "data", "folder", "predictions", "na_probs"),
    [
        ("squad1", "squad1/dev-v1.1.json", "squad", "predictions-v1.1-electra-small-student.json", None),
        ("squad1", "squad1/dev-v1.1.json", "squad", "predictions-v1.1-bert-ensemble.json", None),
        ("squad2", "squad2-cs224n/dev-v2.0.json", "squad", "predictions-v2.0-noised.json", "na-probs-v2.0-noised.json"),
        ("korquad1", "korquad1/KorQuAD_v1.0_dev.json", "korquad", "predictions-noised.json", None),
    ],
)
def test_figures_of_the_official_scorers(
    data_dir: Path, task: str, data: str, folder: str, predictions: str, na_probs: str | None
) -> None:
    reference = data_dir / "reference" / folder
    expected = json.loads((reference / "expected-scores.json").read_text("utf-8"))[predictions]
    probabilities = None if na_probs is None else reference / na_probs
    number, metrics = official(task, data_dir / "tasks" / data, reference / predictions, probabilities, 0.5)
    assert number == expected.pop("total", number)
    expected.pop("note", None)
    # Equal but for the order of sums; the ensemble's are published to three places.
    tolerance = 5e-4 if "ensemble" in predictions else 1e-9
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=tolerance)
    assert number > 5000
