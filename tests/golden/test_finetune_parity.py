"""Fine-tuning against plain `transformers` models and torch's AdamW: the same losses and weights after five steps.

Learning rate, weight decay and clipping are larger than anybody's, so that each leaves its mark on the weights in five
steps; `test_the_comparison_can_fail` leaves each of them out and finds that it is missed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from support.sizes import small
from unmask.batch import Batch
from unmask.models.bert import BertEncoder
from unmask.models.family import HeadKind
from unmask.models.heads.heads import needs_pooler
from unmask.models.hub.directory import TunedHead, save_model, weights_of
from unmask.tasks.base import Task
from unmask.tasks.encoded import EncodedExamples, ExampleLoader
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import open_task
from unmask.training.device import choose_compute
from unmask.training.loop import Hooks, train
from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer, build_optimizer
from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from unmask.training.state import StepResult, TrainState
from unmask.training.stepping.eager import EagerStepper
from unmask.training.steps import Learner

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

LOSS_TOLERANCE = 1e-5
"""Losses are of order 1, so this is some 100 roundings of fp32 (6e-8 each); measured are at most 1e-6."""
WEIGHT_TOLERANCE = 5e-5
"""Of how far a tensor has gone; measured are at most 4.5e-6. What the comparison must notice is over .1."""

FLAT: dict[str, tuple[str, ...]] = {
    "every kind": ("attention.self.key.bias",),  # adds the same to all scores of a query
    "qa": ("layer.1.output.LayerNorm.bias", "qa_outputs.bias"),  # add the same to all positions
    "choice": ("classifier.bias",),  # adds the same to all choices
}
"""Ends of the names of tensors that a softmax makes of no account: their gradient is rounding and nothing else, which
Adam blows up to full steps. They are not compared."""

STEPS, BATCH_SIZE, SEED = 5, 3, 7
"""Batches of three of eight examples: the last of an epoch has two, and the second epoch has another order."""
SETTINGS = OptimizerSettings(learning_rate=2e-3, weight_decay=1.0)
MAX_NORM = 0.05
SIZES = small(vocab=60, width=24, layers=2, heads=3, inner=40, positions=16, std=0.2, dropout=0.0)

LENGTHS = (5, 9, 3, 12, 7, 7, 4, 10)
"""Of the eight examples: none of the batches is without padding on the other side."""


@dataclass(frozen=True)
class Kind:
    """A kind of task on invented tokens.

    Attributes:
        task: what builds our module.
        model: of `transformers`.
        examples: eight, encoded.
        loss: of that model, for a padded batch.
    """

    task: Task[Any]
    model: Any
    examples: EncodedExamples
    loss: Callable[[Any, dict[str, Tensor], Tensor, Batch], Tensor]


def rows(lengths: tuple[int, ...]) -> tuple[list[list[int]], list[int]]:
    """Tokens, none of them the padding, and where segment B begins."""
    generator = np.random.default_rng(0)
    return [generator.integers(1, 60, length).tolist() for length in lengths], [length // 2 for length in lengths]


def own_loss(model: Any, inputs: dict[str, Tensor], mask: Tensor, batch: Batch) -> Tensor:
    """The model's own."""
    return model(**inputs, labels=batch.columns["labels"]).loss


def loss_of_tokens(model: Any, inputs: dict[str, Tensor], mask: Tensor, batch: Batch) -> Tensor:
    labels = torch.full(mask.shape, -100)
    labels[mask] = batch.columns["labels"]
    return model(**inputs, labels=labels).loss


def loss_of_spans(model: Any, inputs: dict[str, Tensor], mask: Tensor, batch: Batch) -> Tensor:
    """The mean of the two as in `transformers`, but that its softmax goes over padding as well."""
    answer = model(**inputs)
    logits = [part.masked_fill(~mask, float("-inf")) for part in (answer.start_logits, answer.end_logits)]
    targets = [batch.columns["start_positions"], batch.columns["end_positions"]]
    losses = [functional.cross_entropy(part, target) for part, target in zip(logits, targets, strict=True)]
    return (losses[0] + losses[1]) / 2


def loss_of_choices(model: Any, inputs: dict[str, Tensor], mask: Tensor, batch: Batch) -> Tensor:
    grouped = {name: value.view(-1, 2, mask.shape[1]) for name, value in inputs.items()}
    return model(**grouped, labels=batch.columns["labels"]).loss


