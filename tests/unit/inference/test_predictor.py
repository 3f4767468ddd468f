"""Predictions and measurements of a fine-tuned model: the order, the equality with `transformers`, what is refused."""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch

from support.commands import type_in
from support.files import write, write_rows
from support.model_files import edit_config, edit_weights, with_one
from support.sizes import small
from support.tasks import new_task
from support.untrained import save_language_model, save_task_model
from unmask.errors import InputError, ModelError, OutputError, SettingsError
from unmask.finetuning.run import save_finetuned
from unmask.inference.abstaining import Abstaining
from unmask.inference.evaluation import evaluate
from unmask.inference.example_sets import STREAMED
from unmask.inference.inputs import read_inputs
from unmask.inference.prediction_scoring import evaluate_predictions
from unmask.inference.predictor import Predictor, load_predictor, predict, predict_file, write_predictions
from unmask.inference.task_options import read_task_settings
from unmask.models.encoder import new_encoder
from unmask.tasks.settings import ColumnSettings
from unmask.tokenization.tokenizer import load_tokenizer

LABELS = ("bad", "good", "so-so")
TEXTS = ["a man", "", "a dog and two women are outside, and a child plays with a ball", "people wait", "a b c d e f g"]


def save_classifier(directory: Path, base: Path, columns: ColumnSettings, **changes: Any) -> Path:
    """A random classifier on the tiny model."""
    settings = {"max_length": 64, "labels": list(LABELS), **changes}
    return save_task_model(directory, base, columns, seed=5, std=0.3, **settings)


@pytest.fixture(scope="module")
def single(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("single") / "model", tiny_model, ColumnSettings(text="review"))


