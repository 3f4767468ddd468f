"""Classification with any number of labels an example: reading, the loss, decisions and floors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from support.files import write_rows
from unmask.errors import InputError
from unmask.models.hub.directory import load_encoder
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.text.classification import open_task
from unmask.tasks.text.examples import TextExample
from unmask.tasks.text.multi_label import MultiLabelClassification
from unmask.tokenization.tokenizer import load_tokenizer


def opened(**settings: Any) -> MultiLabelClassification:
    task = open_task(TaskSettings.model_validate({"multi_label": True, **settings}), ColumnSettings())
    assert isinstance(task, MultiLabelClassification)
    return task


TASK = opened(labels=["a", "b", "c"])


def example(text: str, *labels: str) -> TextExample[tuple[str, ...]]:
    return TextExample(text, None, labels, {}, "x:1")


def of_labels(*rows: list[int]) -> EncodedExamples:
    return EncodedExamples.from_lists(
        [[5]] * len(rows), [1] * len(rows), unit_columns={"labels": np.array(rows, dtype=np.int8)}
    )


def write(path: Path, *labels: Any) -> Path:
    return write_rows(path, *({"text": "t", "label": label} for label in labels))


def test_lists_and_separated_labels_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ["sport", "news"], [], "news, art")
    task = opened().fit_to(path)
    assert task.labels == ("art", "news", "sport")
    assert [one.label for one in task.load(path, ExampleCounts())] == [("sport", "news"), (), ("news", "art")]
    table = tmp_path / "a.csv"
    table.write_text('text,label\na,x|y\nb,\nc,"y|x,z"\n')
    task = opened(label_separator="|").fit_to(table)
    assert [one.label for one in task.load(table, ExampleCounts())] == [("x", "y"), (), ("y", "x,z")]
    table.write_text('text,label\na,"[""x"", ""y, z""]"\nb,[]\nc,"[x], y"\n')  # JSON, and what is none
    task = opened().fit_to(table)
    assert [one.label for one in task.load(table, ExampleCounts())] == [("x", "y, z"), (), ("[x]", "y")]
    table.write_text("text,label\na,\"['x', 'y']\"\n")
    with pytest.raises(InputError, match=r"a\.csv:2: label is .*: a list in the cell of a table is written as JSON"):
        opened().fit_to(table)


def test_the_labels_of_a_long_file_are_read_with_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unmask.io.progress.FIRST_SHOWN_S", 0.0)
    opened().fit_to(write(tmp_path / "a.jsonl", ["a"], ["b"], []))
    assert "reading labels: done · 3 examples" in capsys.readouterr().err


def test_labels_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with pytest.raises(InputError, match=r"a\.jsonl:2: the label 'd' is none of the known ones \(a, b, c\)"):
        list(TASK.load(write(path, ["a"], ["b", "d"]), ExampleCounts()))
    known = r"a\.jsonl:1: the label '{}' is none of the known ones \(a, b, c\)"
    with pytest.raises(InputError, match=known.format(r"a\|b") + r", but several .* give task.label_separator='\|'$"):
        list(TASK.load(write(path, "a|b"), ExampleCounts()))
    with pytest.raises(InputError, match=known.format(r"a\|d") + ": fix it, or train with it"):
        list(TASK.load(write(path, "a|d"), ExampleCounts()))
    with pytest.raises(InputError, match=r"'1\.0' is none of the known ones \(0, 1\): write it as '1'$"):
        list(opened(labels=["0", "1"]).load(write(path, "1.0"), ExampleCounts()))
    with pytest.raises(InputError, match=r"a\.jsonl: 0 different labels in all examples: expected at least two"):
        opened().fit_to(write(path, [], []))
    with pytest.raises(InputError, match=r"a\.jsonl: 1 different labels in all examples"):
        opened().fit_to(write(path, ["a"], []))
    with pytest.raises(InputError, match=r"a\.jsonl:101: over 10,000 different labels .* task\.label_separator"):
        opened().fit_to(write(path, *([f"{n}-{m}" for m in range(100)] for n in range(101))))
    with pytest.raises(InputError, match=r"a\.jsonl: every example has the same labels"):
        TASK.check(of_labels([1, 0, 0], [1, 0, 0]), path)
    TASK.check(of_labels([1, 0, 0], [0, 1, 1]), path)


def test_labels_that_differ_in_blanks_alone_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ["news", "art"], ["sport"], ["art", "news "])
    told = r"a\.jsonl:3: the label news is written 'news ' here and 'news' in .*a\.jsonl:1, which look alike"
    with pytest.raises(InputError, match=told):
        opened().fit_to(path)
    assert opened().fit_to(write(path, "news , art", "art,news")).labels == ("art", "news")  # a table's are stripped
    assert opened().fit_to(write(path, ["10", "2"], ["9"])).labels == ("2", "9", "10")


def test_the_loss_is_binary_cross_entropy_over_every_label(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(tiny_model)
    examples = [example("a man", "a", "c"), example("a dog"), TextExample("two women", None, None, {}, "x:1")]
    units = TASK.encode(examples, tokenizer, ExampleCounts())
    batch = units.batch([0, 1, 2])
    assert batch.columns["labels"].tolist() == [[1, 0, 1], [0, 0, 0], [-100] * 3]
    torch.manual_seed(1)
    module = TASK.module(load_encoder(tiny_model).encoder).eval()
    outputs = module.outputs(batch)
    (term,) = module(batch)
    targets = torch.tensor([[1.0, 0, 1], [0, 0, 0]])
    # `transformers` takes the mean over examples and labels: so each label is a target.
    expected = functional.binary_cross_entropy_with_logits(outputs[:2], targets)
    assert module.counts(batch) == {"task": 6}
    torch.testing.assert_close(term.total / 6, expected)


def test_decisions_at_one_half_the_likeliest_first() -> None:
    outputs = torch.tensor([[0.0, -0.1, 2.0], [-1.0, -2.0, -3.0]])
    one, other = TASK.decode([example("t")] * 2, of_labels([0, 0, 0], [0, 0, 0]), outputs)
    assert one["labels"] == ["c", "a"]
    assert other["labels"] == []
    assert one["probabilities"] == pytest.approx({"a": 0.5, "b": 0.4750208, "c": 0.8807970}, abs=1e-6)


def test_several_models_answer_with_the_mean_of_their_probabilities() -> None:
    one, other = torch.tensor([[4.0, -0.5, 0.0, -60.0]]), torch.tensor([[-1.0, -6.0, 2.0, 50.0]])
    mean = (torch.sigmoid(one) + torch.sigmoid(other)) / 2
    torch.testing.assert_close(torch.sigmoid(TASK.combine([one, other])), mean)
    torch.testing.assert_close(TASK.combine([one]), one)


def test_floors_are_those_of_constant_predictions() -> None:
    dev = of_labels([1, 0, 0], [1, 1, 0], [0, 0, 0])
    floors = TASK.floors(of_labels([1, 0, 0], [1, 1, 0], [0, 0, 1]), dev)
    examples = [example("t", "a"), example("t", "a", "b"), example("t")]
    every, usual = TASK.score(), TASK.score()
    every.add(examples, [{"labels": ["a", "b", "c"]}] * 3)
    usual.add(examples, [{"labels": ["a"]}] * 3)
    assert floors == {
        "f1_micro": {"always every label": pytest.approx(every.metrics()["f1_micro"])},
        "f1_macro": {"always every label": pytest.approx(every.metrics()["f1_macro"])},
        "accuracy": {"always the usual labels of train": pytest.approx(usual.metrics()["accuracy"])},
    }


def test_what_is_remembered_opens_the_same_task() -> None:
    task = opened(labels=["a", "b"], label_separator=";")
    kept = {**task.remembered(), "labels": ["a", "b"]}
    columns = ColumnSettings.model_validate(kept.pop("columns"))
    again = open_task(TaskSettings.model_validate(kept), columns, lenient=True)
    assert isinstance(again, MultiLabelClassification)
    assert again.settings.label_separator == ";"


def test_a_sample_for_the_report() -> None:
    probabilities = {"a": 0.9, "b": 0.3, "c": 0.05}
    assert TASK.sample(example("t"), {"labels": ["a"], "probabilities": probabilities}) == {
        "input": {"text": "t"}, "label": "(none)", "prediction": "a", "probability": 0.7, "correct": False
    }  # fmt: skip
    tuned = TASK.with_settings(thresholds={"a": 0.8, "b": 0.3, "c": 0.1})
    sure = tuned.sample(example("t"), {"labels": ["a", "b"], "probabilities": probabilities})["probability"]
    assert sure == 0.5, "b is at its threshold"
    likeliest_first = {"labels": ["b", "a"], "probabilities": {"a": 0.6, "b": 0.9, "c": 0.05}}
    assert TASK.sample(example("t", "a", "b"), likeliest_first)["correct"]
