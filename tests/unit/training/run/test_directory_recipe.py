"""What a resume is compared with: the recipe in the newest checkpoint, else `recipe.yaml`."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from support.checkpoints import save_checkpoint
from support.corpora import contents
from unmask.config import build_settings, dump_settings, read_settings_file
from unmask.errors import CheckpointError, OutputError, SettingsError
from unmask.io.paths import CHECKPOINTS, RECIPE
from unmask.recipe.tree import FinetuneRecipe, PretrainRecipe
from unmask.training.optimizers.optimizer import Schedule, build_optimizer
from unmask.training.run.directory import beginning_run, opening_run
from unmask.training.run.log import METRICS
from unmask.training.run.resuming import Changes, changes_of
from unmask.training.settings import OptimizerSettings, ScheduleSettings
from unmask.training.state import TrainState


def recipe(**changes: Any) -> PretrainRecipe:
    return PretrainRecipe.model_validate({"store": "a-store", "train": {"steps": 20}, **changes})


def resume(run: Path, recipe: PretrainRecipe) -> Changes:
    with opening_run(run, recipe, resume=True, overwrite=False) as changes:
        return changes


def save(run: Path, saved: dict[str, Any]) -> None:
    module, optimizer = nn.Linear(1, 1), OptimizerSettings()
    state, schedule = TrainState(step=7, tokens=700), Schedule(ScheduleSettings())
    save_checkpoint(run / CHECKPOINTS, module, build_optimizer(module, optimizer), schedule, state, {}, 1, recipe=saved)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a checkpoint of step 7."""
    resume(tmp_path / "run", recipe())
    save(tmp_path / "run", recipe().as_written())
    return tmp_path / "run"


def test_a_run_is_not_resumed_with_its_own_recipe_edited(run: Path) -> None:
    edited = recipe(seed=7, optimizer={"learning_rate": 0.006})
    (run / RECIPE).write_text(dump_settings(edited))
    before = contents(run)
    told = r"with other settings: seed=7 \(it was 0\), optimizer\.learning_rate=0\.006 \(it was 0\.0001\)\. A resumed"
    with pytest.raises(SettingsError, match=told + ".*: give the same settings .*, or another --out"):
        resume(run, edited)
    assert contents(run) == before


def test_a_recipe_that_has_changed_since_is_given_as_the_run_has_it(run: Path) -> None:
    its = rf"give the same settings \(`unmask pretrain {run / RECIPE} --out {run} --resume` has them"
    with pytest.raises(
        SettingsError,
        match=rf"{its}, unless that file was edited; a recipe that comes with unmask .*\), or another --out$",
    ):
        resume(run, recipe(seed=7))


def test_a_budget_edited_there_is_a_changed_budget(run: Path) -> None:
    follows = {"objective": {"target_prob": 0.3, "target_prob_end": 0.15}}
    save(run, recipe(**follows).as_written())
    edited = recipe(**follows, train={"steps": 30})
    (run / RECIPE).write_text(dump_settings(edited))
    lines, checkpoint, budget, _ = resume(run, edited)
    assert lines == ["resumed with train.steps=30, where it was 20"]
    assert checkpoint is not None
    assert checkpoint.directory == run / "checkpoints" / "step-00000007"
    assert budget == {"step": 7, "was": "train.steps=20", "now": "train.steps=30"}


def test_a_run_whose_checkpoints_are_lost_is_refused_and_keeps_its_rows(tmp_path: Path) -> None:
    """Such as on a disk that is not mounted. The first is whole when the second is begun; a shorter `save_every` at the
    resume says nothing of how many there were."""
    resume(tmp_path, recipe(train={"steps": 20, "save_every": 4}))
    for step, is_lost in ((8, False), (9, True)):
        (tmp_path / METRICS).write_text(json.dumps({"step": step}) + "\n")
        before = contents(tmp_path)
        told = "rows up to step 9, but there is no checkpoint in .*checkpoints: is its disk mounted.*--overwrite$"
        with pytest.raises(CheckpointError, match=told) if is_lost else nullcontext():
            resume(tmp_path, recipe(train={"steps": 20, "save_every": 4}))
        assert contents(tmp_path) == before
    for save_every in (20, 1):
        resume(tmp_path / "run", recipe(train={"steps": 20, "save_every": save_every}))
        (tmp_path / "run" / METRICS).write_text('{"step": 9}\n')


