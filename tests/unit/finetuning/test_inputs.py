"""`model.*` of a fine-tuning recipe: other dropout than the model was pre-trained with, on the same weights."""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.files import write_rows
from unmask.errors import InputError, SettingsError
from unmask.finetuning.inputs import build_module, open_inputs, read_examples
from unmask.io.input_files import InputFiles
from unmask.io.progress import Progress
from unmask.models.encoder import new_encoder
from unmask.models.hub.directory import save_model
from unmask.models.hub.source import open_source
from unmask.models.settings import ModelSettings
from unmask.recipe.tree import FinetuneRecipe
from unmask.tasks.base import ExampleCounts
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import open_task
from unmask.tokenization.tokenizer import load_tokenizer

TASK = {"name": "classification", "labels": ["n", "y"], "max_length": 16}


def module_of(source: Path, **settings: Any) -> Any:
    given = {"init_from": str(source), "task": TASK, "data": {"train": "t.tsv"}, **settings}
    recipe = FinetuneRecipe.model_validate(given)
    return build_module(recipe, open_task(recipe.task, ColumnSettings()), open_source(source), load_tokenizer(source))


@pytest.mark.parametrize("settings", [{}, {"transfer_layers": 1}, {"from_scratch": True}])
def test_a_model_gets_other_dropout(tiny_model: Path, settings: dict[str, Any]) -> None:
    model = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.25}
    before, after = module_of(tiny_model, **settings), module_of(tiny_model, **settings, model=model)
    sizes = after.encoder.settings
    assert (sizes.hidden_dropout_prob, sizes.attention_probs_dropout_prob) == (0.3, 0.25)
    assert sizes.model_dump(exclude=set(model)) == before.encoder.settings.model_dump(exclude=set(model))
    assert after.encoder.embeddings.dropout_prob == after.encoder.blocks[0].dropout_prob == 0.3
    assert after.encoder.blocks[0].attention.dropout_prob == 0.25
    assert after.head.dropout_prob == 0.3, "null takes the encoder's"
    assert after.encoder.state_dict().keys() == before.encoder.state_dict().keys()
    if not settings:
        found = before.encoder.state_dict()
        assert all(torch.equal(value, found[name]) for name, value in after.encoder.state_dict().items())


def test_dropout_that_the_family_has_not_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_model)
    sizes = ModelSettings(architecture="lstm", preset="tiny", hidden_size=16, intermediate_size=16)
    save_model(tmp_path, new_encoder(sizes.resolve(tokenizer.vocab_size, tokenizer.pad_id)), causal_lm=True)
    tokenizer.save(tmp_path)
    assert module_of(tmp_path, model={"hidden_dropout_prob": 0.3}).encoder.settings.hidden_dropout_prob == 0.3
    told = r"^model\.\* does not fit init_from=.*, of the family lstm: attention_probs_dropout_prob 0\.2 means nothing"
    with pytest.raises(SettingsError, match=told):
        module_of(tmp_path, model={"attention_probs_dropout_prob": 0.2})


def test_a_library_for_the_test_file_is_missed_before_the_training_file_is_read(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"train": str(tmp_path / "not-there.jsonl"), "test": str(tmp_path / "test.parquet")}
    recipe = FinetuneRecipe.model_validate({"init_from": str(tiny_model), "task": TASK, "data": data})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"test\.parquet: reading \.parquet needs pyarrow"):
        open_inputs(recipe, tmp_path / "run", None)


