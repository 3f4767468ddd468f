"""Recorded steps: what they compute, what they refuse and leave alone, and runs that launch several before they look.

On the CPU nothing is recorded, and the same is computed: filled batches, flat parameters, decisions on the device.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from unmask.batch import Batch, LossTerm, pack
from unmask.errors import Interrupted
from unmask.filling import NO_LABEL, SEQUENCES, TOKENS, Filling, Fillings
from unmask.models.dropout import dropout
from unmask.training.adamw import AdamW
from unmask.training.best import Best, copy_weights
from unmask.training.checkpoint import OPTIMIZER, WEIGHTS, find_checkpoint, restore, save_checkpoint
from unmask.training.device import Compute
from unmask.training.divergence import WINDOW, BadStep, find_fault
from unmask.training.loop import StepResult, TrainState, train
from unmask.training.optimizer import Schedule, build_optimizer
from unmask.training.recent_losses import RecentLosses
from unmask.training.recorded_stepper import RecordedStepper
from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from unmask.training.stepper import EagerStepper, StepFigures, Stepper

CPU = Compute(torch.device("cpu"), torch.float32, "a test")
LONGEST = 12


class Toy(nn.Module):
    """Two terms: a number for each token, some of which have a target, and one for each sequence.

    Of the columns, `add` is a loss of its own, and `steep` a gradient without one. One layer is frozen, and one is of
    no use.
    """

    fillings: Fillings = {  # noqa: RUF012  as a module's property
        "labels": Filling(TOKENS, NO_LABEL),
        "targets": Filling(SEQUENCES, NO_LABEL),
        "add": Filling(SEQUENCES, 0.0),
        "steep": Filling(SEQUENCES, 0.0),
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
        of_tokens, num_tokens = squares(self.of_tokens(hidden).squeeze(1), columns["labels"])
        first = dropout(hidden[batch.first_tokens], self.dropout_prob, self.training)
        of_sequences, num_sequences = squares(self.of_sequences(first).squeeze(1), columns["targets"])
        weights = self.of_sequences.weight.sum()
        of_sequences = of_sequences + columns["add"].sum() + columns["steep"].sum() * (weights - weights.detach())
        return [
            LossTerm("tokens", of_tokens, num_tokens),
            LossTerm("sequences", of_sequences, num_sequences, coefficient=0.5),
        ]


def squares(values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The summed squared errors of those that have a label, and their number."""
    errors = torch.where(labels.isnan(), 0.0, values - labels.nan_to_num())
    return (errors**2).sum(), (~labels.isnan()).sum()


def count(batch: Batch) -> dict[str, int]:
    columns = {"tokens": batch.columns["labels"], "sequences": batch.columns["targets"]}
    return {name: int((~column.isnan()).sum()) for name, column in columns.items()}


def make_batch(
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


@dataclass(frozen=True)
class Step:
    batches: list[Batch]
    after: int
    epochs: float


def make_steps(start: int = 0, bad: dict[int, dict[str, float]] | None = None) -> Iterator[Step]:
    """Endless steps of one or two micro-batches of all sizes, the same for the same number; `bad` ones are poisoned."""
    number = start
    while True:
        draw = random.Random(number)
        cuts = [[draw.randint(1, LONGEST) for _ in range(draw.randint(1, 30))] for _ in range(draw.randint(1, 2))]
        poison = (bad or {}).get(number, {})
        add, steep = poison.get("add", 0.0), poison.get("steep", 0.0)
        batches = [make_batch(lengths, 10 * number + part, add=add, steep=steep) for part, lengths in enumerate(cuts)]
        number += 1
        yield Step(batches, number, number / 10)


@dataclass
class Run:
    """A module in training, and what it tells."""

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
        steps: Iterator[Step] | None = None,
        *,
        log_every: int = 1,
        on_bad_step: Callable[[TrainState, BadStep], None] | None = None,
        on_step: Callable[[TrainState], None] = lambda state: None,
        is_due: Callable[[TrainState], bool] = lambda state: False,
    ) -> None:
        def note_bad(state: TrainState, bad: BadStep) -> None:
            self.bad_steps.append(bad)

        def prepare(batch: Batch) -> Batch:
            self.shown.append(batch.input_ids.tolist())
            return batch

        def note(state: TrainState, result: StepResult) -> None:
            state.newest = result
            on_step(state)
            if state.step % log_every == 0:
                self.rows.append((state.step, state.tokens, state.epochs, state.position, result, state.take_means()))

        train(
            self.module,
            make_steps() if steps is None else steps,
            prepare,
            count,
            self.optimizer,
            self.schedule,
            TrainSettings.model_validate(settings),
            self.state,
            CPU.device,
            CPU.autocast,
            note,
            on_bad_step=on_bad_step or note_bad,
            stepper=self.stepper,
            is_due=lambda state: state.step % log_every == 0 or is_due(state),
            reads_ahead=True,
        )


