"""What every kind of task promises, for each entry of TASKS in each of its variants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from unmask.batch import Batch
from unmask.finetuning import save_finetuned
from unmask.inference import Window, measure, predict_window
from unmask.models.bert import BertEncoder
from unmask.models.heads import needs_pooler
from unmask.models.settings import EncoderSettings
from unmask.prediction import load_predictor
from unmask.tasks import choice, classification, qa, regression, tagging
from unmask.tasks.base import ExampleCounts, Task, TaskModule
from unmask.tasks.encoded import EncodedExamples, ExampleLoader
from unmask.tasks.settings import FIELDS_OF_KINDS, KINDS, ColumnSettings, TaskKind, TaskSettings
from unmask.tasks.table import TASKS, open_task
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer
from unmask.tokenization.train import train_tokenizer
from unmask.training.device import Compute

COLOURS, THINGS = ("red", "green", "blue", "grey"), ("apple", "river", "stone", "cloud", "horse", "ladder")


def _sentences() -> Iterator[tuple[str, str, int]]:
    """Colour, thing, and a number that the colour decides."""
    for number in range(16):
        yield COLOURS[number % 4], THINGS[(number * 5) % 6], number % 4


ROWS: dict[str, list[dict[str, Any]]] = {
    "classification": [{"text": f"the {c} {t}", "label": c} for c, t, _ in _sentences()],
    "pairs": [{"text_a": f"the {c} {t}", "text_b": f"a {t}", "label": n % 2} for c, t, n in _sentences()],
    "multi_label": [{"text": f"the {c} {t}", "label": [c, t] if n else [t]} for c, t, n in _sentences()],
    "regression": [{"text": f"the {c} {t}", "label": float(n)} for c, t, n in _sentences()],
    "qa": [
        {
            "id": str(i),
            "question": f"what is {c}?",
            "context": f"here a {t} is {c} and there is nothing else to see at all",
            "answers": {"text": [t], "answer_start": [7]},
        }
        for i, (c, t, _) in enumerate(_sentences())
    ],
    "choice": [
        {"context": f"the {c} {t} is", "choices": [*COLOURS[: 2 + n % 3]], "label": COLOURS.index(c) % (2 + n % 3)}
        for c, t, n in _sentences()
    ],
    "tagging": [
        {
            "tokens": ["the", c, t, "and", "no", "other"],
            "tags": ["O", "B-colour", f"B-{'soft' if n else 'hard'}", *"OOO"],
        }
        for c, t, n in _sentences()
    ],
}
VARIANTS: dict[str, dict[str, Any]] = {
    "classification": {"name": "classification"},
    "pairs": {"name": "classification"},
    "multi_label": {"name": "classification", "multi_label": True},
    "regression": {"name": "regression"},
    "qa": {"name": "qa", "max_length": 16, "doc_stride": 5},
    "choice": {"name": "choice"},
    "tagging": {"name": "tagging", "max_length": 8, "doc_stride": 3},
}
"""Every kind must stand here (`test_every_kind_is_tested`); the last two with windows shorter than their texts."""

CPU = Compute(torch.device("cpu"), torch.float32, "test")


@dataclass(frozen=True)
class Case:
    path: Path
    tokenizer: TextTokenizer
    settings: TaskSettings

    @cached_property
    def task(self) -> Task[Any]:
        return open_task(self.settings, ColumnSettings()).fit_to(self.path)

    @cached_property
    def examples(self) -> list[Any]:
        return list(self.task.load(self.path, ExampleCounts()))

    @cached_property
    def encoded(self) -> EncodedExamples:
        return self.task.encode(self.examples, self.tokenizer, ExampleCounts())

    @property
    def window(self) -> Window:
        return Window(self.examples, self.encoded)

    def module(self) -> TaskModule:
        torch.manual_seed(0)
        settings = EncoderSettings(
            vocab_size=self.tokenizer.vocab_size,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=32,
            hidden_dropout_prob=0,
            attention_probs_dropout_prob=0,
            initializer_range=0.1,
        )
        return self.task.module(BertEncoder(settings, needs_pooler(settings, self.task.head_kind)))


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    texts = [f"the {c} {t} is here and there nothing else to see at all no other what" for c in COLOURS for t in THINGS]
    return train_tokenizer(iter(texts * 3), TokenizerSettings(vocab_size=120), seed=0)[0]


@pytest.fixture(params=VARIANTS, scope="module")
def case(request: pytest.FixtureRequest, tokenizer: TextTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Case:
    path = tmp_path_factory.mktemp("task") / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[request.param]), encoding="utf-8")
    return Case(path, tokenizer, TaskSettings.model_validate({"max_length": 32, **VARIANTS[request.param]}))


def test_every_kind_is_tested() -> None:
    assert {variant["name"] for variant in VARIANTS.values()} == set(TASKS)


def test_every_data_set_is_of_the_kind_that_the_settings_say() -> None:
    homes: dict[TaskKind, Any] = {
        "classification": classification,
        "regression": regression,
        "qa": qa,
        "choice": choice,
        "tagging": tagging,
    }
    listed = {name: kind for kind, module in homes.items() for name in module.DATA_SETS}
    assert listed == KINDS


@pytest.mark.parametrize("name", KINDS)
def test_every_data_set_opens_from_its_name(name: str) -> None:
    task = open_task(TaskSettings.model_validate({"name": name}), ColumnSettings())
    assert (task.name, task.kind) == (name, KINDS[name])  # type: ignore[index]


def test_every_restricted_setting_exists() -> None:
    assert set(FIELDS_OF_KINDS) <= set(TaskSettings.model_fields)


def gradient_of(module: Any, batches: list[Batch]) -> dict[str, torch.Tensor]:
    """Of the loss of one step, as the loop sums it."""
    counts: dict[str, int] = {}
    for batch in batches:
        for name, count in module.counts(batch).items():
            counts[name] = counts.get(name, 0) + count
    for batch in batches:
        sum(term.coefficient * term.total / counts[term.name] for term in module(batch)).backward()
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def test_counts_are_told_before_the_loss(case: Case) -> None:
    module = case.module()
    batch = case.encoded.batch(range(len(case.encoded)))
    assert {term.name: term.count for term in module(batch)} == module.counts(batch)


def test_the_gradient_does_not_depend_on_micro_batches(case: Case) -> None:
    def gradients(size: int) -> dict[str, torch.Tensor]:
        loader = ExampleLoader(case.encoded, seed=1, batch_size=12, micro_batch_size=size)
        return gradient_of(case.module(), next(loader.steps(loader.start())).batches)

    whole, cut = gradients(12), gradients(5)
    assert whole.keys() == cut.keys()
    for name in whole:
        torch.testing.assert_close(whole[name], cut[name], rtol=1e-4, atol=1e-6)  # fp32 sums in another order


def test_the_module_has_an_encoder_and_a_head_and_nothing_else(case: Case) -> None:
    module = case.module()
    assert isinstance(module, nn.Module)
    assert [name for name, _ in module.named_children()] == ["encoder", "head"]


def test_predictions_do_not_depend_on_what_stands_beside_them(case: Case) -> None:
    module: Any = case.module()
    module.eval()
    together = predict_window(case.task, module, case.window, CPU)
    for number in (0, 7):
        alone = [case.examples[number]]
        encoded = case.task.encode(alone, case.tokenizer, ExampleCounts())
        [prediction] = predict_window(case.task, module, Window(alone, encoded), CPU)
        assert_alike(prediction, together[number])


def assert_alike(one: Any, other: Any) -> None:
    """Equal, numbers up to rounding."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_alike(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_alike(a, b)
    elif isinstance(one, float):
        assert one == pytest.approx(other, abs=1e-4)  # fp32, other shapes of the matrix products
    else:
        assert one == other


