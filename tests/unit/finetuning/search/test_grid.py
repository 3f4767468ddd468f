"""The runs of a search: their names, their settings, and what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest

from support.searches import new_recipe
from unmask.errors import SettingsError
from unmask.finetuning.search.grid import plan_trials


def test_every_combination_is_run_with_every_seed() -> None:
    search = {"learning_rates": [3e-5, 0.0001], "batch_sizes": [16, 32], "epochs": [2, 2.5], "restarts": 2}
    trials = plan_trials(new_recipe(search, seed=7))
    assert [trial.name for trial in trials[:5]] == [
        "lr3e-05_batch16_epochs2_seed7",
        "lr3e-05_batch16_epochs2_seed8",
        "lr3e-05_batch16_epochs2.5_seed7",
        "lr3e-05_batch16_epochs2.5_seed8",
        "lr3e-05_batch32_epochs2_seed7",
    ]
    assert len({trial.name for trial in trials}) == 16
    last = trials[-1]
    assert last.name == "lr0.0001_batch32_epochs2.5_seed8"
    assert (last.settings.optimizer.learning_rate, last.settings.train.batch_size) == (1e-4, 32)
    assert (last.settings.train.epochs, last.settings.seed) == (2.5, 8)
    assert not last.settings.search.is_wanted


def test_what_is_not_listed_is_as_the_recipe_says() -> None:
    (only, other) = plan_trials(new_recipe({"restarts": 2}, train={"steps": 1000, "batch_size": 8}))
    assert (only.name, other.name) == ("lr5e-05_batch8_steps1000_seed0", "lr5e-05_batch8_steps1000_seed1")
    assert only.settings == new_recipe({}, train={"steps": 1000, "batch_size": 8})


def test_checkpoints_and_layers_are_part_of_the_name() -> None:
    settings = new_recipe({"checkpoints": ["runs/a/model", "other/a", "b c"], "transfer_layers": [0, 6]})
    trials = plan_trials(settings)
    assert [trial.name for trial in trials] == [
        *("a_lr5e-05_batch16_epochs3_layers0_seed0", "a_lr5e-05_batch16_epochs3_layers6_seed0"),
        *("a-2_lr5e-05_batch16_epochs3_layers0_seed0", "a-2_lr5e-05_batch16_epochs3_layers6_seed0"),
        *("b-c_lr5e-05_batch16_epochs3_layers0_seed0", "b-c_lr5e-05_batch16_epochs3_layers6_seed0"),
    ]
    assert [trial.settings.init_from for trial in trials[::2]] == ["runs/a/model", "other/a", "b c"]
    assert [trial.settings.transfer_layers for trial in trials] == [0, 6] * 3
    assert len({trial.point for trial in trials}) == 2


def test_numbers_of_examples_are_part_of_the_name() -> None:
    trials = plan_trials(new_recipe({"train_examples": [10, 100], "transfer_layers": [0]}))
    assert [trial.name for trial in trials] == [
        "lr5e-05_batch16_epochs3_examples10_layers0_seed0",
        "lr5e-05_batch16_epochs3_examples100_layers0_seed0",
    ]
    assert [trial.settings.data.train_examples for trial in trials] == [10, 100]
    assert trials[0].settings.data.train == new_recipe({}).data.train


def test_no_two_checkpoints_share_a_name() -> None:
    trials = plan_trials(new_recipe({"checkpoints": ["a/x-3", "b/x", "c/x"]}))
    assert [trial.name.split("_")[0] for trial in trials] == ["x-3", "x", "x-3-3"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"search": {"learning_rates": [3e-5, 1e-5, 0.00003]}}, "learning_rates holds 3e-05 twice"),
        ({"search": {"epochs": [1]}, "train": {"steps": 9}}, r"search\.epochs and train\.steps=9 both set the length"),
        ({"search": {"restarts": 2}, "data": {"train": "x"}}, r"give data\.dev, or leave out search"),
        ({"search": {"ensemble": True}}, "ensemble needs several runs"),
        ({"search": {"learning_rates": [0]}}, "learning_rates"),
        ({"search": {"parallel": 2}}, "parallel=2 is for a search, and here is one run: set restarts, or leave it out"),
        ({"search": {"transfer_layers": [0, 1]}, "from_scratch": True}, "from_scratch=true none: keep one"),
        ({"search": {"restarts": 2}, "seed": 2**63 - 1},
         rf"search, lr5e-05_batch16_epochs3_seed{2**63}: seed={2**63}: expected less than"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_what_contradicts_itself_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        plan_trials(new_recipe(**given))