def test_examples_are_counted_once_they_are_encoded(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[float | str] = []

    class Shown(Progress):
        def advance(self, count: float = 1) -> None:
            events.append(count)

    module, task = module_of(tiny_model), open_task(TaskSettings.model_validate(TASK), ColumnSettings())
    path = write_rows(tmp_path / "train.jsonl", *({"text": "a dog", "label": "ny"[number % 2]} for number in range(5)))
    read = read_examples(task, "train", InputFiles((path,)))
    encode = type(task).encode

    def noted(*given: Any) -> Any:
        events.append("encoded")
        return encode(*given)

    monkeypatch.setattr(type(task), "encode", noted)
    monkeypatch.setattr("unmask.inference.example_sets.MOST_CHARACTERS", 10)
    monkeypatch.setattr("unmask.finetuning.inputs.Progress", Shown)
    read.encode(task, load_tokenizer(tiny_model), module)
    assert events == ["encoded", 2, "encoded", 2, "encoded", 1]


def test_of_one_seed_fewer_examples_are_among_more(tmp_path: Path) -> None:
    """In the order of the file."""
    task = open_task(TaskSettings.model_validate(TASK), ColumnSettings())
    path = write_rows(tmp_path / "train.jsonl", *({"text": f"a {place}", "label": "n"} for place in range(50)))
    read = read_examples(task, "train", InputFiles((path,)))
    chosen = {
        (number, seed): [read.examples.index(example) for example in read.some(number, seed).examples]
        for number in (1, 10, 30, 50)
        for seed in (0, 1)
    }
    for (number, seed), places in chosen.items():
        assert (len(places), places) == (number, sorted(places))
        assert set(places) <= set(chosen[50, seed])
        assert set(chosen[10, seed]) <= set(chosen[30, seed])
    assert chosen[10, 0] != chosen[10, 1]
    with pytest.raises(SettingsError, match=r"data\.train_examples=51: .*train\.jsonl has 50 examples: give that many"):
        read.some(51, 0)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("classification", {"text": "a", "label": "n"}),
        ("qa", {"id": "q", "question": "a", "context": "a dog", "answers": ["dog"]}),
        ("choice", {"context": "a", "choices": ["b", "c"], "label": 1}),
        ("tagging", {"tokens": ["a"], "tags": ["n"], "document": "d"}),
    ],
)
def test_a_run_keeps_no_column_but_those_of_its_task(name: str, row: dict[str, Any], tmp_path: Path) -> None:
    labels = {"labels": ["n", "y"]} if name in ("classification", "tagging") else {}
    task = open_task(TaskSettings.model_validate({"name": name, **labels}), ColumnSettings())
    path = write_rows(tmp_path / "train.jsonl", {**row, "note": "n" * 1000})
    [kept] = read_examples(task, "train", InputFiles((path,))).examples
    [loaded] = task.load(path, ExampleCounts())
    assert loaded.fields["note"]
    assert kept == replace(loaded, fields={})


def test_a_dev_file_is_read_to_be_measured_whichever_file_it_is(tmp_path: Path) -> None:
    rows = [{"question": "a", "context": "a dog", "answers": [answer]} for answer in ("dog", "cat")]
    path = write_rows(tmp_path / "train.jsonl", *rows)
    settings = TaskSettings(name="qa", drop_unfound_answers=True)
    task = open_task(settings, ColumnSettings()).fit_to(path)
    found = {name: len(read_examples(task, name, InputFiles((path,))).examples) for name in ("train", "dev")}
    assert found == {"train": 1, "dev": 2}, "an answer that is not in its passage is measured, and not learned"


