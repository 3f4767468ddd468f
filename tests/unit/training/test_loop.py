"""The loop: what a step's gradient is, when a run ends, what it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from support.captured_toy import CPU
from unmask.batch import Batch, LossTerm, StepBatches, pack
from unmask.models.trained import TrainedModule
from unmask.training.divergence import BadStep
from unmask.training.loop import Hooks, train
from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer
from unmask.training.settings import ScheduleSettings, TrainSettings
from unmask.training.state import StepResult, TrainState
from unmask.training.stepping.eager import EagerStepper
from unmask.training.steps import Learner, set_training_mode


class Regressor(TrainedModule):
    """Two terms over different targets: every token, and every first token; both with ragged counts."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Parameter(torch.randn(50, 4, generator=generator, dtype=torch.float64))
        self.weight = nn.Parameter(torch.randn(4, generator=generator, dtype=torch.float64))
        self.modes: list[bool] = []

    def forward(self, batch: Batch) -> list[LossTerm]:
        self.modes.append(self.training)
        values = torch.tanh(self.embedding[batch.input_ids]) @ self.weight
        first = values[batch.first_tokens]
        return [LossTerm("tokens", ((values - 1) ** 2).sum()), LossTerm("first", (first**4).sum(), coefficient=3.0)]


def count(batch: Batch) -> dict[str, int]:
    return {"tokens": batch.num_tokens, "first": batch.num_sequences}


LENGTHS = (9, 1, 4, 12, 2, 7, 1, 3)


def sequences() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(50, (length,), generator=generator).tolist() for length in LENGTHS]


def cut(rows: list[list[int]], sizes: Sequence[int]) -> list[Batch]:
    batches, first = [], 0
    for size in sizes:
        batches.append(pack(rows[first : first + size]))
        first += size
    return batches


def endless(sizes: Sequence[int] = (8,)) -> Iterator[StepBatches[int]]:
    number = 0
    while True:
        number += 1
        yield StepBatches(cut(sequences(), sizes), number, number / 4)


def run(
    settings: TrainSettings,
    *,
    module: nn.Module | None = None,
    steps: Iterator[StepBatches[int]] | None = None,
    schedule: ScheduleSettings | None = None,
    state: TrainState | None = None,
    on_step: Callable[[TrainState, StepResult], None] = lambda state, result: None,
    on_bad_step: Callable[[TrainState, BadStep], Iterator[StepBatches[int]]] | None = None,
    counts: Callable[[Batch], dict[str, int]] = count,
    optimizer: torch.optim.Optimizer | None = None,
    prepares_ahead: bool = False,
) -> TrainState:
    module = Regressor() if module is None else module
    state = TrainState() if state is None else state
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01) if optimizer is None else optimizer
    stepper = EagerStepper(module, optimizer, settings.max_grad_norm, CPU)
    stepper.prepares_ahead = prepares_ahead
    train(
        Learner(module, counts),
        endless() if steps is None else steps,
        ScheduledOptimizer(optimizer, Schedule(schedule or ScheduleSettings(name="constant"))),
        stepper,
        settings,
        state,
        Hooks(on_step, on_bad_step=on_bad_step),
    )
    return state


def gradient_of_a_step(sizes: Sequence[int]) -> Tensor:
    """By how far one step of plain gradient descent goes."""
    module, before = Regressor(), Regressor()
    run(TrainSettings(steps=1, max_grad_norm=None), module=module, steps=endless(sizes))
    moved = [(b - a).detach() for b, a in zip(before.parameters(), module.parameters(), strict=True)]
    return torch.cat([move.flatten() for move in moved]) / 0.01


def expected_gradient() -> Tensor:
    """Of the loss as it is written: the sum over terms of coefficient x total / count, over the whole step."""
    module, batch = Regressor(), pack(sequences())
    loss = torch.stack([term.coefficient * term.total / count(batch)[term.name] for term in module(batch)]).sum()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


ROUNDING = 1e-12
"""Doubles throughout: sums of some hundred numbers of order 1 to 100, each good to 1e-16."""


@pytest.mark.parametrize("sizes", [(8,), (4, 4), (1,) * 8, (3, 3, 2), (7, 1), (1, 7)], ids=str)
def test_the_gradient_of_a_step_does_not_depend_on_how_it_is_cut(sizes: Sequence[int]) -> None:
    difference = (gradient_of_a_step(sizes) - expected_gradient()).abs().max()
    assert float(difference) < ROUNDING