def begin(
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
    assert isinstance(optimizer, AdamW)
    stepper: Stepper
    if kind == "eager":
        stepper = EagerStepper(module, optimizer, max_grad_norm, CPU.device, CPU.autocast)
    else:
        stepper = RecordedStepper(
            module, optimizer, max_grad_norm, spike_factor, CPU, module.fillings, LONGEST, compiles=False
        )
    torch.manual_seed(1)
    return Run(module, optimizer, stepper, Schedule(schedule))


def never(place: int, figures: StepFigures) -> bool:
    return False


def always(place: int, figures: StepFigures) -> bool:
    return True


ROUNDING = 1e-5
"""fp32: sums of some hundred numbers in another order, a dozen roundings of 6e-8 each."""


# What a step computes


@pytest.mark.parametrize(
    ("lengths", "labelled"),
    [([1], 1.0), ([1], 0.0), ([LONGEST], 0.3), ([1] * 40, 0.5), ([3, 1, 12, 1], 0.0), ([12] * 31, 0.1), ([8] * 4, 0.3)],
    ids=["one token", "no target of a term", "one sequence", "length 1", "none again", "large", "a round number"],
)
def test_the_loss_and_the_gradient_of_a_filled_batch_are_those_of_the_batch(
    lengths: list[int], labelled: float
) -> None:
    runs = [begin(kind, max_grad_norm=None) for kind in ("eager", "recorded")]
    batch = make_batch(lengths, labelled=labelled)
    figures = []
    for run in runs:
        run.stepper.restart([])
        run.stepper.launch([batch], count(batch))
        [told] = run.stepper.read(always)
        figures.append(told)
    assert figures[0].sums == pytest.approx(figures[1].sums, rel=ROUNDING)
    assert figures[0].gradient_norm == pytest.approx(figures[1].gradient_norm, rel=ROUNDING)
    assert figures[0].coefficients == figures[1].coefficients
    assert figures[0].sums["tokens"] > 0 or labelled == 0
    # of a step of 1e-2, of which the root of a rounded square is a part
    torch.testing.assert_close(runs[0].weights(), runs[1].weights(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("bias_correction", [True, False])
def test_a_run_is_that_of_steps_computed_as_they_come(bias_correction: bool) -> None:
    """Sixty steps with a warm-up and clipping that binds, logged every seven."""
    runs = []
    for kind in ("eager", "recorded"):
        run = begin(
            kind,
            max_grad_norm=0.5,
            bias_correction=bias_correction,
            schedule=ScheduleSettings(warmup_steps=20),
        )
        run.train({"steps": 60}, log_every=7)
        runs.append(run)
    eager, recorded = runs
    assert eager.shown == recorded.shown
    assert len(eager.rows) == len(recorded.rows) == 8
    for one, other in zip(eager.rows, recorded.rows, strict=True):
        assert one[:4] == other[:4]
        assert one[4].learning_rate == other[4].learning_rate
        assert (one[4].tokens, one[4].coefficients) == (other[4].tokens, other[4].coefficients)
        # a hundred times the rounding of a step: each goes on from the weights of the last
        assert one[4].gradient_norm == pytest.approx(other[4].gradient_norm, rel=1e-3)
        assert one[5] == pytest.approx(other[5], rel=1e-3)
    assert eager.state.counts == recorded.state.counts
    assert eager.state.totals == pytest.approx(recorded.state.totals, rel=1e-3)
    assert eager.state.recent_losses == pytest.approx(recorded.state.recent_losses, rel=1e-3)
    assert (eager.state.step, eager.state.tokens) == (recorded.state.step, recorded.state.tokens)
    torch.testing.assert_close(eager.weights(), recorded.weights(), rtol=0, atol=1e-4)
    assert isinstance(recorded.stepper, RecordedStepper)
    assert 3 <= recorded.stepper.num_recordings < 20  # of 90 batches


def test_what_is_frozen_or_of_no_use_stays_as_it_is() -> None:
    run, before = begin("recorded"), Toy()
    run.train({"steps": 5})
    for name in ("frozen", "pooler"):
        for one, other in zip(getattr(run.module, name).parameters(), getattr(before, name).parameters(), strict=True):
            assert torch.equal(one, other)
            assert one not in run.optimizer.state
    assert not torch.equal(run.module.embedding.weight, before.embedding.weight)


# Steps that are not taken


POISON = {
    "a loss that is not a number": {"add": math.nan},
    "an infinite loss": {"add": math.inf},
    "a gradient whose norm is infinite": {"steep": 1e38},
    "a spike": {"add": 1e6},
}


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON.keys())
def test_neither_a_bad_step_nor_any_after_it_changes_anything(poison: dict[str, float]) -> None:
    run = begin("recorded", spike_factor=3.0)
    good = make_batch([5, 7, 2])
    bad = make_batch([5, 7, 2], add=poison.get("add", 0.0), steep=poison.get("steep", 0.0))
    run.stepper.restart([1e3] * 30)
    run.stepper.launch([good], count(good))
    assert len(run.stepper.read(always)) == 1
    weights, moments = run.weights(), run.moments()
    for batch in (bad, good, good):
        run.stepper.launch([batch], count(batch))
    [told] = run.stepper.read(never)
    bad_before = {**told.sums, "norm": told.gradient_norm}
    assert not all(math.isfinite(value) and value < 1e5 for value in bad_before.values())  # the figures are told
    assert torch.equal(run.weights(), weights)
    assert torch.equal(run.moments(), moments)
    run.stepper.restart([1e3] * 30)
    run.stepper.launch([good], count(good))
    [told] = run.stepper.read(always)
    assert math.isfinite(told.loss(count(good)))
    assert not torch.equal(run.weights(), weights)
    other = begin("recorded", spike_factor=3.0)  # as if the bad ones had never been
    other.stepper.restart([1e3] * 30)
    for _ in range(2):
        other.stepper.launch([good], count(good))
        other.stepper.read(always)
    assert torch.equal(run.weights(), other.weights())
    assert torch.equal(run.moments(), other.moments())


@pytest.mark.parametrize("known", [0, 5, 19, 20, 21, 99, 100])
@pytest.mark.parametrize("seed", range(4))
def test_the_device_decides_as_the_loop_does(known: int, seed: int) -> None:
    """On random losses, about a fifth of them over the limit, from none known or some; a refused one is not counted."""
    draw = random.Random(seed)
    losses = [draw.lognormvariate(0, 1) for _ in range(known)]
    recent = RecentLosses(CPU.device)
    recent.restart(losses)
    decided = []
    for step in range(250):
        loss = draw.lognormvariate(0, 1) * draw.choice([1, 1, 1, 1, 8])
        is_spike = find_fault(step, loss, 1.0, losses, 3.0) is not None
        halted = torch.tensor(float(is_spike))
        assert bool(recent.is_spike(torch.tensor(loss, dtype=torch.float64), 3.0)) == is_spike
        recent.add(torch.tensor(loss, dtype=torch.float64), halted)
        decided.append(is_spike)
        if not is_spike:
            losses = [*losses, loss][-WINDOW:]
    assert 10 < sum(decided) < 200


@dataclass
class Saved:
    """What a hook that rolls back returns to."""

    weights: dict[str, Tensor]
    optimizer: Any
    state: TrainState


@pytest.mark.parametrize("poison", list(POISON.values())[:3], ids=list(POISON)[:3])
@pytest.mark.parametrize("number", [8, 10, 13])
def test_a_bad_step_in_the_middle_of_an_interval_is_as_if_it_had_been_seen_at_once(
    poison: dict[str, float], number: int
) -> None:
    """With the steps launched after it: they have been halted, and are taken anew."""
    runs = []
    for kind in ("eager", "recorded"):
        run = begin(kind, schedule=ScheduleSettings(warmup_steps=3))
        run.train({"steps": 20}, make_steps(bad={number: poison}), log_every=7)
        runs.append(run)
    check_same(*runs)
    [bad] = runs[1].bad_steps
    assert bad.step == number + 1
    assert len(bad.recent_losses) == number
    assert runs[1].state.step == 20
    assert runs[1].shown[-1] == runs[0].shown[-1]


def test_two_bad_steps_in_one_interval() -> None:
    runs = []
    for kind in ("eager", "recorded"):
        run = begin(kind)
        bad = {9: {"add": math.nan}, 10: {"steep": 1e38}, 12: {"add": math.inf}}
        run.train({"steps": 25}, make_steps(bad=bad), log_every=20)
        runs.append(run)
    check_same(*runs)
    assert len(runs[1].bad_steps) == 3


def test_a_run_that_rolls_back_goes_on_from_there() -> None:
    """The hook gives weights and moments of an earlier step back, in other tensors than they were in."""
    runs = []
    for kind in ("eager", "recorded"):
        run = begin(kind)
        kept: list[Saved] = []

        def save(state: TrainState, run: Run = run, kept: list[Saved] = kept) -> None:
            if state.step == 7:
                weights = {name: value.clone() for name, value in run.module.state_dict().items()}
                states = run.optimizer.state_dict()["state"]
                copied = {number: {name: v.clone() for name, v in s.items()} for number, s in states.items()}
                earlier = TrainState(step=7, tokens=state.tokens, recent_losses=list(state.recent_losses))
                kept.append(Saved(weights, copied, earlier))

        def roll_back(state: TrainState, bad: BadStep, run: Run = run, kept: list[Saved] = kept) -> None:
            run.bad_steps.append(bad)
            [saved] = kept
            run.module.load_state_dict(saved.weights)
            groups = run.optimizer.state_dict()["param_groups"]
            run.optimizer.load_state_dict({"state": saved.optimizer, "param_groups": groups})
            state.roll_back_to(saved.state)

        run.train(
            {"steps": 20}, make_steps(bad={10: {"add": math.nan}}), log_every=7, on_step=save, on_bad_step=roll_back
        )
        runs.append(run)
    check_same(*runs)
    assert runs[1].state.roll_backs == 1


def check_same(eager: Run, recorded: Run) -> None:
    """The same rows, weights and bad steps, but for rounding: 1e-3 is some hundred roundings, carried on by steps."""
    assert [row[:4] for row in eager.rows] == [row[:4] for row in recorded.rows]
    for one, other in zip(eager.rows, recorded.rows, strict=True):
        assert one[5] == pytest.approx(other[5], rel=1e-3)
    for first, second in zip(eager.bad_steps, recorded.bad_steps, strict=True):
        assert (first.step, first.fault, first.counts) == (second.step, second.fault, second.counts)
        assert (first.learning_rate, first.num_tokens) == (second.learning_rate, second.num_tokens)
        assert first.recent_losses == pytest.approx(second.recent_losses, rel=1e-3)
        assert all(torch.equal(a.input_ids, b.input_ids) for a, b in zip(first.batches, second.batches, strict=True))
    assert (eager.state.step, eager.state.tokens) == (recorded.state.step, recorded.state.tokens)
    assert eager.state.position == recorded.state.position
    torch.testing.assert_close(eager.weights(), recorded.weights(), rtol=0, atol=1e-4)


# When a run looks, and ends


@pytest.mark.parametrize(
    "budget", [{"steps": 30}, {"tokens": 3000}, {"epochs": 1.7}], ids=["steps", "tokens", "epochs"]
)
def test_a_budget_ends_a_run_that_launches_ahead_where_it_ends_any_other(budget: dict[str, float]) -> None:
    runs = []
    for kind in ("eager", "recorded"):
        run = begin(kind, schedule=ScheduleSettings(warmup_steps=5))
        run.train(budget, log_every=8)
        runs.append(run)
    check_same(*runs)
    assert runs[0].shown == runs[1].shown  # none is asked for after the last step


def test_a_device_is_not_ahead_of_what_is_known_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many steps the loop looks, whether one is due or not."""
    plain, looking = begin("recorded"), begin("recorded")
    plain.train({"steps": 20}, log_every=10)
    monkeypatch.setattr("unmask.training.loop._MOST_LAUNCHED", 3)
    known: list[int] = []
    looking.train({"steps": 20}, log_every=10, on_step=lambda state: known.append(state.step))
    assert known == [3, 6, 9, 10, 13, 16, 19, 20]
    assert looking.rows == plain.rows
    assert torch.equal(looking.weights(), plain.weights())


def test_a_run_without_batches_left_reads_what_it_has_launched() -> None:
    runs = []
    for kind in ("eager", "recorded"):
        run = begin(kind)
        run.train({"steps": 100}, islice(make_steps(), 10), log_every=7)
        runs.append(run)
    assert runs[0].state.step == runs[1].state.step == 10
    assert runs[0].state.counts == runs[1].state.counts
    check_same(*runs)


def test_patience_ends_a_run_at_the_evaluation_that_ended_it() -> None:
    runs = []
    for kind in ("eager", "recorded"):
        run = begin(kind)

        def evaluate(state: TrainState, run: Run = run) -> None:
            if state.step % 5 == 0:
                state.best = Best(5, {"loss": 1.0}, copy_weights(run.module), evaluations_since=state.step // 5 - 1)

        run.train({"steps": 100, "patience": 3, "eval_every": 5}, log_every=5, on_step=evaluate)
        runs.append(run)
    check_same(*runs)
    assert runs[1].state.step == 20


def test_a_signal_in_the_middle_of_an_interval_stops_after_what_has_been_launched() -> None:
    """As `Session` does: a step is due once a signal has come, and the hook raises."""
    run, plain = begin("recorded"), begin("recorded")
    asked: list[int] = []

    def is_due(state: TrainState) -> bool:
        asked.append(state.step)
        return state.step >= 11

    def stop(state: TrainState) -> None:
        if state.step >= 11:
            raise Interrupted("stopped", 15)

    with pytest.raises(Interrupted):
        run.train({"steps": 40}, log_every=7, on_step=stop, is_due=is_due)
    assert (run.state.step, run.state.position) == (11, 11)
    assert asked == [step for step in range(1, 12) if step != 7]
    plain.train({"steps": 11}, log_every=7)
    assert run.state.recent_losses == plain.state.recent_losses
    assert torch.equal(run.weights(), plain.weights())


def test_minutes_are_looked_at_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Session.is_due` says so; a clock that moves a second at each look."""
    run = begin("recorded")
    seconds = iter(range(10**6))
    monkeypatch.setattr("unmask.training.loop.time.monotonic", lambda: float(next(seconds)))
    run.train({"minutes": 0.1}, is_due=lambda state: True)
    assert run.state.step == 6


# Checkpoints


def save(directory: Path, run: Run) -> None:
    position = {"step": run.state.position}
    save_checkpoint(directory, run.module, run.optimizer, run.schedule, run.state, position, keep_last=9)


@pytest.mark.parametrize("stop", [1, 6, 13])
def test_a_run_that_goes_on_from_a_checkpoint_is_bit_for_bit_one_that_never_stopped(tmp_path: Path, stop: int) -> None:
    """With dropout, whose numbers depend on the shapes of filled batches, and so must not on those seen before."""
    schedule = ScheduleSettings(warmup_steps=4)
    whole = begin("recorded", dropout_prob=0.2, schedule=schedule)
    whole.train({"steps": 20}, log_every=10, is_due=lambda state: state.step == stop)
    first = begin("recorded", dropout_prob=0.2, schedule=schedule)

    def leave(state: TrainState) -> None:
        if state.step == stop:
            save(tmp_path, first)
            raise Interrupted("stopped", 15)

    with pytest.raises(Interrupted):
        first.train({"steps": 20}, log_every=10, on_step=leave, is_due=lambda state: state.step == stop)
    second = begin("recorded", dropout_prob=0.2, schedule=schedule)
    torch.manual_seed(99)
    checkpoint = find_checkpoint(tmp_path)
    assert checkpoint is not None
    second.state = restore(checkpoint, second.module, second.optimizer, second.schedule)
    second.train({"steps": 20}, make_steps(stop), log_every=10)
    assert torch.equal(whole.weights(), second.weights())
    assert torch.equal(whole.moments(), second.moments())
    assert whole.state.recent_losses == second.state.recent_losses
    assert whole.rows[-1][5] == second.rows[-1][5]
    other = begin("recorded", dropout_prob=0.2, schedule=schedule)
    torch.manual_seed(99)
    other.train({"steps": 20}, log_every=10)
    assert not torch.equal(whole.weights(), other.weights())  # dropout is drawn


def test_a_checkpoint_of_flat_parameters_holds_each_once(tmp_path: Path) -> None:
    sizes = []
    for kind in ("eager", "recorded"):
        run = begin(kind)
        run.train({"steps": 2})
        save(tmp_path / kind, run)
        directory = tmp_path / kind / "step-00000002"
        weights = load_file(directory / WEIGHTS)
        assert {name: value.shape for name, value in weights.items()} == {
            name: value.shape for name, value in run.module.state_dict().items()
        }
        assert all(torch.equal(value, weights[name]) for name, value in run.module.state_dict().items())
        sizes.append([(directory / name).stat().st_size for name in (WEIGHTS, OPTIMIZER)])
    assert sizes[0] == sizes[1]


# Memory


def test_a_step_that_does_not_fit_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its first or its second micro-batch, in the first step or a later one: halved, it is taken as if it were the
    first try, and no recording is kept, since theirs is the memory that is wanted."""
    batch = make_batch([5, 7, 2])
    for place in range(1, 5):
        run, plain = begin("recorded", dropout_prob=0.5), begin("recorded", dropout_prob=0.5)
        calls = iter(range(100))
        forward = run.module.forward

        def fails_once(
            batch: Batch, place: int = place, calls: Iterator[int] = calls, forward: Any = forward
        ) -> list[LossTerm]:
            terms: list[LossTerm] = forward(batch)
            if next(calls) == place:
                terms[0].total.backward(retain_graph=True)  # type: ignore[no-untyped-call]
                raise torch.OutOfMemoryError("told by a test")
            return terms

        run.module.forward = fails_once  # type: ignore[method-assign]
        for each in (run, plain):
            each.stepper.restart([])
        taken = 0
        while taken < 2:
            random_state = torch.get_rng_state()
            try:
                run.stepper.launch([batch, batch], count(batch))
            except torch.OutOfMemoryError:
                torch.set_rng_state(random_state)
                assert isinstance(run.stepper, RecordedStepper)
                assert run.stepper.num_recordings == 0
                continue
            taken += 1
        first = run.stepper.read(always)
        torch.manual_seed(1)
        for _ in range(2):
            plain.stepper.launch([batch, batch], count(batch))
        assert first == plain.stepper.read(always)
        assert torch.equal(run.weights(), plain.weights())


def test_what_is_released_between_steps_is_recorded_again() -> None:
    runs = [begin("recorded", dropout_prob=0.1) for _ in range(2)]
    for number, run in enumerate(runs):
        assert isinstance(run.stepper, RecordedStepper)
        torch.manual_seed(1)
        run.train({"steps": 4}, log_every=2)
        if number:
            run.stepper.release()
            assert run.stepper.num_recordings == 0
        run.train({"steps": 8}, log_every=2)
        assert run.stepper.num_recordings > 0
    assert torch.equal(runs[0].weights(), runs[1].weights())