def make_kind(name: str) -> Kind:
    ids, seconds = rows(LENGTHS)
    labels = np.array([0, 2, 1, 1, 0, 2, 2, 0], dtype=np.int64)
    if name == "classification":
        settings = TaskSettings(name="classification", labels=["a", "b", "c"], max_length=16)
        examples = EncodedExamples.from_lists(ids, seconds, unit_columns={"labels": labels})
        return Kind(open_task(settings, ColumnSettings()), AutoModelForSequenceClassification, examples, own_loss)
    if name == "regression":
        examples = EncodedExamples.from_lists(ids, seconds, unit_columns={"labels": (labels / 2).astype(np.float32)})
        settings = TaskSettings(name="regression", max_length=16)
        return Kind(open_task(settings, ColumnSettings()), AutoModelForSequenceClassification, examples, own_loss)
    if name == "tagging":
        targets = np.arange(sum(LENGTHS), dtype=np.int64) % 4 - 1
        targets[targets < 0] = -100
        examples = EncodedExamples.from_lists(ids, seconds, token_columns={"labels": targets})
        settings = TaskSettings(name="tagging", labels=["O", "B-a", "I-a"], max_length=16)
        return Kind(open_task(settings, ColumnSettings()), AutoModelForTokenClassification, examples, loss_of_tokens)
    if name == "qa":
        ends = {"start_positions": [0, 4, 1, 7, 3, 2, 0, 5], "end_positions": [0, 8, 2, 11, 3, 6, 0, 5]}
        columns = {side: np.array(places, dtype=np.int64) for side, places in ends.items()}
        examples = EncodedExamples.from_lists(ids, seconds, unit_columns=columns)
        settings = TaskSettings(name="qa", max_length=16)
        return Kind(open_task(settings, ColumnSettings()), AutoModelForQuestionAnswering, examples, loss_of_spans)
    ids, seconds = rows(LENGTHS + LENGTHS[::-1])
    examples = EncodedExamples.from_lists(ids, seconds, rows_of_units=[2] * 8, unit_columns={"labels": labels % 2})
    settings = TaskSettings(name="choice", max_length=16)
    return Kind(open_task(settings, ColumnSettings()), AutoModelForMultipleChoice, examples, loss_of_choices)


def make_start(kind: Kind, directory: Path) -> Any:
    """Our module with random weights, which are saved as well."""
    torch.manual_seed(0)
    head_kind: HeadKind = kind.task.head_kind
    module: Any = kind.task.module(BertEncoder(SIZES, needs_pooler(SIZES, head_kind)))
    save_model(
        directory,
        module.encoder,
        tuned=TunedHead(module.head, head_kind, labels=kind.task.labels or None, problem_type=kind.task.problem_type),
    )
    return module


def our_losses(kind: Kind, module: Any) -> list[float]:
    losses: list[float] = []

    def on_step(state: TrainState, result: StepResult) -> None:
        losses.append(sum(state.take_means().values()))

    loader = ExampleLoader(kind.examples, SEED, BATCH_SIZE, BATCH_SIZE)
    compute = choose_compute("cpu", "fp32")
    optimizer = build_optimizer(module, SETTINGS)
    train(
        Learner(module, module.counts),
        loader.steps(loader.start()),
        ScheduledOptimizer(optimizer, Schedule(ScheduleSettings(warmup_steps=1))),
        EagerStepper(module, optimizer, MAX_NORM, compute),
        TrainSettings(steps=STEPS, batch_size=BATCH_SIZE, max_grad_norm=MAX_NORM),
        TrainState(),
        Hooks(on_step),
    )
    return losses


def their_losses(
    kind: Kind, model: Any, decay: float = SETTINGS.weight_decay, max_norm: float = MAX_NORM, all_decay: bool = False
) -> list[float]:
    """The same steps, written out."""
    plain = [p for name, p in model.named_parameters() if not all_decay and ("bias" in name or "LayerNorm" in name)]
    ids = {id(p) for p in plain}
    groups = [
        {"params": [p for p in model.parameters() if id(p) not in ids], "weight_decay": decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=SETTINGS.learning_rate,
        betas=SETTINGS.betas,
        eps=SETTINGS.epsilon,
    )
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 1, STEPS)
    loader = ExampleLoader(kind.examples, SEED, BATCH_SIZE, BATCH_SIZE)
    losses = []
    model.train()
    for _, step in zip(range(STEPS), loader.steps(loader.start()), strict=False):
        (batch,) = step.batches
        lengths = torch.tensor(batch.lengths)
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        inputs = {"attention_mask": mask.long()}
        for name in ("input_ids", "token_type_ids"):
            inputs[name] = torch.zeros(mask.shape, dtype=torch.int64)
            inputs[name][mask] = getattr(batch, name)
        loss = kind.loss(model, inputs, mask, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def weight_difference(kind: Kind, module: Any, model: Any, start: dict[str, Tensor]) -> float:
    """The largest over all tensors that are not flat: how far apart, by how far ours went."""
    ours = weights_of(module.encoder, {kind.task.head_kind: module.head}, prefixed=True)
    theirs = model.state_dict()
    assert set(ours) == set(theirs)
    flat = (*FLAT["every kind"], *FLAT.get(kind.task.kind, ()))
    compared = [name for name in ours if not name.endswith(flat)]
    return max(float((ours[name] - theirs[name]).norm() / (ours[name] - start[name]).norm()) for name in compared)


KINDS = ("classification", "regression", "tagging", "qa", "choice")


@pytest.mark.parametrize("name", KINDS)
def test_five_steps_give_the_same_losses_and_weights(name: str, tmp_path: Path) -> None:
    kind = make_kind(name)
    module = make_start(kind, tmp_path)
    model = kind.model.from_pretrained(tmp_path)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    ours, theirs = our_losses(kind, module), their_losses(kind, model)
    assert np.abs(np.subtract(ours, theirs)).max() < LOSS_TOLERANCE
    assert len(set(ours)) == STEPS
    assert weight_difference(kind, module, model, start) < WEIGHT_TOLERANCE


@pytest.mark.parametrize("change", [{"decay": 0.0}, {"max_norm": 1e9}, {"all_decay": True}], ids=str)
def test_the_comparison_can_fail(change: dict[str, Any], tmp_path: Path) -> None:
    kind = make_kind("classification")
    module = make_start(kind, tmp_path)
    model = kind.model.from_pretrained(tmp_path)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    our_losses(kind, module)
    their_losses(kind, model, **change)
    assert weight_difference(kind, module, model, start) > 0.1