def test_a_checkpoint_of_another_version_is_taken_as_it_is_and_told(run: Path) -> None:
    save(run, recipe().as_written() | {"seeds": 0})
    [line] = resume(run, recipe()).lines
    assert line.startswith(f"is compared with {run / RECIPE}, for the checkpoint is of another version: ")
    assert "unknown key seeds" in line


@pytest.mark.parametrize("damage", [None, b"", b"seed: [", b"\xff", b"a: recipe"], ids=str)
def test_a_recipe_that_is_lost_or_damaged(run: Path, damage: bytes | None) -> None:
    """It is written anew, from the checkpoint's."""
    (run / RECIPE).unlink()
    if damage is not None:
        (run / RECIPE).write_bytes(damage)
    with pytest.raises(SettingsError, match=r"begun with other settings: seed=7 \(it was 0\)"):
        resume(run, recipe(seed=7))
    before = contents(run)
    with pytest.raises(OutputError), opening_run(run, recipe(), resume=False, overwrite=False):
        pass
    assert contents(run) == before
    assert resume(run, recipe()).lines == []
    assert build_settings(PretrainRecipe, read_settings_file(run / RECIPE), "the run's") == recipe()


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}], ids=str)
@pytest.mark.parametrize(
    ("text", "beside"),
    [
        ("# Mine\nstore: a-store\ntrain: {steps: 20}\n", ()),
        ("seeds: 3\n", ("store", "trials")),
        ("seed: [", ("notes.md",)),
    ],
    ids=["the new run's", "another", "damaged"],
)
def test_a_recipe_that_no_run_wrote_is_not_replaced(
    tmp_path: Path, text: str, beside: tuple[str, ...], how: dict[str, bool]
) -> None:
    """Be it the recipe of the new run or another."""
    (tmp_path / RECIPE).write_text(text)
    for name in beside:
        (tmp_path / name).mkdir()
    before = contents(tmp_path)
    told = r"recipe\.yaml is not as a run of this version writes it, .*: move it, or choose another --out$"
    keeps = ("store", "trials")
    with (
        pytest.raises(OutputError, match=told),
        opening_run(tmp_path, recipe(), **{"resume": False, "overwrite": False, **how}, keeps=keeps),
    ):
        pass
    assert contents(tmp_path) == before


def test_a_run_that_was_killed_as_it_began_is_known_by_its_recipe(tmp_path: Path) -> None:
    """Under another budget too, and for one that replaces it."""
    resume(tmp_path / "run", recipe())
    resume(tmp_path / "run", recipe(train={"steps": 30}))
    with opening_run(tmp_path / "run", recipe(seed=3), resume=False, overwrite=True):
        pass
    assert "steps: 20" in (tmp_path / "run" / RECIPE).read_text()


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_run_may_move_to_another_device(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_checkpoint: bool
) -> None:
    run = tmp_path / "run"
    on_gpu = recipe(device="cuda", precision="bf16", train={"steps": 20, "micro_batch_size": 8})
    on_cpu = recipe(device="cpu", precision="fp32", train={"steps": 20, "micro_batch_size": 2})
    for given in (on_gpu, on_cpu):
        about: dict[str, Any] = {"name": "r", "command": [], "seed": 0, "device": given.device}
        with beginning_run(run, given, **about, resume=True, overwrite=False):
            pass
        if has_checkpoint:
            save(run, given.as_written())
    assert "resumed with precision=fp32, where it was bf16" in caplog.messages
    assert [line for line in caplog.messages if "not bit for bit as if it had never stopped" in line] == [
        "continues with cpu, where it was cuda: not bit for bit as if it had never stopped, for sums are rounded "
        "otherwise",
        "continues with micro-batches of another size: not bit for bit as if it had never stopped, for dropout zeroes "
        "other elements",
    ] * has_checkpoint


@pytest.mark.parametrize(
    ("then", "now", "changed"), [("last", None, False), (None, "last", False), ("last", "layer-1", True)]
)
def test_layers_that_an_earlier_version_wrote_are_null(then: str | None, now: str | None, changed: bool) -> None:
    before, after = (
        FinetuneRecipe.model_validate(
            {"init_from": "m", "data": {"train": "t.tsv"}, "task": {"name": "classification", "feature_layers": layers}}
        )
        for layers in (then, now)
    )
    assert list(changes_of(before, after)) == ["task.feature_layers"] * changed