def test_it_overfits_a_handful_and_the_metrics_say_so(case: Case) -> None:
    module: Any = case.module()
    optimizer = torch.optim.AdamW(module.parameters(), lr=5e-3)
    batch = case.encoded.batch(range(len(case.encoded)))
    for _ in range(150):
        loss = sum(term.coefficient * term.total / term.count for term in module(batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    module.eval()
    _, score = measure(case.task, module, [case.window], CPU)
    assert score.num_examples == len(case.examples)
    metrics = score.metrics()
    assert metrics[first := next(iter(metrics))] >= FIRST[first], metrics
    assert score.degenerate() is None


FIRST = {"accuracy": 0.99, "f1_micro": 0.99, "pearson": 0.99, "f1": 99.0, "overall_f1": 0.99}
"""The first figure of each kind, by which runs are compared, and what it is where everything was learned by heart."""


def test_a_saved_model_answers_the_same(case: Case, tmp_path: Path) -> None:
    module: Any = case.module()
    module.eval()
    save_finetuned(module, case.task, case.tokenizer, tmp_path)
    predictor = load_predictor(tmp_path, device="cpu")
    assert (predictor.task.kind, predictor.task.labels) == (case.task.kind, case.task.labels)
    again = list(predictor(case.task.load_rows(case.path)))
    for prediction, answer in zip(predict_window(case.task, module, case.window, CPU), again, strict=True):
        assert_alike(prediction, {name: answer[name] for name in prediction})


def test_an_ensemble_of_one_model_is_that_model(case: Case) -> None:
    module: Any = case.module()
    module.eval()
    batch = case.encoded.batch(range(len(case.encoded)))
    with torch.inference_mode():
        outputs = module.outputs(batch)
    once = case.task.decode(case.examples, case.encoded, outputs)
    thrice = case.task.decode(case.examples, case.encoded, case.task.combine([outputs] * 3))
    choices = ("label", "labels", "answer", "choice", "tags")
    assert [[p[k] for k in choices if k in p] for p in once] == [[p[k] for k in choices if k in p] for p in thrice]