@pytest.fixture(scope="module")
def pair(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    columns = ColumnSettings(text_a="premise", text_b="hypothesis")
    return save_classifier(tmp_path_factory.mktemp("pair") / "model", tiny_model, columns)


def test_predictions_are_those_of_transformers_in_the_order_of_the_inputs(pair: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(pair)
    model = AutoModelForSequenceClassification.from_pretrained(pair).eval()
    rows = [{"premise": a, "hypothesis": b, "id": f"{a}/{b}"} for a in TEXTS for b in reversed(TEXTS)]
    predictions = list(predict(pair, rows))
    assert [one["input"] for one in predictions] == rows
    assert [one["id"] for one in predictions] == [row["id"] for row in rows]
    assert len({round(one["score"], 4) for one in predictions}) == len(rows)  # so that a swap would show
    for row, prediction in zip(rows, predictions, strict=True):
        # Given as lists: an empty second text that is a bare string counts as none there.
        with torch.no_grad():
            logits = model(**tokenizer([row["premise"]], [row["hypothesis"]], return_tensors="pt")).logits
        expected = torch.softmax(logits[0], -1)
        # float32 on both sides; in batches of other shapes the last digits differ.
        assert list(prediction["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-5)
        assert list(prediction["probabilities"]) == list(model.config.id2label.values()) == list(LABELS)
        assert prediction["label"] == model.config.id2label[int(expected.argmax())]
        assert prediction["score"] == prediction["probabilities"][prediction["label"]]


def test_inputs_are_read_a_window_at_a_time(single: Path) -> None:
    read = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal read
        for number in range(10**9):
            read += 1
            yield {"review": TEXTS[number % 5], "n": number}

    predictions = list(islice(predict(single, rows()), STREAMED + 10))
    assert [one["input"]["n"] for one in predictions] == list(range(STREAMED + 10))
    assert read == 2 * STREAMED


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_model_that_computes_nothing_finite_is_refused(single: Path, wrong: float) -> None:
    predictor = load_predictor(single)
    list(predictor.module.head.parameters())[-1].data[:] = wrong
    with pytest.raises(ModelError, match="what the model computes is not finite"):
        list(predict(predictor, [{"text": "a man"}]))


def test_rows_may_have_the_usual_columns(single: Path, pair: Path) -> None:
    (a,), (b,) = predict(single, [{"review": "a man"}]), predict(single, [{"text": "a man"}])
    assert a["probabilities"] == b["probabilities"]
    (a,) = predict(pair, [{"premise": "a man", "hypothesis": "a"}])
    (b,) = predict(pair, [{"text_a": "a man", "text_b": "a"}])
    assert a["probabilities"] == b["probabilities"]
    with pytest.raises(InputError, match="input 2: no column 'review': expected review, or text; there is txt, 0"):
        list(predict(single, [{"text": "a"}, {"txt": "a man", 0: 1}]))  # a number, as pandas names a column
    with pytest.raises(
        InputError, match="input 1: review is NaN: expected a text; fill it in, take the row out, or wri"
    ):
        list(predict(single, [{"review": math.nan}]))
    with pytest.raises(InputError, match="input 1: no column '글'"):
        list(predict(single, [{0: "a"}], columns={"text": "글"}))


def test_long_inputs_are_cut_and_told_or_refused(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    columns = ColumnSettings(text="text")
    cutting = save_classifier(tmp_path / "cutting", tiny_model, columns, max_length=8)
    with caplog.at_level(logging.WARNING, logger="unmask"):
        list(predict(cutting, [{"text": text} for text in TEXTS]))
    assert "inputs: 5 examples, 2 longer than task.max_length and cut" in caplog.text
    strict = save_classifier(tmp_path / "strict", tiny_model, columns, max_length=8, truncation=False)
    with pytest.raises(InputError, match=r"input 3: \d+ tokens, over task.max_length 8"):
        list(predict(strict, [{"text": text} for text in TEXTS]))


def test_a_length_that_the_model_has_not_seen_is_told(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = save_classifier(tmp_path / "model", tiny_model, ColumnSettings(text="text"), max_length=16)
    edit_config(model, unmask_trained_length=24)
    predictor = load_predictor(model)
    predictor.with_options(settings=read_task_settings(["task.max_length=24"]))
    assert not caplog.text
    predictor.with_options(settings=read_task_settings(["task.max_length=25"]))
    assert "task.max_length is 25, and the model has seen no sequence over 24: its positions beyond" in caplog.text


def test_texts_that_the_vocabulary_does_not_cover_are_told(
    single: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "unmask")
    list(predict(single, [{"text": "국민"}]))
    list(predict(single, [{"text": "a man 국민"}]))
    assert "are [UNK]" not in caplog.text, "one strange word says nothing of a language"
    assert "inputs: 1 example, 1 text or window read as [UNK] alone" in caplog.text
    assert "inputs: 1 example, 1 of 3 tokens not in the vocabulary ([UNK])" in caplog.text
    list(predict(single, [{"text": "a man 국민 국민 국민"}]))
    assert "inputs: 60 % of the tokens (3 of 5) are [UNK], such as '국민': the vocabulary does" in caplog.text
    caplog.clear()
    data = write(tmp_path / "dev.tsv", "review\tlabel\n" + "a man waits\tgood\n" * 30 + "a man 국민\tbad\n")
    evaluate(single, data)
    assert "are [UNK]" not in caplog.text  # fewer than one in twenty
    assert re.search(r"dev\.tsv: 31 examples, 1 of \d+ tokens not in the vocabulary \(\[UNK\]\)", caplog.text)


def inputs(path: str | Path) -> list[dict[str, Any]]:
    return [dict(row.fields) for row in read_inputs(path)]


def test_files_of_inputs(tmp_path: Path) -> None:
    texts = [{"text": "a man"}, {"text": ""}, {"text": "{no json}"}]
    assert inputs(write(tmp_path / "a.txt", "a man\n\n{no json}\n")) == texts
    assert inputs(write(tmp_path / "a.tsv", "id\ttext\n7\ta man\n")) == [{"id": "7", "text": "a man"}]
    for content, told in ((b"fine\nbad \xe9\n", ":2: not UTF-8 at byte 9"), (b"", ": there is nothing in it")):
        with pytest.raises(InputError, match=rf"b\.txt{told}"):
            inputs(write(tmp_path / "b.txt", content))


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("a man\n\nb", [{"text": "a man"}, {"text": ""}, {"text": "b"}]),
        ("\n a man", [{"text": ""}, {"text": " a man"}]),
        ('\n {"text": "a"}\n\n{"text": "b", "id": 3}\n', [{"text": "a"}, {"text": "b", "id": 3}]),
    ],
)
def test_standard_input_is_json_lines_or_texts(
    monkeypatch: pytest.MonkeyPatch, typed: str, read: list[dict[str, Any]]
) -> None:
    type_in(monkeypatch, typed)
    assert inputs("-") == read


@pytest.mark.parametrize("typed", ["", "\n \n"])
def test_an_empty_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    type_in(monkeypatch, typed)
    with pytest.raises(InputError, match="standard input: there is nothing in it"):
        inputs("-")


def test_published_txt_is_read_as_the_model_reads_it(tiny_model: Path, tmp_path: Path) -> None:
    ratings = write(tmp_path / "ratings_test.txt", "id\tdocument\tlabel\n7\ta man\t1\n8\tpeople wait\t0\n")
    model = save_classifier(tmp_path / "nsmc", tiny_model, ColumnSettings(), name="nsmc", labels=["0", "1"])
    assert [one["input"] for one in predict_file(model, ratings)] == [
        {"id": "7", "document": "a man", "label": "1"},
        {"id": "8", "document": "people wait", "label": "0"},
    ]
    assert len(list(predict_file(model, ratings, columns={"text": "document", "id": "id"}))) == 2
    said = write_rows(tmp_path / "said.jsonl", *predict_file(model, ratings))
    assert evaluate_predictions(said, ratings, "nsmc", columns={"label": "label"})["n"] == 2
    assert evaluate_predictions(said, ratings, "nsmc") == evaluate(model, ratings)
    ratings.write_text("id\tdocument\tlabel\n7\ta man\n")
    with pytest.raises(InputError, match=r"ratings_test\.txt:2: 2 fields where the header has 3"):
        list(predict_file(model, ratings))
    ratings.write_text("a man\nid\tdocument\tlabel\n")
    assert [one["input"]["text"] for one in predict_file(model, ratings)] == ["a man", "id\tdocument\tlabel"]

    model = save_classifier(tmp_path / "scitail", tiny_model, ColumnSettings(), name="scitail", labels=["e", "n"])
    pairs = write_rows(tmp_path / "scitail_1.0_dev.txt", {"sentence1": "a man", "sentence2": "a", "gold_label": "e"})
    assert [one["input"]["sentence1"] for one in predict_file(model, pairs)] == ["a man"]


def test_plain_texts_are_nothing_for_a_model_of_pairs(pair: Path, tmp_path: Path) -> None:
    told = r"a\.txt:1: a plain text, but this model reads pairs: .* premise and hypothesis"
    with pytest.raises(InputError, match=told):
        list(predict_file(pair, write(tmp_path / "a.txt", "a man\n")))


def test_a_model_without_classifier_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected a fine-tuned model, as `unmask finetune` makes one"):
        load_predictor(tiny_model)
    (tmp_path / "recipe.yaml").write_text("seed: 0\n")
    with pytest.raises(ModelError, match="this run has made no model yet"):
        load_predictor(tmp_path)


def test_damage_to_what_a_model_remembers_is_told(single: Path, tmp_path: Path) -> None:
    shutil.copytree(single, tmp_path / "model")
    remembered = json.loads((single / "config.json").read_text())["unmask_task"]
    edit_config(tmp_path / "model", unmask_task=remembered | {"name": "juggling"})
    with pytest.raises(ModelError, match=r"config\.json says of the model's task what this version cannot read"):
        load_predictor(tmp_path / "model")


def test_a_data_set_that_does_not_fit_the_model_is_no_damage(single: Path, tmp_path: Path) -> None:
    shutil.copytree(single, tmp_path / "model")
    edit_config(tmp_path / "model", problem_type="multi_label_classification")
    with pytest.raises(SettingsError, match=r"cannot be measured on 'sst2': .* have one label each"):
        load_predictor(tmp_path / "model", task="sst2")


# ---- Measuring


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    rows = [f"{text}\t{LABELS[number % 2]}\n" for number, text in enumerate(TEXTS * 3)]
    return write(tmp_path / "dev.tsv", "review\tlabel\n" + "".join(rows))


def test_measured_by_the_model_and_by_its_predictions_alike(single: Path, labelled: Path, tmp_path: Path) -> None:
    measured = evaluate(single, labelled)
    predictions = list(predict_file(single, labelled))
    hits = sum(one["label"] == one["input"]["label"] for one in predictions)
    assert measured["task"] == "classification"
    assert measured["n"] == 15
    assert measured["metrics"]["accuracy"] == pytest.approx(hits / 15)
    assert set(measured["metrics"]) == {"accuracy", "f1_macro", "matthews_correlation"}
    z = 1.96  # Wilson's interval: where a share would be so many standard errors from the one that was measured
    for end in measured["accuracy_interval"].values():
        assert abs(hits / 15 - end) == pytest.approx(z * math.sqrt(end * (1 - end) / 15))
    path = write_rows(tmp_path / "predictions.jsonl", *predictions)
    assert evaluate_predictions(path, labelled, columns=ColumnSettings(text="review")) == measured


def test_predictions_of_other_examples_are_refused(labelled: Path, tmp_path: Path) -> None:
    path, columns = tmp_path / "predictions.jsonl", ColumnSettings(text="review")
    rows = [{"input": {"review": text}, "label": "good"} for text in TEXTS * 3]
    without = [{"input": {}}, *rows[1:]]
    for change, told in (
        (rows[:-1], r"dev\.tsv has more rows than .*predictions\.jsonl"),
        ([*rows, rows[0]], r"predictions\.jsonl has more rows than .*dev\.tsv"),
        ([rows[1], rows[0], *rows[2:]], r"predictions\.jsonl:1: review is '', and at .*dev\.tsv:2 it is 'a man'"),
        (without, r"predictions\.jsonl:1: .*dev\.tsv:2: its prediction has no label: expected one of"),
    ):
        with pytest.raises(InputError, match=told):
            evaluate_predictions(write_rows(path, *change), labelled, columns=columns)


def test_predictions_for_undecided_examples_are_left_out(tmp_path: Path) -> None:
    rows = [{"premise": "a", "hypothesis": "b", "label": label} for label in ("neutral", "-", "entailment")]
    data, neutral = write_rows(tmp_path / "dev.jsonl", *rows), {"label": "neutral"}
    path = write_rows(tmp_path / "predictions.jsonl", *[neutral] * 3)
    result = evaluate_predictions(path, data, "snli")
    assert (result["n"], result["metrics"]["accuracy"]) == (2, 0.5)
    write_rows(path, neutral, neutral, {"label": "2"})
    with pytest.raises(InputError, match=r'predictions\.jsonl:3: .* prediction says label "2": expected one of'):
        evaluate_predictions(path, data, "snli")


def test_a_loaded_predictor_serves_again_and_again(single: Path) -> None:
    predictor = load_predictor(single)
    assert isinstance(predictor, Predictor)
    first, second = (list(predict(predictor, [{"text": "a man"}])) for _ in range(2))
    assert first == second
    assert load_predictor(predictor) is predictor
    assert not callable(predictor), "it would take other rows than predict does"
    for name, value in {"task": "sst2", "device": "cuda", "precision": "nonsense"}.items():
        refused = pytest.raises(
            SettingsError, match=f"^{name}={value}: a loaded Predictor has its {name}: load its dir"
        )
        with refused:
            load_predictor(predictor, **{name: value})  # type: ignore[arg-type]
        if name != "task":
            with refused:
                predict(predictor, [{"text": "a man"}], **{name: value})  # type: ignore[arg-type]


def test_fields_that_are_no_number_are_those_of_the_same_example(single: Path, tmp_path: Path) -> None:
    row = {"text": "a man", "label": "good", "weight": math.nan}
    data = write_rows(tmp_path / "dev.jsonl", row | {"more": [{"x": math.nan}]})
    path = write_rows(tmp_path / "said.jsonl", *predict_file(single, data))
    assert evaluate_predictions(path, data) == evaluate(single, data)
    write_rows(data, row | {"more": [{"x": 1}]})
    with pytest.raises(InputError, match=r"said\.jsonl:1: more is"):
        evaluate_predictions(path, data)


COLUMNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # settings, an input
    "classification": ({"labels": ["a", "b"]}, {"text": "a man"}),
    "classification of many": ({"labels": ["a", "b"], "multi_label": True}, {"text": "a man"}),
    "regression": ({}, {"text": "a man"}),
    "qa": ({}, {"question": "a man", "context": "a dog"}),
    "choice": ({}, {"context": "a man", "choices": ["a", "b"]}),
    "tagging": ({"labels": ["O", "B-X"]}, {"tokens": ["a", "man"]}),
}


@pytest.mark.parametrize(("kind", "of_kind"), COLUMNS.items(), ids=COLUMNS)
def test_the_users_column_of_ids_is_kept(
    tiny_model: Path, tmp_path: Path, kind: str, of_kind: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    changes, row = of_kind
    settings: dict[str, Any] = {"name": kind.partition(" ")[0], "max_length": 24, **changes}
    for said, name in ((ColumnSettings(id="number"), "number"), (ColumnSettings(), "id")):
        model = save_task_model(tmp_path / name, tiny_model, said, **settings)
        (prediction,) = predict(model, [row | {"number": "7", "id": "8"}])
        assert prediction["id"] == {"number": "7", "id": "8"}[name]


def test_a_column_of_ids_may_be_within_another_and_has_to_be_there(answering: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", {"question": "a", "context": "a dog", "meta": {"id": "q7"}})
    (prediction,) = predict_file(answering, path, columns=ColumnSettings(id="meta.id"))
    assert prediction["id"] == "q7"
    with pytest.raises(InputError, match=r"in\.jsonl:1: no column 'nope': there is question, context, meta\."):
        list(predict_file(answering, path, columns=ColumnSettings(id="nope")))


def test_one_input_in_place_of_a_list_is_told(single: Path) -> None:
    """At once, not where the first answer is asked for."""
    given: Any
    for given, told in (
        ({"text": "a"}, "the inputs are a dict: give a list of rows, such as "),
        (None, "the inputs are a NoneType: give a list of rows"),
        (Path("rows.csv"), r"the inputs are 'rows\.csv', one text or path: give a list of texts or rows"),
        (pyarrow.table({"text": ["a"]}), r"the inputs are a Table: give a list of rows, its \.to_pylist\(\)"),
    ):
        with pytest.raises(InputError, match=told):
            predict(single, given)
    with pytest.raises(InputError, match=r"input 1 is '7': expected a list of texts or of rows"):
        list(predict(single, [7]))  # type: ignore[list-item]


def test_a_string_is_a_text(single: Path, pair: Path) -> None:
    answers = list(predict(single, ["the man", np.str_("a dog"), {"text": "the man"}]))
    assert [answer["input"] for answer in answers] == [{"text": "the man"}, {"text": "a dog"}, {"text": "the man"}]
    assert answers[0] == answers[2]
    with pytest.raises(InputError, match=r"input 1: no column"):
        list(predict(pair, ["the man"]))


def test_columns_and_settings_of_inputs_in_memory(single: Path) -> None:
    [usual], rows = predict(single, [{"review": "a b " * 9}]), [{"body": "a b " * 9, "nr": 7}]
    [found] = predict(single, rows, columns={"text": "body", "id": "nr"})
    assert (found["probabilities"], found["id"]) == (usual["probabilities"], 7)
    [cut] = predict(single, rows, columns={"text": "body"}, settings={"max_length": 8})
    with pytest.raises(SettingsError, match="settings: 'max_length=8': expected a dictionary"):
        predict(single, rows, settings="max_length=8")  # type: ignore[arg-type]
    assert cut["probabilities"] != usual["probabilities"]
    with pytest.raises(InputError, match=r"input 1: no column 'review': .*Name yours with --column text=NAME"):
        list(predict(single, rows))
    with pytest.raises(InputError, match=r"input 1: no column 'key': .*Name it with --column id=NAME"):
        list(predict(single, rows, columns={"text": "body", "id": "key"}))
    with pytest.raises(SettingsError, match=r"^columns\.question is not for classification"):
        predict(single, rows, columns={"question": "body"})
    assert len(repr(load_predictor(single))) < 200


# ---- Files of predictions


QUESTIONS = [{"id": f"q{number}", "question": "a man", "context": text} for number, text in enumerate(TEXTS) if text]


@pytest.fixture(scope="module")
def answering(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("answering") / "model"
    return save_task_model(directory, tiny_model, seed=3, name="qa", max_length=32, doc_stride=8)


def test_an_id_is_told_where_the_input_has_one(answering: Path, single: Path) -> None:
    nameless = {name: value for name, value in QUESTIONS[0].items() if name != "id"}
    told = list(predict(answering, [QUESTIONS[0], nameless, nameless | {"id": None}, nameless | {"id": 7}]))
    assert [one.get("id", "none") for one in told] == ["q0", "none", "none", "7"]
    told = list(predict(single, [{"text": "a", "id": 7}, {"text": "a"}, {"text": "a", "id": None}]))
    assert [one.get("id", "none") for one in told] == [7, "none", "none"]


def test_answers_are_written_as_the_official_scorers_read_them(answering: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "dev.jsonl", *(one | {"answers": [one["context"].split()[-1]]} for one in QUESTIONS))
    out = write_predictions(answering, data, tmp_path / "answers.json")
    answers = json.loads(out.read_text("utf-8"))
    assert answers == {one["id"]: one["answer"] for one in predict_file(answering, data)}
    assert list(answers) == [one["id"] for one in QUESTIONS]
    measured = evaluate(answering, data)
    assert evaluate_predictions(out, data, "qa") == measured
    lines = write_predictions(answering, data, tmp_path / "answers.jsonl")
    assert [json.loads(line) for line in lines.read_text("utf-8").splitlines()] == list(predict_file(answering, data))
    assert evaluate_predictions(lines, data, "qa") == measured


def test_a_file_that_appears_while_questions_are_answered_is_kept(answering: Path, tmp_path: Path) -> None:
    data, out = write_rows(tmp_path / "dev.jsonl", *QUESTIONS), tmp_path / "answers.jsonl"

    class LastOne(Abstaining):
        def __call__(self, predictions: Iterator[Any], task: Any) -> Iterator[Any]:
            yield from predictions
            out.write_text("mine", "utf-8")

    with pytest.raises(OutputError, match=r"answers\.jsonl has appeared .*: what was made is .*answers-2\.jsonl"):
        write_predictions(answering, data, out, abstaining=LastOne())
    assert out.read_text("utf-8") == "mine"
    assert len((tmp_path / "answers-2.jsonl").read_text("utf-8").splitlines()) == len(QUESTIONS)


def test_a_file_of_predictions_is_whole_or_not_there(answering: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "dev.jsonl", tmp_path / "answers.json"
    write_rows(data, *QUESTIONS, {"id": "\ud83d", "question": "a man", "context": "국민 \u2028"})
    write_predictions(answering, data, out)
    before = out.read_bytes()
    assert len(json.loads(before)) == len(QUESTIONS) + 1
    with pytest.raises(OutputError, match="exists already"):
        write_predictions(answering, data, out)
    write_rows(data, *QUESTIONS, {"question": "a man"})
    with pytest.raises(InputError, match=r"dev\.jsonl:5: no column 'context'"):
        write_predictions(answering, data, out, overwrite=True)
    assert out.read_bytes() == before
    with pytest.raises(OutputError, match=r"dev\.jsonl is needed and would be overwritten"):
        write_predictions(answering, data, data, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.json", "dev.jsonl"]


def test_rows_are_refused_before_anything_is_answered(
    single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = tmp_path / "reviews.jsonl", tmp_path / "answers.jsonl"
    options: Any = {"columns": ColumnSettings(text="t"), "settings": {"max_length": 8, "truncation": False}}
    known = load_predictor(single)
    monkeypatch.setattr("unmask.inference.predictor.run_module", None)
    for wrong, told in (
        ({"t": None}, r"reviews\.jsonl:513: t is null"),
        ({"text": "a"}, r"reviews\.jsonl:513: no column 't'.*--column text="),
        ({"t": "a " * 8}, r"reviews\.jsonl:513: \d+ tokens, over task.max_length 8"),
    ):
        write_rows(data, *[{"t": "a"}] * STREAMED, wrong)
        with pytest.raises(InputError, match=told):
            write_predictions(known, data, out, **options)


def test_answers_that_could_not_be_written_are_refused_before_anything_is_answered(
    single: Path, answering: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.inference.predictor.run_module", None)
    reviews = write_rows(tmp_path / "reviews.jsonl", {"text": "a"}, {"text": "b", "more": 1})
    with pytest.raises(InputError, match="input 2 has the field 'more', and the first input has not"):
        write_predictions(single, reviews, tmp_path / "answers.csv")
    questions = write_rows(tmp_path / "questions.jsonl", QUESTIONS[0], QUESTIONS[1], QUESTIONS[0])
    with pytest.raises(InputError, match="questions 1 and 3 have the same id, 'q0'"):
        write_predictions(answering, questions, tmp_path / "answers.json")


def test_ids_in_a_column_that_the_model_does_not_remember_are_found(tiny_model: Path, tmp_path: Path) -> None:
    remembered = ColumnSettings(question="q", context="passage", id="number")
    model = save_task_model(tmp_path / "model", tiny_model, remembered, name="qa", max_length=32, doc_stride=8)
    questions = write_rows(tmp_path / "questions.jsonl", *QUESTIONS)
    answers = json.loads(write_predictions(model, questions, tmp_path / "answers.json").read_text("utf-8"))
    assert list(answers) == [one["id"] for one in QUESTIONS]


def test_the_progress_of_a_file_is_a_share_of_its_inputs(
    single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unmask.io.progress.FIRST_SHOWN_S", 0.0)
    data = write_rows(tmp_path / "reviews.jsonl", *({"review": text} for text in TEXTS))
    write_predictions(single, data, tmp_path / "answers.jsonl")
    assert "predicting: 100 % · 5 of 5 inputs" in capsys.readouterr().err
    type_in(monkeypatch, data.read_bytes())
    write_predictions(single, "-", tmp_path / "piped.jsonl")
    assert "predicting: 5 inputs" in capsys.readouterr().err
    assert (tmp_path / "piped.jsonl").read_bytes() == (tmp_path / "answers.jsonl").read_bytes()


def test_a_head_that_its_task_builds_is_read_as_strictly(tiny_model: Path, tmp_path: Path) -> None:
    model = save_classifier(tmp_path / "model", tiny_model, ColumnSettings(), encoder_top="bilstm", bilstm_size=4)
    edit_weights(model, with_one("bilstm.layers.0.bias_hh_l0", torch.zeros(3)), "head.safetensors")
    with pytest.raises(ModelError, match=r"head\.safetensors: .*bias_hh_l0 has the shape \(3,\), expected \(16,\)"):
        load_predictor(model)


def test_a_model_of_one_segment_is_saved_with_a_tokenizer_that_gives_none(tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = load_tokenizer(tiny_model)
    sizes = {"vocab": tokenizer.vocab_size, "width": 16, "layers": 1, "heads": 2, "inner": 16, "positions": 34}
    settings = small(architecture="roberta", type_vocab_size=1, **sizes)
    task = new_task(columns=ColumnSettings(text_a="a", text_b="b"), labels=["a", "b"], max_length=32)
    save_finetuned(task.module(new_encoder(settings, pooler=False)), task, tokenizer, tmp_path)
    assert "token_type_ids" in AutoTokenizer.from_pretrained(tiny_model)("a man", "a dog")
    assert "token_type_ids" not in AutoTokenizer.from_pretrained(tmp_path)("a man", "a dog")


@pytest.mark.parametrize("config", [{}, {"tokenizer_class": "BertTokenizer"}, {"model_input_names": ["input_ids"]}])
def test_segments_that_transformers_adds_to_a_gpt1_are_told(
    config: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = save_language_model(tmp_path / "base", "gpt1", "wordpiece", TEXTS * 9, 300)
    model = save_task_model(tmp_path / "model", base, labels=list(LABELS), max_length=16)
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    load_predictor(model)
    assert not caplog.text, "it was fine-tuned here"
    foreign = json.loads((model / "config.json").read_text())
    del foreign["unmask_task"]
    (model / "config.json").write_text(json.dumps(foreign))
    load_predictor(model)
    assert ("fine-tune it again here; else state" in caplog.text) is ("tokenizer_class" in config)


def test_progress_ends_with_the_error(
    answering: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not when what the error holds is collected: by then the next thing is on the screen."""
    monkeypatch.setattr("unmask.io.progress.FIRST_SHOWN_S", 0.0)
    nameless = {name: value for name, value in QUESTIONS[0].items() if name != "id"}
    data = write_rows(tmp_path / "dev.jsonl", nameless)
    with pytest.raises(InputError, match="question 1 has no id") as caught:
        write_predictions(answering, data, tmp_path / "answers.json")
    assert caught.traceback
    assert "looking through the inputs: stopped" in capsys.readouterr().err
