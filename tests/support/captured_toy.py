"""A small module in training, by captured steps or by steps computed as they come.

On the CPU nothing is captured, and the same is computed: padded batches, flat parameters, decisions on the device.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unmask.batch import Batch, LossTerm, StepBatches, pack
from unmask.models.buckets import NO_LABEL, SEQUENCES, TOKENS, Padding, Paddings
from unmask.models.dropout import dropout
from unmask.models.trained import TrainedModule
from unmask.training.captured.stepper import CapturedStepper
from unmask.training.device import Compute
from unmask.training.divergence import BadStep
from unmask.training.loop import Hooks, train
from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer, build_optimizer
from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from unmask.training.state import StepResult, TrainState
from unmask.training.stepping.eager import EagerStepper
from unmask.training.stepping.protocol import StepFigures, Stepper
from unmask.training.steps import Learner

CPU = Compute(torch.device("cpu"), torch.float32, "a test")
LONGEST = 12


class Toy(TrainedModule):
    """Two terms: a number for each token, some of which have a target, and one for each sequence.

    Of the columns, `add` is a loss of its own, and `steep` a gradient without one. One layer is frozen, and one is of
    no use.
    """

    paddings: Paddings = {  # noqa: RUF012  as a module's property
        "labels": Padding(TOKENS, NO_LABEL),
        "targets": Padding(SEQUENCES, NO_LABEL),
        "add": Padding(SEQUENCES, 0.0),
        "steep": Padding(SEQUENCES, 0.0),
    }

    def __init__(self, dropout_prob: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.of_tokens = nn.Linear(8, 1)
        self.of_sequences = nn.Linear(8, 1)
        self.pooler = nn.Linear(8, 8)
        self.dropout_prob = dropout_prob

    def forward(self, batch: Batch) -> list[LossTerm]:
        hidden = torch.tanh(self.frozen(self.embedding(batch.input_ids)))
        hidden = dropout(hidden, self.dropout_prob, self.training)
        columns = batch.columns
        of_tokens = squares(self.of_tokens(hidden).squeeze(1), columns["labels"])
        first = dropout(hidden[batch.first_tokens], self.dropout_prob, self.training)
        of_sequences = squares(self.of_sequences(first).squeeze(1), columns["targets"])
        weights = self.of_sequences.weight.sum()
        of_sequences = of_sequences + columns["add"].sum() + columns["steep"].sum() * (weights - weights.detach())
        return [LossTerm("tokens", of_tokens), LossTerm("sequences", of_sequences, coefficient=0.5)]


def squares(values: Tensor, labels: Tensor) -> Tensor:
    """The summed squared errors of those that have a label."""
    errors = torch.where(labels.isnan(), 0.0, values - labels.nan_to_num())
    return (errors**2).sum()


def count_targets(batch: Batch) -> dict[str, int]:
    columns = {"tokens": batch.columns["labels"], "sequences": batch.columns["targets"]}
    return {name: int((~column.isnan()).sum()) for name, column in columns.items()}


def new_batch(
    lengths: Sequence[int], seed: int = 0, *, labelled: float = 0.3, add: float = 0.0, steep: float = 0.0
) -> Batch:
    """Sequences of random tokens, a share of which has a label."""
    draw = random.Random(seed)
    batch = pack([[draw.randrange(20) for _ in range(length)] for length in lengths])
    labels = [draw.gauss(0, 1) if draw.random() < labelled else math.nan for _ in range(batch.num_tokens)]
    targets = [draw.gauss(0, 1) for _ in lengths]
    zeros = torch.zeros(len(lengths))
    return batch.with_columns(
        labels=torch.tensor(labels),
        targets=torch.tensor(targets),
        add=zeros.index_fill(0, torch.tensor([0]), add),
        steep=zeros.index_fill(0, torch.tensor([0]), steep),
    )


def endless_steps(start: int = 0, bad: dict[int, dict[str, float]] | None = None) -> Iterator[StepBatches[int]]:
    """Endless steps of one or two micro-batches of all sizes, the same for the same number; `bad` ones are poisoned."""
    number = start
    while True:
        draw = random.Random(number)
        cuts = [[draw.randint(1, LONGEST) for _ in range(draw.randint(1, 30))] for _ in range(draw.randint(1, 2))]
        poison = (bad or {}).get(number, {})
        add, steep = poison.get("add", 0.0), poison.get("steep", 0.0)
        batches = [new_batch(lengths, 10 * number + part, add=add, steep=steep) for part, lengths in enumerate(cuts)]
        number += 1
        yield StepBatches(batches, number, number / 10)


@dataclass
class Run:
    """A module in training, and its rows."""

    module: Toy
    optimizer: torch.optim.Optimizer
    stepper: Stepper
    schedule: Schedule
    state: TrainState = field(default_factory=TrainState)
    rows: list[Any] = field(default_factory=list)
    bad_steps: list[BadStep] = field(default_factory=list)
    shown: list[list[int]] = field(default_factory=list)

    def weights(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.module.parameters()])

    def moments(self) -> Tensor:
        states = [self.optimizer.state[p] for p in self.module.parameters() if p in self.optimizer.state]
        return torch.cat([torch.cat([state[name].flatten() for name in sorted(state)]) for state in states])

    def train(
        self,
        settings: dict[str, Any],
        steps: Callable[[int], Iterator[StepBatches[int]]] | None = None,
        *,
        log_every: int = 1,
        on_bad_step: Callable[[TrainState, BadStep], None] = lambda state, bad: None,
        on_step: Callable[[TrainState], None] = lambda state: None,
        is_due: Callable[[TrainState], bool] = lambda state: False,
    ) -> None:
        steps_from = endless_steps if steps is None else steps

        def note_bad(state: TrainState, bad: BadStep) -> Iterator[StepBatches[int]]:
            self.bad_steps.append(bad)
            on_bad_step(state, bad)
            return steps_from(state.position or 0)

        def prepare(batch: Batch) -> Batch:
            self.shown.append(batch.input_ids.tolist())
            return batch

        def note(state: TrainState, result: StepResult) -> None:
            state.newest = result
            on_step(state)
            if state.step % log_every == 0:
                self.rows.append((state.step, state.tokens, state.epochs, state.position, result, state.take_means()))

        train(
            Learner(self.module, count_targets, prepare),
            steps_from(self.state.position or 0),
            ScheduledOptimizer(self.optimizer, self.schedule),
            self.stepper,
            TrainSettings.model_validate(settings),
            self.state,
            Hooks(note, is_due=lambda state: state.step % log_every == 0 or is_due(state), on_bad_step=note_bad),
        )


def new_run(
    kind: str,
    *,
    dropout_prob: float = 0.0,
    max_grad_norm: float | None = 1.0,
    spike_factor: float | None = None,
    learning_rate: float = 1e-2,
    bias_correction: bool = True,
    schedule: ScheduleSettings = ScheduleSettings(name="constant"),  # noqa: B008  frozen
) -> Run:
    module = Toy(dropout_prob)
    optimizer = build_optimizer(
        module, OptimizerSettings(learning_rate=learning_rate, epsilon=1e-4, bias_correction=bias_correction)
    )
    stepper: Stepper
    if kind == "eager":
        stepper = EagerStepper(module, optimizer, max_grad_norm, CPU)
        stepper.prepares_ahead = True
    else:
        stepper = CapturedStepper(
            module, optimizer, max_grad_norm, spike_factor, CPU, module.paddings, LONGEST, compiles=False
        )
    torch.manual_seed(1)
    return Run(module, optimizer, stepper, Schedule(schedule))


def assert_same_runs(eager: Run, captured: Run) -> None:
    """The same rows, weights and bad steps, but for rounding: 1e-3 is some hundred roundings, carried on by steps."""
    assert [row[:4] for row in eager.rows] == [row[:4] for row in captured.rows]
    for one, other in zip(eager.rows, captured.rows, strict=True):
        assert one[5] == pytest.approx(other[5], rel=1e-3)
    for first, second in zip(eager.bad_steps, captured.bad_steps, strict=True):
        one, other = first.step, second.step
        batches = zip(one.prepared.batches, other.prepared.batches, strict=True)
        assert (one.number, one.learning_rate, one.tokens) == (other.number, other.learning_rate, other.tokens)
        assert (one.prepared.counts, first.fault) == (other.prepared.counts, second.fault)
        assert first.recent_losses == pytest.approx(second.recent_losses, rel=1e-3)
        assert all(torch.equal(a.input_ids, b.input_ids) for a, b in batches)
    assert (eager.state.step, eager.state.tokens) == (captured.state.step, captured.state.tokens)
    assert eager.state.position == captured.state.position
    torch.testing.assert_close(eager.weights(), captured.weights(), rtol=0, atol=1e-4)


def train_both(
    settings: dict[str, Any],
    steps: Callable[[int], Iterator[StepBatches[int]]] = endless_steps,
    *,
    log_every: int,
    on_step: Callable[[Run, TrainState], None] = lambda run, state: None,
    on_bad_step: Callable[[Run, TrainState, BadStep], None] = lambda run, state, bad: None,
    **options: Any,
) -> tuple[Run, Run]:
    """A run by eager steps and one by captured ones, which have to be the same."""
    eager, captured = new_run("eager", **options), new_run("captured", **options)
    for run in (eager, captured):
        hooks = {"on_step": partial(on_step, run), "on_bad_step": partial(on_bad_step, run)}
        run.train(settings, steps, log_every=log_every, **hooks)
    assert_same_runs(eager, captured)
    return eager, captured


def read_all(place: int, figures: StepFigures) -> bool:
    return True
