"""Regression: values, the loss, metrics on what it decodes, and floors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from support.files import write_rows
from support.tasks import new_task
from unmask.errors import InputError
from unmask.models.hub.directory import load_encoder
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.text.examples import TextExample
from unmask.tasks.text.regression import Regression, fault_of_values, summed_squared_error
from unmask.tokenization.tokenizer import load_tokenizer

TASK = new_task("regression")


def example(text: str, value: float | None) -> TextExample[float]:
    return TextExample(text, None, value, {}, "x:1")


def of_values(*values: float) -> EncodedExamples:
    labels = np.array(values, dtype=np.float32)
    return EncodedExamples.from_lists([[5]] * len(values), [1] * len(values), unit_columns={"labels": labels})


@pytest.mark.parametrize(("name", "label"), [("stsb", "score"), ("korsts", "score"), ("klue-sts", "label")])
def test_values_outside_of_a_data_sets_range_are_refused(tmp_path: Path, name: str, label: str) -> None:
    task, row = new_task(name), {"sentence1": "a", "sentence2": "b"}
    path = write_rows(tmp_path / "a.jsonl", *({**row, label: value} for value in (0, 5, 5.2)))
    told = rf"a\.jsonl:3: the column '{label}' holds 5\.2, and .* {name} lie between 0 and 5"
    with pytest.raises(InputError, match=told):
        list(task.load(path, ExampleCounts()))
    with pytest.raises(InputError, match=r"a\.jsonl:3: .* holds 5\.2"):
        list(task.load(path, ExampleCounts(), unlabelled=True))
    write_rows(path, {**row, label: 4.75})
    assert [one.label for one in task.load(path, ExampleCounts())] == [4.75]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([2.5, 2.5], r"every value is 2\.5 \(as a 32-bit float\): there is nothing to learn"),
        (
            [1e15, 1e15 + 1],
            r"every value is 1e\+15 \(as a 32-bit float\): .* those of the file do, subtract a constant",
        ),
        (
            [1.7e9, 1.7e9 + 599],
            r".* between 1,700,000,000 and 1,700,000,640, .* steps of 128: .* constant such as 1,700,000,000",
        ),
        ([-1.7e9, -1.7e9 + 599], r".* between -1,700,000,000 and -1,699,999,360, .* in steps of 128"),
    ],
)
def test_values_whose_differences_are_lost_are_refused(values: list[float], told: str) -> None:
    with pytest.raises(InputError, match=rf"a\.tsv: {told}"):
        TASK.check(of_values(*values), Path("a.tsv"))


@pytest.mark.parametrize(
    "values", [[2.5, 2.25], [1990, 2020], [1.7e9, 1.7e9 + 1e5], [0, 1e-40], [-3e38, 3e38], [0, 1e9]]
)
def test_values_that_differ_enough_are_learned(values: list[float]) -> None:
    assert fault_of_values(np.array(values, dtype=np.float32)) is None


def test_the_loss_is_the_squared_error(tiny_model: Path) -> None:
    examples = [example("a man", 2.5), example("a dog", -1.0), example("two women", None)]
    batch = TASK.encode(examples, load_tokenizer(tiny_model), ExampleCounts()).batch([0, 1, 2])
    assert batch.columns["labels"].dtype == torch.float32
    torch.manual_seed(1)
    module = TASK.module(load_encoder(tiny_model).encoder).eval()
    outputs = module.outputs(batch)
    assert outputs.shape == (3, 1)
    (term,) = module(batch)
    assert module.counts(batch) == {"task": 2}
    torch.testing.assert_close(term.total / 2, functional.mse_loss(outputs[:2, 0], torch.tensor([2.5, -1.0])))
    term.total.backward()
    weights = [weight.grad for weight in module.parameters() if weight.grad is not None]
    assert all(torch.isfinite(gradient).all() for gradient in weights)  # nothing comes of the missing value


def test_two_outputs_are_never_broadcast_against_one_value() -> None:
    with pytest.raises(AssertionError, match="2 outputs for one value"):
        summed_squared_error(torch.zeros(2, 2), torch.tensor([1.0, 2.0]))


def test_decoded_and_combined() -> None:
    outputs = [torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [5.0]])]
    combined = TASK.combine(outputs)
    assert TASK.decode([example("a", None)] * 2, of_values(0, 0), combined) == [{"value": 1.5}, {"value": 3.5}]


def test_floors_are_those_of_the_mean() -> None:
    floors = TASK.floors(of_values(1, 5), of_values(0, 1, 5))
    assert floors == {
        "pearson": {"any constant": 0.0},
        "spearmanr": {"any constant": 0.0},
        "mse": {"mean of train": pytest.approx((9 + 4 + 4) / 3)},
    }
    klue = new_task("klue-sts")
    assert klue.floors(of_values(1, 3), of_values(0, 3, 5))["f1"] == {"always over the threshold": pytest.approx(0.8)}


def test_klue_has_f1_from_three_on() -> None:
    score = new_task("klue-sts").score()
    pairs = [(3.0, 2.9), (4.0, 3.0), (1.0, 5.0), (0.0, 0.0)]  # a miss, a hit, a false alarm
    score.add([example("a", true) for true, _ in pairs], [{"value": value} for _, value in pairs])
    assert score.metrics()["f1"] == 0.5


def test_a_model_of_pairs_also_reads_the_usual_columns() -> None:
    task = new_task("stsb", lenient=True)
    assert isinstance(task, Regression)
    assert task.files.is_pair
    assert [layout.texts for layout in task.files.layouts] == [*[("sentence1", "sentence2")] * 2, ("text_a", "text_b")]
    columns = {"text_a": "sentence1", "text_b": "sentence2", "label": "score"}
    assert task.remembered() == {"name": "stsb", "max_length": 128, "truncation": True, "columns": columns}


def test_a_sample_for_the_report() -> None:
    assert TASK.sample(example("t", 1.23456), {"value": 2.0}) == {
        "input": {"text": "t"}, "label": "1.235", "prediction": "2", "probability": None, "correct": None
    }  # fmt: skip
