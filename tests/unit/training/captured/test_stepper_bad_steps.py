"""Captured steps that are not taken: neither they nor those launched after them change anything."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch

from support.captured_toy import Run, count_targets, endless_steps, new_batch, new_run, read_all, train_both
from unmask.batch import StepBatches
from unmask.training.divergence import WINDOW, BadStep, RecentLosses, divergence_fault
from unmask.training.settings import ScheduleSettings
from unmask.training.state import TrainState
from unmask.training.stepping.protocol import StepFigures


def never(place: int, figures: StepFigures) -> bool:
    return False


POISON = {
    "a loss that is not a number": {"add": math.nan},
    "an infinite loss": {"add": math.inf},
    "a gradient whose norm is infinite": {"steep": 1e38},
    "a spike": {"add": 1e6},
}
BEFORE = {"sequences+tokens": [1e3] * 30}


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON.keys())
def test_neither_a_bad_step_nor_any_after_it_changes_anything(poison: dict[str, float]) -> None:
    run = new_run("captured", spike_factor=3.0)
    good = new_batch([5, 7, 2])
    bad = new_batch([5, 7, 2], add=poison.get("add", 0.0), steep=poison.get("steep", 0.0))
    run.stepper.restart(BEFORE)
    run.stepper.launch([good], count_targets(good))
    assert len(run.stepper.read(read_all)) == 1
    weights, moments = run.weights(), run.moments()
    for batch in (bad, good, good):
        run.stepper.launch([batch], count_targets(batch))
    [figures] = run.stepper.read(never)
    bad_before = {**figures.sums, "norm": figures.gradient_norm}
    assert not all(math.isfinite(value) and value < 1e5 for value in bad_before.values())  # the figures are reported
    assert torch.equal(run.weights(), weights)
    assert torch.equal(run.moments(), moments)
    run.stepper.restart(BEFORE)
    run.stepper.launch([good], count_targets(good))
    [figures] = run.stepper.read(read_all)
    assert math.isfinite(figures.loss(count_targets(good)))
    assert not torch.equal(run.weights(), weights)
    other = new_run("captured", spike_factor=3.0)  # as if the bad ones had never been
    other.stepper.restart(BEFORE)
    for _ in range(2):
        other.stepper.launch([good], count_targets(good))
        other.stepper.read(read_all)
    assert torch.equal(run.weights(), other.weights())
    assert torch.equal(run.moments(), other.moments())


@pytest.mark.parametrize("known", [0, 5, 19, 20, 21, 99, 100])
@pytest.mark.parametrize("seed", range(4))
def test_the_device_decides_as_the_loop_does(known: int, seed: int) -> None:
    """On random losses, about a fifth of them over the limit, from none known or some; a refused one is not counted.
    Those of other terms are tenfold."""
    draw = random.Random(seed)
    levels = {"lm": 1.0, "lm+mlm": 10.0}
    losses = {terms: [level * draw.lognormvariate(0, 1) for _ in range(known)] for terms, level in levels.items()}
    recent = RecentLosses(torch.device("cpu"))
    recent.restart(losses if known else {})
    decided = []
    for step in range(250):
        terms = draw.choice([*levels])
        recent.turn_to(terms)
        loss = levels[terms] * draw.lognormvariate(0, 1) * draw.choice([1, 1, 1, 1, 8])
        is_spike = divergence_fault(step, loss, 1.0, losses[terms], 3.0) is not None
        halted = torch.tensor(float(is_spike))
        assert bool(recent.is_spike(torch.tensor(loss, dtype=torch.float64), 3.0)) == is_spike
        recent.add(torch.tensor(loss, dtype=torch.float64), halted)
        decided.append(is_spike)
        if not is_spike:
            losses[terms] = [*losses[terms], loss][-WINDOW:]
    assert 10 < sum(decided) < 200


@pytest.mark.parametrize(("num_zeros", "is_spike"), [(30, False), (20, True)])
def test_a_median_of_zero_is_held_against_no_step(num_zeros: int, is_spike: bool) -> None:
    losses = [*[0.0] * num_zeros, *[3.0] * (50 - num_zeros)]
    recent = RecentLosses(torch.device("cpu"))
    recent.restart({"lm": losses})
    recent.turn_to("lm")
    assert bool(recent.is_spike(torch.tensor(50.0, dtype=torch.float64), 2.0)) == is_spike
    assert (divergence_fault(51, 50.0, 1.0, losses, 2.0) is not None) == is_spike


@pytest.mark.parametrize("poison", list(POISON.values())[:3], ids=list(POISON)[:3])
@pytest.mark.parametrize("number", [8, 10, 13])
def test_a_bad_step_amid_an_interval_is_as_if_it_had_been_seen_at_once(poison: dict[str, float], number: int) -> None:
    """With the steps launched after it: they have been halted, and are taken anew."""
    schedule = ScheduleSettings(warmup_steps=3)
    steps = partial(endless_steps, bad={number: poison})
    eager, captured = train_both({"steps": 20}, steps, log_every=7, schedule=schedule)
    [bad] = captured.bad_steps
    assert bad.step.number == number + 1
    assert len(bad.recent_losses) == number
    assert captured.state.step == 20
    assert captured.shown[-1] == eager.shown[-1]


def test_two_bad_steps_in_one_interval() -> None:
    bad = {9: {"add": math.nan}, 10: {"steep": 1e38}, 12: {"add": math.inf}}
    _, captured = train_both({"steps": 25}, partial(endless_steps, bad=bad), log_every=20)
    assert len(captured.bad_steps) == 3


def test_a_run_that_rolls_back_continues_from_there() -> None:
    """The hook gives weights and moments of an earlier step back, in other tensors than they were in."""
    kept: dict[int, tuple[Any, Any, TrainState]] = {}

    def save(run: Run, state: TrainState) -> None:
        if state.step == 7:
            earlier = TrainState(step=7, tokens=state.tokens, recent_losses=state.recent_losses)
            kept[id(run)] = copy.deepcopy((run.module.state_dict(), run.optimizer.state_dict()["state"], earlier))

    def roll_back(run: Run, state: TrainState, bad: BadStep) -> None:
        weights, moments, earlier = kept[id(run)]
        run.module.load_state_dict(weights)
        run.optimizer.load_state_dict({"state": moments, "param_groups": run.optimizer.state_dict()["param_groups"]})
        state.roll_back_to(earlier)

    steps = partial(endless_steps, bad={10: {"add": math.nan}})
    _, captured = train_both({"steps": 20}, steps, log_every=7, on_step=save, on_bad_step=roll_back)
    assert captured.state.roll_backs == 1


def steps_of_two_kinds(start: int, bad: dict[int, float]) -> Iterator[StepBatches[int]]:
    """Every third step has targets of `tokens` too, and a loss of 50 where the others have one of 1, unless it is a
    bad one."""
    for number in count(start):
        has_both = number % 3 == 0
        add = bad.get(number, 300.0 if has_both else 3.0)
        batch = new_batch([5, 7, 2], number, labelled=float(has_both), add=add)
        yield StepBatches([batch], number + 1, number / 10)


def test_a_spike_is_judged_against_the_steps_with_targets_of_the_same_terms() -> None:
    """Of the two spikes one is a loss that is usual where both terms have targets."""
    settings, steps = {"steps": 97, "spike_factor": 8}, partial(steps_of_two_kinds, bad={80: 300.0, 90: 1e5})
    eager, captured = train_both(settings, steps, log_every=7, spike_factor=8.0)
    assert [each.step.number for each in captured.bad_steps] == [81, 91]
    numbers = {terms: len(losses) for terms, losses in eager.state.recent_losses.items()}
    assert numbers == {"sequences": 63, "sequences+tokens": 32}
