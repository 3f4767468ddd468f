"""What every kind of task promises, for each entry of TASKS in each of its variants, on each family of encoders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.captured_steps import assert_captured_alike, assert_filled_alike, assert_gradients
from support.files import write_rows
from support.sizes import sizes_of
from unmask.batch import Batch
from unmask.experiments.compare import compare
from unmask.finetuning.run import save_finetuned
from unmask.inference.example_sets import ExampleSet, measure, predict_set
from unmask.inference.predictor import load_predictor
from unmask.models.encoder import new_encoder
from unmask.models.heads.heads import needs_pooler
from unmask.models.kernels.products import packed_weights
from unmask.models.settings import EncoderSettings
from unmask.tasks.base import ExampleCounts, Task, TaskModule
from unmask.tasks.choice import layouts
from unmask.tasks.encoded import EncodedExamples, ExampleLoader
from unmask.tasks.kinds import FACTS
from unmask.tasks.qa import squad
from unmask.tasks.settings import FIELDS_OF_KINDS, KINDS, ColumnSettings, TaskSettings
from unmask.tasks.table import TASKS, open_task
from unmask.tasks.tagging import files
from unmask.tasks.text import data_sets as texts
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer
from unmask.training.device import Compute
from unmask.training.run.best import choose_metric

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
ROWS["unanswerable"] = [row | ({} if n % 3 else {"answers": []}) for n, row in enumerate(ROWS["qa"])]
ROWS["answerability"] = ROWS["unanswerable"]
ROWS["bilstm"] = ROWS["probe"] = ROWS["tagging"]
VARIANTS: dict[str, dict[str, Any]] = {
    "classification": {"name": "classification"},
    "pairs": {"name": "classification"},
    "multi_label": {"name": "classification", "multi_label": True},
    "regression": {"name": "regression"},
    "qa": {"name": "qa", "max_length": 16, "doc_stride": 5},
    "unanswerable": {"name": "qa", "max_length": 16, "doc_stride": 5, "unanswerable": True},
    "answerability": {"name": "qa", "max_length": 16, "doc_stride": 5, "unanswerable": True, "answerability": True},
    "choice": {"name": "choice"},
    "tagging": {"name": "tagging", "max_length": 8, "doc_stride": 3},
    "bilstm": {"name": "tagging", "max_length": 8, "doc_stride": 3, "tagging_head": "bilstm", "bilstm_size": 32},
    "probe": {"name": "tagging", "max_length": 8, "doc_stride": 3, "feature_layers": "weighted-all"},
}
"""Every kind must stand here (`test_every_kind_is_tested`); some with windows shorter than their texts."""

FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"max_position_embeddings": 34},  # the first two are never used
    "electra": {"embedding_size": 16},
    "gpt1": {},
}
ALL = [(variant, family) for family in FAMILIES for variant in VARIANTS]
SOME = [*ALL[: len(VARIANTS)], ("classification", "gpt1"), ("qa", "roberta"), ("choice", "electra")]
"""All on BERT, and what other families have otherwise once."""

CPU = Compute(torch.device("cpu"), torch.float32, "test")


@dataclass(frozen=True)
class Case:
    path: Path
    tokenizer: TextTokenizer
    settings: TaskSettings
    family: str

    @cached_property
    def task(self) -> Task[Any]:
        return open_task(self.settings, ColumnSettings()).fit_to(self.path)

    @cached_property
    def examples(self) -> list[Any]:
        return list(self.task.load(self.path, ExampleCounts()))

    @cached_property
    def encoded(self) -> EncodedExamples:
        return self.encode(self.examples)

    def encode(self, examples: list[Any]) -> EncodedExamples:
        return self.task.encode(examples, self.tokenizer, ExampleCounts(), self.encoder_settings.type_vocab_size)

    @property
    def examples_set(self) -> ExampleSet:
        return ExampleSet(self.examples, self.encoded)

    @cached_property
    def encoder_settings(self) -> EncoderSettings:
        inner = 4 * 32 if self.family == "gpt1" else 64
        sizes = sizes_of(width=32, layers=2, heads=2, inner=inner, positions=32, std=0.1, dropout=0)
        given = {"architecture": self.family, "vocab_size": self.tokenizer.vocab_size}
        return EncoderSettings.model_validate({**given, **sizes, **FAMILIES[self.family]})

    def module(self) -> TaskModule:
        torch.manual_seed(0)
        settings = self.encoder_settings
        return self.task.module(new_encoder(settings, needs_pooler(settings, self.task.head_kind)))


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    texts = [f"the {c} {t} is here and there nothing else to see at all no other what" for c in COLOURS for t in THINGS]
    return learn_tokenizer(iter(texts * 3), TokenizerSettings(vocab_size=120), seed=0)[0]


@pytest.fixture(params=SOME, ids=lambda each: f"{each[0]} on {each[1]}", scope="module")
def case(request: pytest.FixtureRequest, tokenizer: TextTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Case:
    variant, family = request.param
    path = write_rows(tmp_path_factory.mktemp("task") / "train.jsonl", *ROWS[variant])
    settings = TaskSettings.model_validate({"max_length": 32, **VARIANTS[variant]})
    return Case(path, tokenizer, settings, family)


def assert_listed(names: Iterable[str], table: Iterable[str], where: str) -> None:
    missing = [name for name in names if name not in table]
    assert not missing, f"add a row for {', '.join(missing)} to {where} (docs/architecture.md, Adding to it)"


def test_every_kind_is_tested() -> None:
    assert_listed(FACTS, TASKS, "TASKS of tasks/table.py")
    assert_listed(TASKS, FACTS, "FACTS of tasks/kinds.py")
    assert_listed(TASKS, {variant["name"] for variant in VARIANTS.values()}, "VARIANTS in this file")
    assert_listed(VARIANTS, ROWS, "ROWS in this file")
    assert_listed(TASKS, {VARIANTS[variant]["name"] for variant in ENSEMBLES}, "ENSEMBLES in this file")


def test_every_data_set_is_of_the_kind_that_the_settings_say() -> None:
    homes = {"qa": squad.DATA_SETS, "choice": layouts.DATA_SETS, "tagging": files.DATA_SETS}
    listed = {name: kind for kind, data_sets in homes.items() for name in data_sets}
    assert listed | {name: KINDS[name] for name in texts.DATA_SETS} == KINDS  # those of texts are of two kinds


@pytest.mark.parametrize("name", KINDS)
def test_every_data_set_opens_from_its_name(name: str) -> None:
    task = open_task(TaskSettings.model_validate({"name": name}), ColumnSettings())
    assert (task.settings.name, task.kind) == (name, KINDS[name])  # type: ignore[index]


def test_every_restricted_setting_exists() -> None:
    assert set(FIELDS_OF_KINDS) <= set(TaskSettings.model_fields)


@pytest.mark.parametrize("name", ["qa", "tagging", "squad2", "wnut17"])
def test_next_token_prediction_is_not_for_tasks_that_ask_more_than_one_thing_of_a_text(name: str) -> None:
    with pytest.raises(ValueError, match="auxiliary_lm_weight is for classification, regression and choice, not for"):
        TaskSettings.model_validate({"name": name, "auxiliary_lm_weight": 0.5})


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
    assert {term.name for term in module(batch)} == module.counts(batch).keys()


def test_the_gradient_does_not_depend_on_micro_batches(case: Case) -> None:
    def gradients(size: int) -> dict[str, torch.Tensor]:
        loader = ExampleLoader(case.encoded, seed=1, batch_size=12, micro_batch_size=size)
        return gradient_of(case.module(), next(loader.steps(loader.start())).batches)

    torch.testing.assert_close(gradients(12), gradients(5), rtol=1e-4, atol=1e-6)  # fp32 sums in another order


def test_padded_batches_and_captured_steps_change_nothing(case: Case) -> None:
    """Three steps in micro-batches, as they come and in padded batches of a few shapes; dropout is off."""
    loader = ExampleLoader(case.encoded, seed=1, batch_size=7, micro_batch_size=4)
    steps = [step.batches for step in islice(loader.steps(loader.start()), 3)]
    assert_captured_alike(case.module, lambda: steps, case.module().counts)


def test_the_module_has_an_encoder_and_a_head_and_nothing_else(case: Case) -> None:
    module = case.module()
    assert isinstance(module, nn.Module)
    assert [name for name, _ in module.named_children()] == ["encoder", "head"]


def test_predictions_do_not_depend_on_what_stands_beside_them(case: Case) -> None:
    module: Any = case.module()
    module.eval()
    together = predict_set(case.task, module, case.examples_set, CPU)
    for number in (0, 7):
        alone = [case.examples[number]]
        [prediction] = predict_set(case.task, module, ExampleSet(alone, case.encode(alone)), CPU)
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
    is_probe = case.settings.reads_features and case.settings.tagging_head == "linear"  # on random vectors that stay
    module.eval()
    _, untrained = measure(case.task, module, [case.examples_set], CPU)
    optimizer = torch.optim.AdamW(module.parameters(), lr=5e-2 if is_probe else 5e-3)
    batch = case.encoded.batch(range(len(case.encoded)))
    for _ in range(90):
        counts = module.counts(batch)
        loss = sum(term.coefficient * term.total / counts[term.name] for term in module(batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    module.eval()
    _, score = measure(case.task, module, [case.examples_set], CPU)
    assert score.num_examples == len(case.examples)
    metrics = score.metrics()
    first = choose_metric(metrics, None, score.lower_is_better)
    assert_listed([first.name], FIRST, "FIRST in this file")
    assert first.is_better(metrics[first.name], untrained.metrics()[first.name]), (
        f"worse than untrained: is {first.name} in lower_is_better?"
    )
    assert not first.is_better(FIRST[first.name] - 0.1 * is_probe, metrics[first.name]), metrics
    if first.name not in WITHOUT_FLOOR:
        found = case.task.floors(case.encoded, case.encoded)
        assert first.name in found, f"add to `floors` of the task what guessing gets of {first.name}"
    assert score.degenerate() is None


FIRST = {"accuracy": 0.99, "f1_micro": 0.99, "pearson": 0.99, "f1": 99.0, "best_f1": 99.0, "overall_f1": 0.99}
"""The first figure of each kind, by which runs are compared, and what it is where everything was learned by heart."""

WITHOUT_FLOOR = {"f1"}
"""That of question answering: how far a random span covers an answer is in no formula."""


def test_scores_are_those_of_what_is_decoded(case: Case) -> None:
    """To the last bit, though a score is given less."""
    module: Any = case.module()
    module.eval()
    _, measured = measure(case.task, module, [case.examples_set], CPU)
    expected = case.task.score()
    with packed_weights(module):
        expected.add(case.examples, predict_set(case.task, module, case.examples_set, CPU))
    assert measured.metrics() == expected.metrics()
    assert measured.degenerate() == expected.degenerate()
    if expected.reliability is not None:
        assert measured.reliability is not None
        assert measured.reliability.figures() == expected.reliability.figures()
        assert expected.reliability.num_decisions


@pytest.mark.parametrize("case", ALL, indirect=True, ids=str)
def test_a_saved_model_answers_the_same(case: Case, tmp_path: Path) -> None:
    module: Any = case.module()
    module.eval()
    save_finetuned(module, case.task, case.tokenizer, tmp_path)
    predictor = load_predictor(tmp_path, device="cpu")
    assert (predictor.task.kind, predictor.task.labels) == (case.task.kind, case.task.labels)
    again = list(predictor.predict_rows(case.task.load_rows(case.path)))
    for prediction, answer in zip(predict_set(case.task, module, case.examples_set, CPU), again, strict=True):
        assert_alike(prediction, {name: answer[name] for name in prediction})
    assert compare(predictor, predictor, case.path)["answered_differently"] == 0


def test_an_ensemble_of_one_model_is_that_model(case: Case) -> None:
    module: Any = case.module()
    module.eval()
    batch = case.encoded.batch(range(len(case.encoded)))
    with torch.inference_mode():
        outputs = module.outputs(batch)
    alone = case.task.decode(case.examples, case.encoded, outputs)
    for count in (1,) if case.task.kind == "qa" else (1, 3):  # scores of spans add up
        assert_alike(case.task.decode(case.examples, case.encoded, case.task.combine([outputs] * count)), alone)


HALVES = [[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.6, 0.4]], [[0.7, 0.3], [0.4, 0.6]]
ENSEMBLES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor], Any]] = {
    # from what a member says to its outputs, from outputs to what is said, and two members' with what they say together
    "classification": (lambda said: said.log() + 3, lambda outputs: outputs.softmax(-1), HALVES),
    "tagging": (lambda said: said.log() - 2, lambda outputs: outputs.softmax(-1), HALVES),
    "choice": (
        torch.log,
        lambda outputs: outputs.softmax(-1),
        ([[0.5, 0.5, 0.0], [0.2, 0.2, 0.6]], [[0.3, 0.7, 0.0], [0.4, 0.3, 0.3]], [[0.4, 0.6, 0.0], [0.3, 0.25, 0.45]]),
    ),
    "multi_label": (torch.logit, torch.sigmoid, HALVES),
    "regression": (lambda said: said, lambda outputs: outputs, ([[1.0], [-2.0]], [[2.0], [3.0]], [[1.5], [0.5]])),
    "qa": (
        lambda said: said,
        lambda outputs: outputs,
        ([[1.0, 2.0], [0.5, -1.0]], [[3.0, -1.0], [0.5, 4.0]], [[4.0, 1.0], [1.0, 3.0]]),
    ),
}
"""By variant: mean probabilities, mean values, or sums of the logits of spans."""


@pytest.mark.parametrize("variant", ENSEMBLES)
def test_two_that_differ_are_averaged(variant: str) -> None:
    to_outputs, to_said, (one, other, together) = ENSEMBLES[variant]
    task = open_task(TaskSettings.model_validate(VARIANTS[variant]), ColumnSettings())
    combined = task.combine([to_outputs(torch.tensor(said)) for said in (one, other)])
    # float32 logarithms and exponentials
    torch.testing.assert_close(to_said(combined), torch.tensor(together), rtol=1e-5, atol=1e-6)


def test_a_batch_as_it_comes_is_computed_on_the_device_alone(case: Case, counting: torch.device) -> None:
    """No value of it is waited for, but how many tokens have a label."""
    if case.task.kind == "choice" or case.settings.reads_features:
        pytest.skip("PyTorch's LSTM and autocast have no meta device, and the most choices of a unit are waited for")
    module, batch = case.module(), case.encoded.batch(range(len(case.encoded))).to(counting)
    module.to(counting)
    assert_gradients(module, batch)
    with torch.inference_mode():
        assert module.eval().outputs(batch).device == counting


def test_a_filled_batch_waits_for_no_value_of_the_device(case: Case, valueless: torch.device) -> None:
    assert_filled_alike(case.module(), case.encoded.batch(range(len(case.encoded))), valueless)
