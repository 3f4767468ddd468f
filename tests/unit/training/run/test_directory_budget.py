"""A budget that is changed at a resume: whether the run is still that of its recipe, and what is said if not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from support.checkpoints import save_checkpoint
from unmask.errors import InputError
from unmask.recipe.tree import FinetuneRecipe, PretrainRecipe
from unmask.training.optimizers.optimizer import Schedule, build_optimizer
from unmask.training.run.budget import budget_change
from unmask.training.run.directory import beginning_run
from unmask.training.run.environment import ENVIRONMENT, budget_changes, read_sessions
from unmask.training.settings import OptimizerSettings
from unmask.training.state import TrainState


def take_steps(run: Path, steps: int, budget: dict[str, Any], schedule: dict[str, Any], **more: Any) -> None:
    """Begins a run or resumes it, and saves it after so many steps of 100 tokens."""
    recipe = PretrainRecipe.model_validate({"store": "a-store", "train": budget, "schedule": schedule, **more})
    about: dict[str, Any] = {"name": "r", "command": ["unmask"], "seed": 0, "device": "CPU"}
    with beginning_run(run, recipe, **about, resume=True, overwrite=False):
        pass
    module, its_schedule = nn.Linear(1, 1), Schedule(recipe.schedule)
    for step in range(steps):
        its_schedule.factor(TrainState(step=step, tokens=100 * step).done, recipe.train)
    state = TrainState(step=steps, tokens=100 * steps)
    optimizer = build_optimizer(module, OptimizerSettings())
    saved = recipe.as_written()
    save_checkpoint(run / "checkpoints", module, optimizer, its_schedule, state, {}, 1, recipe=saved)


@pytest.mark.parametrize(
    ("schedule", "step", "is_changed"),
    [
        ({}, 300, True),
        ({}, 18, True),
        ({"warmup_ratio": 0.1}, 18, True),
        ({"warmup_steps": 30}, 18, False),  # in the warm-up the rates are the same
        ({"name": "constant"}, 300, False),
        ({"name": "inverse_sqrt", "warmup_steps": 30}, 290, False),
        ({"name": "wsd"}, 270, False),  # where the rate begins to go down
        ({"name": "wsd"}, 290, True),
    ],
    ids=str,
)
def test_a_larger_budget_is_told_where_the_rates_were_not_those_of_one_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, schedule: dict[str, Any], step: int, is_changed: bool
) -> None:
    take_steps(tmp_path / "run", step, {"steps": 300}, schedule)
    take_steps(tmp_path / "run", 400, {"steps": 400}, schedule)
    change = f"at step {step}, from train.steps=300 to train.steps=400"
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    told = (
        f"the budget changes {change}: the learning rate, and what else follows the budget, continues where the new "
        "one puts it by then, so the result is not that of a run which had this budget from the beginning"
    )
    assert warnings == [told] * is_changed
    assert budget_changes(read_sessions(tmp_path / "run" / ENVIRONMENT)) == [change] * is_changed


@pytest.mark.parametrize(
    ("evaluated", "patience", "every", "epochs", "is_changed"),
    [
        (14, 2, 5, 1.4, True),
        (10, 2, 5, 1.4, False),
        (14, None, 5, 1.4, False),
        (14, 2, "epoch", 1.4, True),
        (14, 2, "epoch", 2.0, False),
        (7, 2, "epoch", 1.4, False),
    ],
)
def test_an_evaluation_at_the_former_end_is_one_that_patience_counts(
    evaluated: int, patience: int | None, every: int | str, epochs: float, is_changed: bool
) -> None:
    """It has none there under the new budget."""
    before, after = (
        FinetuneRecipe.model_validate(
            {
                "init_from": "a-model",
                "task": {"name": "classification"},
                "data": {"train": "a-file", "dev": "another"},
                "train": {"steps": steps, "eval_every": every, "patience": patience},
                "schedule": {"name": "constant"},
            }
        )
        for steps in (14, 100)
    )
    state = {"evaluated_step": evaluated, "warmup_end": None, "stage": None}
    checkpoint: Any = SimpleNamespace(state=state, done=TrainState(step=14, epochs=epochs).done, step=14)
    change = budget_change(before, after, checkpoint)
    assert (change["was"] != change["now"]) == is_changed


def test_another_kind_of_budget_is_another_budget_only_if_the_rates_differ(tmp_path: Path) -> None:
    take_steps(tmp_path / "run", 100, {"steps": 300}, {})
    take_steps(tmp_path / "run", 200, {"tokens": 30_000}, {})
    path = tmp_path / "run" / ENVIRONMENT
    assert budget_changes(read_sessions(path)) == []
    take_steps(tmp_path / "run", 300, {"tokens": 60_000}, {})
    assert budget_changes(read_sessions(path)) == ["at step 200, from train.tokens=30000 to train.tokens=60000"]


@pytest.mark.parametrize(
    "more",
    [
        {"objective": {"target_prob": 0.3, "target_prob_end": 0.15}},
        {"phases": [{"until": 0.5}, {"until": 1}]},
        {"phases": [{"until": 0.4}, {"until": 1}]},  # over by now under both budgets, and sooner under the new one
        {
            "objective": {"name": "replaced_token", "discriminator_after": 0.5},
            "model": {"architecture": "electra"},
            "packing": {"format": "full_sentences"},
        },
        {"schedule": {"name": "wsd", "warmup_ratio": 0.1}},  # so is the warm-up
    ],
    ids=str,
)
def test_what_else_follows_the_budget_counts_too(tmp_path: Path, more: dict[str, Any]) -> None:
    more = {"schedule": {"name": "constant"}} | more
    take_steps(tmp_path / "run", 140, {"steps": 300}, **more)
    take_steps(tmp_path / "run", 240, {"steps": 240}, **more)
    change = "at step 140, from train.steps=300 to train.steps=240"
    assert budget_changes(read_sessions(tmp_path / "run" / ENVIRONMENT)) == [change]


def test_a_budget_under_which_no_step_was_saved_is_no_change(tmp_path: Path) -> None:
    run, about = tmp_path / "run", {"name": "r", "command": ["unmask"], "seed": 0, "device": "CPU"}
    take_steps(run, 100, {"steps": 300}, {})
    for steps, changes in ((400, ["at step 100, from train.steps=300 to train.steps=400"]), (300, [])):
        recipe = PretrainRecipe.model_validate({"store": "a-store", "train": {"steps": steps}})
        with beginning_run(run, recipe, **about, resume=True, overwrite=False):
            pass
        assert budget_changes(read_sessions(run / ENVIRONMENT)) == changes


def test_a_resume_that_is_refused_leaves_no_session(tmp_path: Path) -> None:
    take_steps(tmp_path / "run", 300, {"steps": 300}, {})
    before = (tmp_path / "run" / ENVIRONMENT).read_bytes()
    recipe = PretrainRecipe.model_validate({"store": "a-store", "train": {"steps": 400}})
    about: dict[str, Any] = {"name": "r", "command": ["unmask"], "seed": 0, "device": "CPU"}
    with pytest.raises(InputError), beginning_run(tmp_path / "run", recipe, **about, resume=True, overwrite=False):
        raise InputError("no such file")
    assert (tmp_path / "run" / ENVIRONMENT).read_bytes() == before