def test_what_is_measured_and_trained_on_is_told(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever case and blanks it has; up to a hundredth of the inputs as information."""
    caplog.set_level(logging.INFO, "unmask")
    rows = [{"text": f"a dog {number}", "label": "yn"[number % 2]} for number in range(304)]
    hidden = {**rows[5], "text": " A  Dog 5"}
    data = {
        "train": str(write_rows(tmp_path / "train.jsonl", *rows[:4])),
        "dev": str(write_rows(tmp_path / "dev.jsonl", *rows[3:6])),
        "test": str(write_rows(tmp_path / "test.jsonl", hidden, hidden, hidden, rows[0], *rows[6:])),
    }
    open_inputs(
        FinetuneRecipe.model_validate({"init_from": str(tiny_model), "task": TASK, "data": data}),
        tmp_path / "run",
        None,
    )
    told = [(each.levelname, each.message) for each in caplog.records if "but for case and blanks" in each.message]
    assert [(level, re.sub(r" \(.*\)|, but.*", "", message)) for level, message in told] == [
        ("WARNING", "1 of the 3 inputs of dev are in data.train too"),
        ("INFO", "1 of the 302 inputs of test are in data.train too"),
        ("INFO", "3 of the 302 inputs of test are in data.dev too"),
    ]


def test_dev_that_holds_the_few_examples_to_learn_from_is_warned_of(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"text": f"a dog {number}", "label": "yn"[number % 2]} for number in range(400)]
    file = str(write_rows(tmp_path / "all.jsonl", *rows))
    data = {"train": file, "dev": file, "train_examples": 3}
    run = open_inputs(
        FinetuneRecipe.model_validate({"init_from": str(tiny_model), "task": TASK, "data": data}),
        tmp_path / "run",
        None,
    )
    assert ["3 of the 400 inputs of dev" in each for each in run.known] == [True]


def test_texts_that_only_the_model_cannot_tell_apart_are_not_known(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Other words outside the vocabulary, and other words after what `task.max_length` cuts."""
    long = "a dog " * 20
    train = write_rows(tmp_path / "train.jsonl", {"text": "a ㋀", "label": "y"}, {"text": f"{long}a", "label": "n"})
    dev = write_rows(tmp_path / "dev.jsonl", {"text": "a ㋁", "label": "n"}, {"text": f"{long}dog", "label": "n"})
    data = {"train": str(train), "dev": str(dev)}
    open_inputs(
        FinetuneRecipe.model_validate({"init_from": str(tiny_model), "task": TASK, "data": data}),
        tmp_path / "run",
        None,
    )
    assert "but for case and blanks" not in caplog.text


@pytest.mark.parametrize("num_contradictions", [3, 2])
def test_texts_with_two_labels_are_told(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, num_contradictions: int
) -> None:
    """More than a hundredth of 201 examples; the same text with the same label again is none."""
    rows = [{"text": f"{number} dogs", "label": "yn"[number % 2]} for number in range(200 - num_contradictions)]
    others = [{**row, "label": "ny"[number % 2]} for number, row in enumerate(rows[:num_contradictions])]
    train = write_rows(tmp_path / "train.jsonl", *rows, *others, rows[5])
    data = {"train": str(train)}
    open_inputs(
        FinetuneRecipe.model_validate({"init_from": str(tiny_model), "task": TASK, "data": data}),
        tmp_path / "run",
        None,
    )
    told = [record.message for record in caplog.records if "another label" in record.message]
    expected = (
        f"3 of the 201 examples of data.train ({train}) have the texts of an earlier one, word for word, and another "
        f"label, such as {train}:1 ('y') and {train}:198 ('n'); {train}:2 ('n') and {train}:199 ('y'): a model cannot "
        "learn both; correct the labels, or leave such examples out"
    )
    assert told == ([expected] if num_contradictions == 3 else [])


def test_labels_that_are_not_measured_are_told(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"text": f"a dog {number}", "label": [label] if label else []} for number, label in enumerate(["", *"abc"])]
    train, dev = write_rows(tmp_path / "train.jsonl", *rows), write_rows(tmp_path / "dev.jsonl", *rows[:2])
    task = {"name": "classification", "multi_label": True, "max_length": 16}
    data = {"train": str(train), "dev": str(dev), "test": str(train)}
    open_inputs(
        FinetuneRecipe.model_validate({"init_from": str(tiny_model), "task": task, "data": data}),
        tmp_path / "run",
        None,
    )
    told = [message for message in caplog.messages if "counts as 0 in f1_macro" in message]
    assert [message.partition(": each")[0] for message in told] == [f"{dev}: no example has 2 of the 3 labels"]