@pytest.mark.parametrize("budget", [{"steps": 6}, {"epochs": 1.5}, {"tokens": 6 * sum(LENGTHS)}], ids=str)
def test_batches_that_are_made_ahead_are_the_same(budget: dict[str, float]) -> None:
    """They see the share done that they would have seen, and none is requested after the last step."""
    ends, called = [], []
    for prepares_ahead in (False, True):
        module, state, shares = Regressor(), TrainState(), list[float]()
        settings = TrainSettings.model_validate(budget)

        def steps(state: TrainState, settings: TrainSettings, shares: list[float]) -> Iterator[StepBatches[int]]:
            for step in endless((5, 3)):
                shares.append(state.progress(settings))
                yield step

        given = {"steps": steps(state, settings, shares), "schedule": ScheduleSettings(), "state": state}
        run(settings, module=module, **given, prepares_ahead=prepares_ahead)
        ends.append([parameter.tolist() for parameter in module.parameters()])
        called.append(shares)
    assert ends[0] == ends[1]
    assert called[0] == called[1] == pytest.approx([number / 6 for number in range(6)])


@pytest.mark.parametrize("prepares_ahead", [True, False])
def test_after_a_bad_step_come_the_batches_of_the_hook(prepares_ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that had been made ahead of it are dropped with the others."""
    faults = iter([None, None, "a fault", *[None] * 10])
    monkeypatch.setattr("unmask.training.loop.divergence_fault", lambda *figures: next(faults))

    def on_bad_step(state: TrainState, bad: BadStep) -> Iterator[StepBatches[int]]:
        state.step -= 1
        assert state.position == 3
        return (StepBatches(step.batches, step.after + 100, step.epochs) for step in endless())

    module, positions = Regressor(), list[int]()
    run(
        TrainSettings(steps=5),
        module=module,
        on_step=lambda state, result: positions.append(state.position),
        on_bad_step=on_bad_step,
        prepares_ahead=prepares_ahead,
    )
    assert positions == [1, 2, 101, 102, 103]


class LongOnly(Regressor):
    """Only sequences of more than five tokens have a target."""

    def forward(self, batch: Batch) -> list[LossTerm]:
        value = torch.tanh(self.embedding[batch.input_ids]).sum() * count_long(batch)["long"]
        return [LossTerm("long", value)]


def count_long(batch: Batch) -> dict[str, int]:
    return {"long": int(batch.num_tokens > 5)}


@pytest.mark.parametrize(("rows", "num_targets"), [(slice(None), 3), (slice(1, 3), 0)], ids=["some", "none at all"])
def test_micro_batches_without_a_target_are_fine(rows: slice, num_targets: int) -> None:
    module, state = LongOnly(), TrainState()
    steps = iter([StepBatches([pack([row]) for row in sequences()[rows]], 1, 0.0)])
    run(TrainSettings(steps=1), module=module, steps=steps, state=state, counts=count_long)
    assert state.counts == {"long": num_targets}
    assert torch.isfinite(module.embedding).all()
    assert torch.equal(module.embedding, Regressor().embedding) == (num_targets == 0)


def test_what_a_step_did_is_reported_and_added_up() -> None:
    message: list[tuple[int, StepResult, dict[str, float]]] = []

    def note(state: TrainState, result: StepResult) -> None:
        message.append((state.step, result, state.take_means() if state.step % 2 == 0 else {}))

    module = Regressor()
    state = run(TrainSettings(steps=4), module=module, steps=endless((5, 3)), on_step=note)
    assert [step for step, _, _ in message] == [1, 2, 3, 4]
    assert (state.step, state.tokens, state.epochs, state.position) == (4, 4 * sum(LENGTHS), 1.0, 4)
    assert state.seconds > 0
    result, means = message[1][1:]
    assert result.tokens == sum(LENGTHS)
    assert result.coefficients == {"tokens": 1.0, "first": 3.0}
    assert means.keys() == {"tokens", "first"}
    assert (state.totals, state.counts) == ({}, {})  # taken
    assert all(module.modes)  # in training mode


def test_means_are_over_all_targets_since_the_last_time() -> None:
    frozen, batch = Regressor(), pack(sequences())
    expected = {term.name: float(term.total.detach()) / count(batch)[term.name] for term in frozen(batch)}
    module = Regressor().requires_grad_(False)
    module.extra = nn.Parameter(torch.zeros(()))  # type: ignore[assignment]
    plain = module.forward
    module.forward = lambda batch: [  # type: ignore[method-assign]
        LossTerm(term.name, term.total + module.extra * 0, term.coefficient) for term in plain(batch)
    ]
    state = run(TrainSettings(steps=3), module=module, steps=endless((1, 6, 1)))
    assert state.take_means() == pytest.approx(expected, rel=1e-12)  # doubles


def test_rates_follow_the_schedule_for_every_group() -> None:
    module = Regressor()
    groups = [{"params": [module.embedding], "lr": 0.4}, {"params": [module.weight], "lr": 0.1}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    rates: list[list[float]] = []

    def note(state: TrainState, result: StepResult) -> None:
        rates.append([group["lr"] for group in optimizer.param_groups])
        assert result.learning_rate == rates[-1][0]

    def continue_training(state: TrainState, steps: int) -> None:
        settings, schedule = TrainSettings(steps=steps), ScheduleSettings(name="linear", warmup_steps=2)
        run(settings, module=module, schedule=schedule, state=state, on_step=note, optimizer=optimizer)

    state = TrainState()
    continue_training(state, 4)
    assert rates == [[0.0, 0.0], [0.2, 0.05], [0.4, 0.1], [0.2, 0.05]]
    continue_training(state, 8)  # the peak rates are remembered, not those of the last step
    assert rates[-1][0] == pytest.approx(0.4 / 4)  # it begins anew at its fifth step: no warm-up end was kept


def test_what_is_frozen_is_in_eval_mode_and_stays_as_it_is() -> None:
    lower, upper = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    module = nn.Sequential(lower, upper).eval()
    lower.requires_grad_(False)
    set_training_mode(module)
    assert [part.training for part in (module, lower, lower[0], lower[1])] == [True, False, False, False]
    assert [part.training for part in (upper, upper[0], upper[1])] == [True, True, True]
    inputs = torch.ones(8, 2)
    assert torch.equal(lower(inputs), lower(inputs))  # no dropout
    before = [parameter.clone() for parameter in lower.parameters()]
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    module(inputs).sum().backward()
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, lower.parameters(), strict=True))


# Budgets


@pytest.mark.parametrize(
    ("budget", "steps"),
    [
        ({"steps": 5}, 5),
        ({"tokens": 3 * sum(LENGTHS)}, 3),
        ({"tokens": 3 * sum(LENGTHS) + 1}, 4),
        ({"epochs": 1}, 4),
        ({"epochs": 0.5}, 2),
        ({"epochs": 1.1}, 5),
    ],
    ids=str,
)
def test_a_run_ends_with_its_budget(budget: dict[str, float], steps: int) -> None:
    state = run(TrainSettings.model_validate(budget))
    assert state.step == steps
    assert state.progress(TrainSettings.model_validate(budget)) == 1


def test_a_budget_of_minutes_is_of_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def prepared(steps: Iterator[StepBatches[int]]) -> Iterator[StepBatches[int]]:
        nonlocal now
        for step in steps:
            now += 20  # a step takes 20 seconds
            yield step

    def evaluate(state: TrainState, result: StepResult) -> None:
        nonlocal now
        now += 1000  # and what comes after it does not count

    monkeypatch.setattr("unmask.training.loop.time", SimpleNamespace(monotonic=lambda: now))
    state = run(TrainSettings(minutes=1), steps=prepared(endless()), on_step=evaluate)
    assert (state.step, state.seconds) == (3, 60)


def test_a_budget_that_is_spent_takes_no_step_and_asks_for_no_batch() -> None:
    def none() -> Iterator[StepBatches[int]]:
        raise AssertionError("a batch was requested")
        yield

    state = TrainState(step=5)
    run(TrainSettings(steps=5), steps=none(), state=state)
    assert state.step == 5


def test_a_run_ends_where_the_batches_do() -> None:
    state = run(TrainSettings(steps=5), steps=iter([StepBatches(cut(sequences(), (8,)), 1, 1.0)]))
    assert state.step == 1


def test_what_the_hook_raises_stops_the_run_after_the_whole_step() -> None:
    state = TrainState()

    def stop(state: TrainState, result: StepResult) -> None:
        if state.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(TrainSettings(steps=5), state=state, on_step=stop)
    assert (state.step, state.tokens, state.position) == (2, 2 * sum(LENGTHS), 2)
