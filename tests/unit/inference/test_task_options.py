"""What a user says of a fine-tuned model's task: columns and settings over those that it remembers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.files import write_rows
from support.untrained import save_task_model
from unmask.errors import InputError, SettingsError
from unmask.experiments.compare import compare
from unmask.inference.ensemble import keep_chosen, write_ensemble
from unmask.inference.evaluation import evaluate
from unmask.inference.prediction_scoring import evaluate_predictions
from unmask.inference.predictor import load_predictor, predict_file
from unmask.inference.task_options import NOTHING_SAID, check_task_settings, read_task_settings
from unmask.tasks.settings import ColumnSettings, TaskSettings


def save(directory: Path, base: Path, name: str, columns: ColumnSettings = NOTHING_SAID, **changes: Any) -> Path:
    """A random model of a kind of task."""
    return save_task_model(directory, base, columns, std=0.5, name=name, max_length=32, **changes)


TEXT = "a man and a dog"
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = {
    # settings, a row with the usual columns, other names for them
    "classification": ({"labels": ["a", "b"]}, {"text": TEXT, "label": "a"}, {"text": "review", "label": "gold"}),
    "many": (
        {"labels": ["a", "b"], "multi_label": True},
        {"text": TEXT, "label": ["a"]},
        {"text": "review", "label": "gold"},
    ),
    "regression": ({}, {"text": TEXT, "label": 2.5}, {"text": "review", "label": "stars"}),
    "qa": (
        {"doc_stride": 8},
        {"question": "a man", "context": TEXT, "answers": ["a dog"], "id": "q"},
        {"question": "asked", "context": "passage", "answers": "right", "id": "number"},
    ),
    "choice": (
        {},
        {"context": TEXT, "choices": ["people", "a dog wait"], "label": 1},
        {"context": "passage", "choices": "endings", "label": "gold"},
    ),
    "tagging": (
        {"labels": ["O", "B-X"], "doc_stride": 8},
        {"tokens": TEXT.split(), "tags": ["O", "B-X", "O", "O", "O"]},
        {"tokens": "words", "tags": "ner"},
    ),
}


@pytest.mark.parametrize("kind", ROWS)
def test_columns_that_are_named_are_read(tiny_model: Path, tmp_path: Path, kind: str) -> None:
    settings, row, names = ROWS[kind]
    name = "classification" if kind == "many" else kind
    model = save(tmp_path / "model", tiny_model, name, **settings)
    usual = write_rows(tmp_path / "usual.jsonl", row)
    renamed = write_rows(
        tmp_path / "renamed.jsonl", {names.get(column, column): value for column, value in row.items()}
    )
    columns = ColumnSettings(**names)  # type: ignore[arg-type]
    expected = evaluate(model, usual)
    with pytest.raises(InputError, match=r"no column .* --column "):
        evaluate(model, renamed)
    assert evaluate(model, renamed, columns=columns) == evaluate(model, renamed, columns=names) == expected
    (said,), (known,) = predict_file(model, renamed, columns=columns), predict_file(model, usual)
    assert {**said, "input": None} == {**known, "input": None}
    predictions = write_rows(tmp_path / "said.jsonl", said)
    assert evaluate_predictions(predictions, renamed, name, columns) == expected


def test_an_unknown_column_is_told(tiny_model: Path, tmp_path: Path) -> None:
    model = save(tmp_path / "model", tiny_model, "classification", labels=["a", "b"])
    with pytest.raises(SettingsError, match="columns: unknown key lable; did you mean label"):
        evaluate(model, tmp_path / "data.jsonl", columns={"lable": "gold"})


def test_a_column_that_is_named_has_to_be_there(tiny_model: Path, tmp_path: Path) -> None:
    """Otherwise a mistyped name would read another column without a word."""
    for kind in ("classification", "regression", "choice", "tagging"):
        settings, row, names = ROWS[kind]
        model = save(tmp_path / kind, tiny_model, kind, **settings)
        data = write_rows(tmp_path / "data.jsonl", row)
        for column, name in names.items():
            with pytest.raises(InputError, match=rf"no column '{name}'.* --column {column}=|{name}.* columns\."):
                evaluate(model, data, columns=ColumnSettings(**{column: name}))  # type: ignore[arg-type]


def test_the_models_own_columns_stay_where_others_are_named(tiny_model: Path, tmp_path: Path) -> None:
    columns = ColumnSettings(text_a="p", text_b="h", label="gold", id="key")
    model = save(tmp_path / "model", tiny_model, "classification", columns, labels=["a", "b"])
    data = write_rows(tmp_path / "data.jsonl", {"p": "a man", "h": "a dog", "stars": "b", "gold": "a", "key": 7})
    (said,) = predict_file(model, data)
    for label, columns in (("a", ColumnSettings()), ("b", ColumnSettings(label="stars"))):
        accuracy = evaluate(model, data, columns=columns)["metrics"]["accuracy"]
        assert accuracy == float(said["label"] == label)
    other = write_rows(tmp_path / "other.jsonl", {"one": "a man", "two": "a dog", "gold": "a", "key": 7})
    named = ColumnSettings(text_a="one", text_b="two")
    assert evaluate(model, other, columns=named) == evaluate(model, data)
    (again,) = predict_file(model, other, columns=named)
    assert again["id"] == said["id"] == 7


def test_columns_of_a_model_that_remembers_none(tiny_model: Path, tmp_path: Path) -> None:
    """As `transformers` saves one: pairs and single texts are read, and another column of labels."""
    model = save(tmp_path / "model", tiny_model, "classification", labels=["a", "b"])
    config = json.loads((model / "config.json").read_text())
    del config["unmask_task"]
    (model / "config.json").write_text(json.dumps(config))
    pairs = write_rows(tmp_path / "pairs.jsonl", {"text_a": "a", "text_b": "b", "gold": "a"})
    assert evaluate(model, pairs, columns=ColumnSettings(label="gold"), settings={"max_length": 16})["n"] == 1


def test_settings_are_those_that_are_given(tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = save(tmp_path / "model", tiny_model, "classification", ColumnSettings(text="text"), labels=["a", "b"])
    data = write_rows(tmp_path / "data.jsonl", {"text": f"{TEXT} " * 3, "label": "a"})
    evaluate(model, data)
    assert not caplog.text
    evaluate(model, data, settings={"max_length": 8})
    assert "1 longer than task.max_length and cut" in caplog.text
    with pytest.raises(InputError, match=r"over task\.max_length 8"):
        list(predict_file(model, data, settings=read_task_settings(["task.max_length=8", "task.truncation=false"])))
    with pytest.raises(SettingsError, match=r"task\.max_length 65 is over the 64 positions of the model"):
        evaluate(model, data, settings={"max_length": 65})
    with pytest.raises(SettingsError, match="task: max_length=abc: expected a"):
        evaluate(model, data, settings={"max_length": "abc"})


def test_settings_leave_the_columns_alone(tiny_model: Path, tmp_path: Path) -> None:
    """Measured as another task, a model of pairs reads pairs, and so it does with a setting beside."""
    columns = ColumnSettings(text_a="p", text_b="h")
    model = save(tmp_path / "model", tiny_model, "rte", columns)
    labelled = {"label": "entailment"}
    own = write_rows(tmp_path / "own.jsonl", {"p": "a man", "h": "a dog"} | labelled)
    usual = write_rows(tmp_path / "usual.jsonl", {"text_a": "a man", "text_b": "a dog"} | labelled)
    changed = {"max_length": 31}
    assert evaluate(model, own, settings=changed) == evaluate(model, own)
    assert evaluate(model, usual, settings=changed) == evaluate(model, usual)
    assert evaluate(model, usual, "classification", settings=changed) == evaluate(model, usual, "classification")


def test_thresholds_and_lengths_of_answers(tiny_model: Path, tmp_path: Path) -> None:
    model = save(tmp_path / "model", tiny_model, "qa", unanswerable=True, doc_stride=8, null_threshold=0)
    data = write_rows(tmp_path / "data.jsonl", {"question": "a man", "context": f"{TEXT} " * 4, "id": "q"})

    def answer(directory: Path = model, **settings: Any) -> dict[str, Any]:
        (said,) = predict_file(directory, data, settings=settings)
        return said

    assert answer(null_threshold=-1e9)["answer"]
    assert answer(null_threshold=1e9)["answer"] == ""
    assert len(answer(n_best=2)["n_best"]) == 2
    assert len(answer(null_threshold=-1e9, max_answer_length=1)["answer"].split()) == 1
    other = save(tmp_path / "other", tiny_model, "qa", unanswerable=True, doc_stride=8, null_threshold=0)
    together = write_ensemble([model, other], tmp_path / "all")
    keep_chosen(together, {"null_threshold": 1e9})
    assert answer(together)["answer"] == ""
    assert answer(together, null_threshold=-1e9)["answer"]


def test_thresholds_of_labels_that_are_not_named_stay(tiny_model: Path, tmp_path: Path) -> None:
    remembered = {"a": 0.3, "b": 0.7}
    model = save(
        tmp_path / "model", tiny_model, "classification", labels=["a", "b"], multi_label=True, thresholds=remembered
    )
    predictor = load_predictor(model)

    def thresholds(given: object) -> object:
        return predictor.with_options(settings={"thresholds": given}).task.settings.thresholds

    assert thresholds({"a": 0.9}) == {"a": 0.9, "b": 0.7}
    assert thresholds(None) is None
    with pytest.raises(SettingsError, match=r"task\.thresholds names 'c'"):
        thresholds({"c": 0.9})


def test_columns_of_labels_give_way_to_one_column_and_have_to_be_those_of_all_labels(
    tiny_model: Path, tmp_path: Path
) -> None:
    columns = ColumnSettings(text="review", labels=("a", "b"))
    model = save(tmp_path / "model", tiny_model, "classification", columns, labels=["a", "b"], multi_label=True)
    split = write_rows(tmp_path / "split.jsonl", {"review": TEXT, "a": 1, "b": 0}, {"review": "people", "a": 0, "b": 1})
    listed = write_rows(tmp_path / "listed.jsonl", {"review": TEXT, "x": ["a"]}, {"review": "people", "x": ["b"]})
    expected = evaluate(model, split)
    assert evaluate(model, split, columns=ColumnSettings(text="review")) == expected
    for given in ({"label": "x"}, {"label": "x", "text": "review"}):
        assert evaluate(model, listed, columns=ColumnSettings(**given)) == expected  # type: ignore[arg-type]
    told = r"^columns\.labels lacks b: expected a column for each label \(a, b\)"
    some = ColumnSettings(labels=("a", "id"))
    with pytest.raises(SettingsError, match=told):
        evaluate(model, split, columns=some)
    said = write_rows(tmp_path / "said.jsonl", *predict_file(model, split))
    assert evaluate_predictions(said, split, "classification", columns) == expected
    with pytest.raises(SettingsError, match=told):
        evaluate_predictions(said, split, "classification", some.model_copy(update={"text": "review"}))
    with pytest.raises(
        SettingsError, match=r"task\.multi_label cannot be set here: the predictions show it; leave it out"
    ):
        evaluate_predictions(said, split, "classification", columns, settings={"multi_label": True})


def test_tags_that_break_their_scheme_are_refused_where_that_is_asked_for(tiny_model: Path, tmp_path: Path) -> None:
    model = save(tmp_path / "model", tiny_model, "tagging", labels=["O", "B-X", "I-X"])
    data = write_rows(tmp_path / "data.jsonl", {"tokens": ["a", "man", "waits"], "tags": ["B-X", "O", "I-X"]})
    assert evaluate(model, data)["n"] == 1
    with pytest.raises(InputError, match=r"data\.jsonl:1.*the tag 'I-X' breaks the scheme"):
        evaluate(model, data, settings={"repair_tags": False})
    said = write_rows(tmp_path / "said.jsonl", {"tags": ["B-X", "O", "B-X"]})
    assert evaluate_predictions(said, data, "tagging")["metrics"]["overall_f1"] == 1
    with pytest.raises(InputError, match="the tag 'I-X' breaks the scheme"):
        evaluate_predictions(said, data, "tagging", settings={"repair_tags": False})


def test_a_loaded_model_takes_options_too(tiny_model: Path, tmp_path: Path) -> None:
    predictor = load_predictor(save(tmp_path / "model", tiny_model, "regression", ColumnSettings(text="text")))
    data = write_rows(tmp_path / "data.jsonl", {"review": TEXT, "label": 1})
    assert evaluate(predictor, data, columns=ColumnSettings(text="review"))["n"] == 1
    assert predictor.with_options() == predictor
    with pytest.raises(InputError, match=r"no column 'text'.*--column text=NAME"):  # nothing of it is left
        evaluate(predictor, data)
    with pytest.raises(InputError, match=r"no column 'text'.*Name yours with --column text=NAME"):
        compare(predictor, predictor, data)


ADJUSTABLE = {
    *("max_length", "truncation", "thresholds", "doc_stride", "max_question_length", "max_answer_length", "n_best"),
    *("unanswerable", "null_threshold", "document_context", "max_choice_length", "label_separator", "repair_tags"),
    "negative_label",
}
"""What docs/guides/fine-tuning.md says may be given after training."""


@pytest.mark.parametrize("name", sorted(TaskSettings.model_fields.keys() - ADJUSTABLE))
def test_settings_of_training_are_refused_by_name(name: str) -> None:
    with pytest.raises(SettingsError, match=f"task.{name} cannot be set here"):
        check_task_settings({name: TaskSettings.model_fields[name].default}, "evaluate")


def test_what_is_measured_is_no_setting_of_predicting() -> None:
    check_task_settings({"negative_label": "other"}, "score")
    with pytest.raises(
        SettingsError, match=r"task\.negative_label says what is measured, and `unmask predict` measures"
    ):
        check_task_settings({"negative_label": "other"}, "predict")


@pytest.mark.parametrize("name", sorted(ADJUSTABLE))
def test_settings_of_use_are_taken(name: str) -> None:
    check_task_settings({name: TaskSettings.model_fields[name].default}, "evaluate")
