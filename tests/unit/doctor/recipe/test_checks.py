"""What the doctor says of settings: each fault by its name, and nothing of the recipes that come with the project."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from unmask.doctor.recipe.checks import (
    PretrainingPlan,
    check_disk,
    check_memory,
    check_settings,
    differences_table,
    make_plan,
    memory_table,
    plan_table,
)
from unmask.doctor.recipe.estimates import MemoryEstimate, any_vocabulary
from unmask.doctor.recipe.material import Material, largest_phase
from unmask.doctor.recipe.needs import Needs
from unmask.doctor.samples import FirstStep
from unmask.models.settings import EncoderSettings
from unmask.objectives.table import new_objective
from unmask.pretraining.start import open_start
from unmask.recipe.loading import load_pretrain_recipe
from unmask.recipe.tree import PretrainRecipe
from unmask.training.device import choose_compute

FOLDER = Path(__file__).parents[4] / "recipes" / "pretrain"
OTHERS = ("elmo", "continued", "afternoon_deeper")
RECIPES = [path.stem for path in sorted(FOLDER.glob("*.yaml")) if not path.stem.startswith(OTHERS)]
"""Our own, of every objective that is examined, but for those that begin with another model."""


Number = float | None


def recipe(name: str, *overrides: str) -> PretrainRecipe:
    return load_pretrain_recipe(f"pretrain/{name}", ["corpus=text.txt", *overrides])


def plan_of(settings: PretrainRecipe, epochs_per_step: Number = None, step_s: Number = 1.0) -> PretrainingPlan:
    sizes = settings.model.resolve(30522)
    assert isinstance(sizes, EncoderSettings)
    objective = new_objective(settings.objective, any_vocabulary(30522))
    num_tokens = settings.train.batch_size * settings.packing.max_length * 0.95
    text = cast("FirstStep", SimpleNamespace(num_tokens=num_tokens, epochs=epochs_per_step))
    return make_plan(Needs(Material(open_start(settings), objective, sizes, text), choose_compute("cpu")), step_s)


def levels_of(name: str, *overrides: str, epochs_per_step: Number = None) -> dict[str, str]:
    settings = largest_phase(recipe(name, *overrides))
    return {found.name: found.level for found in check_settings(settings, plan_of(settings, epochs_per_step))}


@pytest.mark.parametrize("name", RECIPES)
def test_nothing_is_wrong_with_our_own_recipes(name: str) -> None:
    found = levels_of(name)
    # Those that run in minutes are short on tokens; those that are compared show a quarter of the text.
    few = {"few-tokens-per-parameter"}
    allowed = {"tiny": few, "mini": {"part-of-an-epoch", *few}, "afternoon": few, "night": few}
    assert set(found) <= allowed.get(name.rpartition("_")[2], set())
    assert "fault" not in found.values()


def test_left_to_right_models_may_see_their_text_more_often() -> None:
    assert "many-epochs" not in levels_of("gpt1_base", "train.epochs=100", epochs_per_step=0.01)
    assert "many-epochs" in levels_of("gpt1_base", "train.epochs=101", epochs_per_step=0.01)


@pytest.mark.parametrize(
    ("overrides", "name", "level"),
    [
        (["optimizer.learning_rate=0.2"], "learning-rate-high", "fault"),
        (["optimizer.learning_rate=6e-3"], "learning-rate-high", "warning"),
        (["optimizer.learning_rate=1e-6"], "learning-rate-low", "warning"),
        (["schedule.warmup_steps=1500"], "warmup-longer-than-run", "fault"),
        (["schedule.warmup_steps=1499"], "long-warmup", "warning"),
        (["schedule.warmup_steps=1400", "schedule.name=wsd"], "warmup-longer-than-run", "fault"),
        (["schedule.warmup_steps=1300", "schedule.name=wsd"], "long-warmup", "warning"),
        (["schedule.warmup_steps=700"], "long-warmup", "warning"),
        (["schedule.warmup_steps=0"], "no-warmup", "warning"),
        (["objective.target_prob=0.9"], "unusual-mask-rate", "warning"),
        (["train.batch_size=4"], "small-batch", "warning"),
        (["train.batch_size=100000"], "large-batch", "warning"),
        (["train.batch_size=200000", "optimizer.name=lamb"], "large-batch", "warning"),
        (["held_out=0"], "nothing-held-out", "warning"),
        (["objective.target_prob=0.01"], "unusual-mask-rate", "warning"),
        (["train.steps=100"], "few-tokens-per-parameter", "warning"),
        (["train.steps=10000", "train.save_every=null"], "rarely-saved", "note"),
    ],
)
def test_each_fault_is_named(overrides: list[str], name: str, level: str) -> None:
    assert levels_of("bert_tiny", *overrides)[name] == level
    assert name == "few-tokens-per-parameter" or name not in levels_of("bert_tiny")


def test_rates_are_judged_for_optimizers_whose_usual_ones_are_known() -> None:
    large, adagrad = "optimizer.learning_rate=0.2", ("optimizer.name=adagrad", "optimizer.weight_decay=0")
    found = levels_of("bert_tiny", *adagrad, large, "schedule.warmup_steps=0", "train.batch_size=100000")
    assert not {"learning-rate-high", "no-warmup", "large-batch"} & set(found)
    assert found["learning-rate-not-judged"] == "note"
    for name in ("muon", "lamb"):
        found = levels_of("bert_tiny", f"optimizer.name={name}", large)
        assert found["learning-rate-high"] == "fault"
        assert "learning-rate-not-judged" not in found


@pytest.mark.parametrize(("epochs", "name"), [(41, "many-epochs"), (39, None), (0.5, "part-of-an-epoch")])
def test_epochs(epochs: float, name: str | None) -> None:
    found = levels_of("bert_tiny", epochs_per_step=epochs / 1500)
    assert set(found) & {"many-epochs", "part-of-an-epoch"} == ({name} if name else set())


@pytest.mark.parametrize(
    ("epochs", "mode", "is_told"), [(9, "static", True), (11, "static", False), (9, "dynamic", False)]
)
def test_static_masks_of_a_run_without_a_second_round(epochs: float, mode: str, is_told: bool) -> None:
    found = levels_of("bert_tiny", f"objective.masking_mode={mode}", epochs_per_step=epochs / 1500)
    assert ("static-without-effect" in found) == is_told


@pytest.mark.parametrize("budget", ["train.steps=200", "train.tokens=778240", "train.epochs=2", "train.minutes=10"])
def test_every_budget_comes_to_steps_tokens_epochs_and_time(budget: str) -> None:
    plan = plan_of(recipe("bert_tiny", budget), 0.01, step_s=3.0)  # a step shows 32 x 128 x .95 = 3891.2 tokens
    assert (plan.steps, plan.tokens, plan.epochs, plan.seconds) == pytest.approx((200, 778240, 2, 600))


def test_what_cannot_be_known_is_said_to_be_so() -> None:
    settings = recipe("bert_tiny", "train.epochs=2")
    plan = plan_of(settings)
    assert (plan.steps, plan.tokens, plan.seconds) == (None, None, None)
    rows = dict(plan_table(plan, settings, 1e6).rows)
    assert rows["steps"] == rows["tokens"] == "not known before there is a text"
    settings = recipe("bert_tiny", "train.minutes=2")
    assert dict(plan_table(plan_of(settings, step_s=None), settings, 1e6).rows)["steps"].endswith("without the probe")


GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "name", "level", "advice"),
    [
        (40 * GIB, "memory", "good", ""),
        (14 * GIB, "memory", "warning", "micro_batch_size"),
        (8 * GIB, "too-large-for-memory", "fault", "train.micro_batch_size=12"),
        (3 * GIB, "too-large-for-memory", "fault", "a smaller model"),
    ],
)
def test_memory(free: int, name: str, level: str, advice: str) -> None:
    # 4 GiB whatever the batch, and 8 GiB for 32 sequences: in 8 GiB there is room for 16, of which .8 are dared, or 12.
    memory = MemoryEstimate(GIB, GIB, 2 * GIB, 0, activations=7 * GIB, logits=GIB)
    found = check_memory(memory, free, 32)
    assert (found.name, found.level) == (name, level)
    assert advice in found.advice
    assert dict(memory_table(memory, 32).rows)["in all"] == "12 GiB"


def test_of_phases_auto_is_the_whole_batch_of_the_longest() -> None:
    phases = "phases=[{until: .9, max_length: 64}, {until: 1, max_length: 128, batch_size: 48}]"
    settings = largest_phase(recipe("bert_tiny", "train.batch_size=64", "train.micro_batch_size=auto", phases))
    assert (settings.packing.max_length, settings.train.batch_size) == (128, 48)
    assert settings.train.micro_batch_size == "auto"


def test_disk() -> None:
    assert check_disk(GIB, 2 * GIB).level == "good"
    assert check_disk(3 * GIB, 2 * GIB).name == "disk-too-small"


def test_settings_of_a_tokenizer_beside_a_store_are_not_listed() -> None:
    """They have no effect there."""
    settings = load_pretrain_recipe("pretrain/bert_tiny", ["store=s"])
    assert not [row for row in differences_table(settings).rows if row[0].startswith("tokenizer")]
    assert ("tokenizer.vocab_size", "8,000", "30,522") in differences_table(recipe("bert_tiny")).rows


def test_only_what_differs_from_the_defaults_is_listed() -> None:
    train, optimizer = {"tokens": 1_000_000, "batch_size": 32, "recompute": True}, {"learning_rate": 2e-3}
    settings = PretrainRecipe.model_validate({"corpus": ["a.txt"], "train": train, "optimizer": optimizer})
    assert differences_table(settings).rows == (
        ("optimizer.learning_rate", "0.002", "0.0001"),
        ("train.tokens", "1,000,000", ""),
        ("train.batch_size", "32", "256"),
        ("train.recompute", "true", "false"),
    )
