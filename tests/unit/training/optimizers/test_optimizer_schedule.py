"""The schedule of the learning rate, against `transformers` and by its stages."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from transformers import (
    get_cosine_schedule_with_warmup,
    get_inverse_sqrt_schedule,
    get_linear_schedule_with_warmup,
    get_wsd_schedule,
)

from unmask.training.optimizers.optimizer import Schedule
from unmask.training.settings import ONLY_OF_SCHEDULES, ScheduleSettings, TrainSettings, warmup_shortfall

NAMES = get_args(ScheduleSettings.model_fields["name"].annotation)


def done_after(steps: int, tokens: int = 0, epochs: float = 0.0, minutes: float = 0.0) -> dict[str, float]:
    return {"steps": steps, "tokens": tokens, "epochs": epochs, "minutes": minutes}


def any_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)


def factors(settings: ScheduleSettings, steps: int) -> list[float]:
    schedule, budget = Schedule(settings), TrainSettings(steps=steps)
    return [schedule.factor(done_after(step), budget) for step in range(steps)]


@pytest.mark.parametrize(("steps", "warmup"), [(20, 0), (20, 1), (20, 7), (1000, 100), (33, 32), (10, 10), (5, 9)])
@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_budgets_in_steps_have_the_rates_of_transformers(name: str, steps: int, warmup: int) -> None:
    make = {"linear": get_linear_schedule_with_warmup, "cosine": get_cosine_schedule_with_warmup}[name]
    theirs = make(any_optimizer(), warmup, steps)
    expected = [theirs.lr_lambdas[0](step) for step in range(steps)]
    found = factors(ScheduleSettings.model_validate({"name": name, "warmup_steps": warmup}), steps)
    assert found == pytest.approx(expected, abs=1e-12)  # roundings of doubles


@pytest.mark.parametrize(("steps", "warmup_steps"), [(20, 1), (20, 7), (1000, 100), (33, 32)])
def test_inverse_square_roots_are_those_of_transformers(steps: int, warmup_steps: int) -> None:
    theirs = get_inverse_sqrt_schedule(any_optimizer(), warmup_steps)
    expected = [theirs.lr_lambdas[0](step) for step in range(steps)]
    found = factors(ScheduleSettings(name="inverse_sqrt", warmup_steps=warmup_steps), steps)
    assert found == pytest.approx(expected, abs=1e-12)  # roundings of doubles
    assert found[-1] == pytest.approx(math.sqrt(warmup_steps / (steps - 1)), abs=1e-12) or steps - 1 < warmup_steps


@pytest.mark.parametrize(("steps", "warmup_steps", "decay_steps"), [(20, 0, 2), (20, 5, 10), (1000, 100, 100)])
def test_warm_up_stable_decay_is_that_of_transformers(steps: int, warmup_steps: int, decay_steps: int) -> None:
    types = {"warmup_type": "linear", "decay_type": "linear"}
    theirs = get_wsd_schedule(any_optimizer(), warmup_steps, decay_steps, num_training_steps=steps, **types)
    settings = ScheduleSettings(name="wsd", warmup_steps=warmup_steps, decay_ratio=decay_steps / steps)
    expected = [theirs.lr_lambdas[0](step) for step in range(steps)]
    assert factors(settings, steps) == pytest.approx(expected, abs=1e-12)  # roundings of doubles


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_reads_the_keys_that_are_its_own_and_no_other(name: str) -> None:
    unusual = {"decay_ratio": 0.9}
    assert set(unusual) == set(ScheduleSettings.model_fields) - {"name", "warmup_steps", "warmup_ratio"}

    def rates(**given: float) -> list[float]:
        usual = ScheduleSettings(warmup_steps=2).model_copy(update={"name": name, **given})
        return factors(usual, 20)

    read = {key for key, value in unusual.items() if rates(**{key: value}) != rates()}
    assert read == {key for key in unusual if name in ONLY_OF_SCHEDULES.get(key, (name,))}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "inverse_sqrt"}, "counted from the end of the warm-up: give warmup_steps or warmup_ratio"),
        ({"name": "inverse_sqrt", "warmup_steps": 0}, "counted from the end of the warm-up"),
        ({"name": "cosine", "decay_ratio": 0.2}, "decay_ratio=0.2 is for wsd, and name is cosine"),
        ({"name": "wsd", "warmup_ratio": 0.6, "decay_ratio": 0.5}, r"warmup_ratio 0.6 \+ decay_ratio 0.5 is over 1"),
    ],
    ids=str,
)
def test_schedules_that_cannot_be_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ScheduleSettings.model_validate(settings)


def test_another_schedule_that_decays_at_its_end_is_checked_as_wsd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ONLY_OF_SCHEDULES, "decay_ratio", ("wsd", "cosine"))
    with pytest.raises(ValidationError, match=r"warmup_ratio 0.6 \+ decay_ratio 0.5 is over 1"):
        ScheduleSettings(name="cosine", warmup_ratio=0.6, decay_ratio=0.5)
    shortfall = warmup_shortfall(ScheduleSettings(name="cosine", warmup_steps=60, decay_ratio=0.5), 100)
    assert shortfall is not None
    assert "the learning rate falls before it is reached" in shortfall


def stage_factors(schedule: Schedule, steps: range, budget: TrainSettings) -> list[float]:
    return [schedule.factor(done_after(step, tokens=step * 10), budget) for step in steps]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("warmup", [{"warmup_steps": 4}, {"warmup_ratio": 0.2}], ids=str)
@pytest.mark.parametrize("unit", ["steps", "tokens"])
def test_a_stage_has_the_schedule_of_a_run_of_its_length(name: str, warmup: dict[str, float], unit: str) -> None:
    """Stages of the first 40 and the next 60 steps of 100, beside runs of 40 and of 60 steps."""
    settings = ScheduleSettings.model_validate({"name": name, **warmup})
    size = 1 if unit == "steps" else 10
    whole, first, second = (TrainSettings.model_validate({unit: steps * size}) for steps in (100, 40, 60))
    schedule = Schedule(settings)
    schedule.begin_stage(done_after(0), 0.4)
    found = stage_factors(schedule, range(40), whole)
    schedule.begin_stage(done_after(40, tokens=400))
    found += stage_factors(schedule, range(40, 100), whole)
    expected = stage_factors(Schedule(settings), range(40), first) + stage_factors(
        Schedule(settings), range(60), second
    )
    assert found == pytest.approx(expected, abs=1e-12)  # roundings of doubles


def test_a_stage_that_is_over_stays_at_its_end() -> None:
    schedule = Schedule(ScheduleSettings())
    schedule.begin_stage(done_after(0), 0.4)
    assert stage_factors(schedule, range(100), TrainSettings(steps=100))[40:] == [0.0] * 60


def test_a_constant_rate_stays_after_its_warm_up() -> None:
    assert factors(ScheduleSettings(name="constant", warmup_steps=4), 8) == [0, 0.25, 0.5, 0.75, 1, 1, 1, 1]
    assert factors(ScheduleSettings(name="constant"), 3) == [1, 1, 1]


def test_a_warm_up_ratio_is_that_share_of_the_steps() -> None:
    by_ratio = factors(ScheduleSettings(warmup_ratio=0.25), 40)
    assert by_ratio == pytest.approx(factors(ScheduleSettings(warmup_steps=10), 40), abs=1e-12)


@pytest.mark.parametrize("name", ["linear", "cosine", "wsd"])
@pytest.mark.parametrize("warmup", [{"warmup_steps": 3}, {"warmup_ratio": 0.2}, {}], ids=str)
@pytest.mark.parametrize("unit", ["tokens", "epochs", "minutes"])
def test_other_budgets_rise_to_one_and_end_at_zero(name: str, warmup: dict[str, float], unit: str) -> None:
    schedule = Schedule(ScheduleSettings.model_validate({"name": name, **warmup}))
    budget = TrainSettings.model_validate({unit: 100})
    amounts = [0, 9, 21, 30, 40, 52, 71, 88, 95]  # what ragged steps add up to
    found = [schedule.factor(done_after(step) | {unit: amount}, budget) for step, amount in enumerate(amounts)]
    top = found.index(max(found))
    assert found[:top] == sorted(found[:top])
    assert found[top:] == sorted(found[top:], reverse=True)
    assert max(found) == pytest.approx(1, abs=0.02)
    for amount in (100, 103):  # the last step may go over
        assert schedule.factor(done_after(len(amounts)) | {unit: amount}, budget) == pytest.approx(0, abs=1e-12)


def test_a_resumed_schedule_continues_with_the_end_of_its_warm_up() -> None:
    settings, budget = ScheduleSettings(warmup_steps=3), TrainSettings(tokens=100)
    tokens = [0, 9, 21, 30, 40, 52, 71, 88]
    whole = Schedule(settings)
    expected = [whole.factor(done_after(step, amount), budget) for step, amount in enumerate(tokens)]
    assert whole.warmup_end == done_after(3, 30)
    resumed = Schedule(settings, warmup_end=whole.warmup_end)
    assert [resumed.factor(done_after(step, tokens[step]), budget) for step in (5, 6, 7)] == expected[5:]


@pytest.mark.parametrize("warmup", [{"warmup_steps": 10}, {"warmup_ratio": 0.1}], ids=str)
def test_a_longer_budget_at_a_resume_gives_the_rates_of_that_budget(warmup: dict[str, float]) -> None:
    """The end of warm-up was a tenth of the first budget and is a thousandth of the second."""
    settings = ScheduleSettings.model_validate(warmup)
    first, second = TrainSettings(steps=100), TrainSettings(steps=10_000)
    schedule = Schedule(settings)
    for step in range(100):
        schedule.factor(done_after(step), first)
    anew = Schedule(settings)
    for step in range(100):
        anew.factor(done_after(step), second)
    resumed = Schedule(settings, warmup_end=schedule.warmup_end)
    later = range(100, 10_000, 99)
    found = [resumed.factor(done_after(step), second) for step in later]
    assert found == [anew.factor(done_after(step), second) for step in later]
    assert max(found) <= 1


@pytest.mark.parametrize(
    ("budget", "share"),
    [({"steps": 40}, 0.25), ({"tokens": 500}, 0.4), ({"epochs": 2}, 0.75), ({"minutes": 2}, 1.0)],
    ids=str,
)
def test_the_share_done_of_each_budget(budget: dict[str, float], share: float) -> None:
    done = done_after(10, tokens=200, epochs=1.5, minutes=2.5)
    assert TrainSettings.model_validate(budget).share_done(done) == share
