"""Checkpoints: all of a run comes back bit for bit, and what is damaged is never used."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from support.checkpoints import save_checkpoint
from support.corpora import names
from support.tensors import assert_equal
from unmask.errors import CheckpointError, OutputError
from unmask.io.paths import CHECKPOINTS
from unmask.models.hub import files
from unmask.packing.loader import Position
from unmask.training.optimizers.optimizer import Schedule, Stage, build_optimizer
from unmask.training.run import checkpoint as module_under_test
from unmask.training.run.checkpoint import (
    OPTIMIZER,
    RANDOM,
    STATE,
    WEIGHTS,
    find_checkpoint,
    list_steps,
    remove_later,
    restore,
    state_digest,
)
from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from unmask.training.state import StepResult, TrainState

OPTIMIZERS = {
    "adamw": OptimizerSettings(),
    "uncorrected adamw": OptimizerSettings(bias_correction=False),
    "lamb": OptimizerSettings(name="lamb"),
    "muon": OptimizerSettings(name="muon"),
    "adagrad": OptimizerSettings(name="adagrad", learning_rate=0.2, weight_decay=0),
}


class Run:
    """A small run in the middle of things."""

    def __init__(self, optimizer: str = "adamw", hidden_size: int = 6) -> None:
        torch.manual_seed(hidden_size)
        parts: list[tuple[str, nn.Module]] = [
            ("blocks", nn.Linear(4, hidden_size)),
            ("dropout", nn.Dropout(0.5)),
            ("norm", nn.LayerNorm(hidden_size)),
        ]
        self.module = nn.Sequential(OrderedDict(parts))
        self.module.register_buffer("seen", torch.zeros(3, dtype=torch.int64))
        self.optimizer = build_optimizer(self.module, OPTIMIZERS[optimizer])
        self.schedule = Schedule(ScheduleSettings(warmup_steps=2))
        self.state = TrainState()

    def take_steps(self, number: int) -> torch.Tensor:
        for _ in range(number):
            output = self.module(torch.ones(2, 4))
            output.pow(2).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.state.step += 1
            self.state.tokens += 8
            self.state.epochs += 0.1
            self.state.seconds += 1 / 3
            self.state.totals["mlm"] = self.state.totals.get("mlm", 0.0) + 0.1
            self.state.counts["mlm"] = self.state.counts.get("mlm", 0) + 8
        return output.detach()

    def save(
        self, checkpoints: Path, keep_last: int = 10, save_every: int | None = None, keep_every: int | None = None
    ) -> Path:
        position = {"epoch": 0, "block": 3, "sequence": self.state.step}
        parts = self.module, self.optimizer, self.schedule, self.state
        return save_checkpoint(checkpoints, *parts, position, keep_last, save_every, keep_every)

    def restore(self, checkpoints: Path) -> None:
        found = find_checkpoint(checkpoints)
        self.state = restore(found, self.module, self.optimizer, self.schedule)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_everything_comes_back_bit_for_bit(tmp_path: Path, optimizer: str) -> None:
    run = Run(optimizer)
    run.take_steps(3)
    run.module.seen += 7
    run.schedule.warmup_end = {"steps": 2, "tokens": 16, "epochs": 0.2, "minutes": 0.1}
    run.schedule.stage = Stage({"steps": 1, "tokens": 8, "epochs": 0.1, "minutes": 0.05}, 0.75)
    run.state.evaluation, run.state.evaluated_step = {"mlm_loss": 0.1 + 0.2}, 2
    run.state.recent_losses, run.state.roll_backs = {"lm+mlm": [0.1 + 0.2, 1e300]}, 2
    run.state.newest = StepResult(0.1 + 0.2, 1 / 3, 8, {"mlm": 1.0})
    run.state.logged_tokens, run.state.logged_seconds = 16, 2 / 3
    run.save(tmp_path)
    expected = run.take_steps(2)  # with dropout: the generator is part of it

    resumed = Run(optimizer)
    torch.manual_seed(99)
    resumed.restore(tmp_path)
    state = resumed.state
    assert (state.step, state.tokens, state.epochs, state.seconds) == (3, 24, 0.1 + 0.1 + 0.1, 1 / 3 + 1 / 3 + 1 / 3)
    assert state.position == {"epoch": 0, "block": 3, "sequence": 3}
    assert (state.evaluation, state.evaluated_step) == ({"mlm_loss": 0.1 + 0.2}, 2)
    assert state.counts == {"mlm": 24}
    assert (state.newest, state.logged_tokens, state.logged_seconds) == (run.state.newest, 16, 2 / 3)
    assert (state.recent_losses, state.roll_backs) == ({"lm+mlm": [0.1 + 0.2, 1e300]}, 2)
    assert (resumed.schedule.warmup_end, resumed.schedule.stage) == (run.schedule.warmup_end, run.schedule.stage)
    assert torch.equal(resumed.take_steps(2), expected)
    assert resumed.state.totals == run.state.totals
    assert_equal(resumed.module.state_dict(), run.module.state_dict())
    assert_equal(resumed.optimizer.state_dict()["state"], run.optimizer.state_dict()["state"])


def test_before_the_first_step_there_is_no_optimizer_state(tmp_path: Path) -> None:
    run = Run()
    run.save(tmp_path)
    expected = run.take_steps(1)
    resumed = Run()
    resumed.restore(tmp_path)
    assert (resumed.state.step, dict(resumed.optimizer.state)) == (0, {})
    assert torch.equal(resumed.take_steps(1), expected)


def test_a_checkpoint_is_safetensors_and_json_only(tmp_path: Path) -> None:
    directory = Run().save(tmp_path)
    assert directory.name == "step-00000000"
    assert names(directory) == sorted([WEIGHTS, OPTIMIZER, RANDOM, STATE])
    assert json.loads((directory / STATE).read_text())["step"] == 0


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    run = Run()
    for _ in range(4):
        run.take_steps(5)
        run.save(tmp_path, keep_last=2)
    assert names(tmp_path) == ["step-00000015", "step-00000020"]


def test_the_same_step_is_saved_anew(tmp_path: Path) -> None:
    run = Run()
    run.take_steps(2)
    run.save(tmp_path, keep_last=1)
    run.state.evaluated_step = 2
    run.save(tmp_path, keep_last=1)
    found = find_checkpoint(tmp_path)
    assert found.state["evaluated_step"] == 2
    assert names(tmp_path) == ["step-00000002"]


def test_those_of_due_steps_come_first_where_that_is_asked(tmp_path: Path) -> None:
    run = Run()
    for steps in (4, 4, 3):
        run.take_steps(steps)
        run.save(tmp_path)
    (tmp_path / "step-00000099.copy").mkdir()  # somebody's own
    assert [found.step for every in (1, 4, 5) if (found := find_checkpoint(tmp_path, every))] == [11, 8, 11]
    remove_later(tmp_path, 8)
    assert [found.step for every in (1, 4) if (found := find_checkpoint(tmp_path, every))] == [8, 8]


def test_the_newest_one_due_stays_however_many_follow(tmp_path: Path) -> None:
    run = Run()
    for steps, kept in ((4, [4]), (4, [8]), (1, [8, 9]), (1, [8, 10]), (2, [12])):
        run.take_steps(steps)
        run.save(tmp_path, keep_last=1, save_every=4)
        (tmp_path / "step-copy").mkdir(exist_ok=True)  # somebody's own
        assert list_steps(tmp_path) == kept


def test_a_link_or_a_file_with_the_name_of_one_is_removed_like_it(tmp_path: Path) -> None:
    run, checkpoints = Run(), tmp_path / "checkpoints"
    first = run.save(checkpoints)
    first.rename(tmp_path / "elsewhere")
    first.symlink_to(tmp_path / "elsewhere")
    for name in ("step-00000001", "step-00000002", ".unfinished-step-00000003"):
        (checkpoints / name).write_text("somebody's own")
    for _ in range(3):
        run.take_steps(1)
        run.save(checkpoints, keep_last=1)
    assert names(checkpoints) == ["step-00000003"]
    assert (tmp_path / "elsewhere" / STATE).is_file()


def test_an_old_one_that_cannot_be_removed_is_told_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, rmtree = Run(), shutil.rmtree
    old = run.save(tmp_path)

    def refuse(path: Path, **how: Any) -> None:
        if path == old:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        rmtree(path, **how)

    run.take_steps(1)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        run.save(tmp_path, keep_last=1)
    assert caplog.messages == [f"{old} cannot be removed ({os.strerror(errno.EBUSY)})"]
    assert list_steps(tmp_path) == [0, 1]


def test_those_of_every_so_many_steps_stay(tmp_path: Path) -> None:
    run = Run()
    for _ in range(7):
        run.take_steps(2)
        run.save(tmp_path, keep_last=2, save_every=2, keep_every=4)
    assert list_steps(tmp_path) == [4, 8, 12, 14]


@pytest.mark.parametrize("save_every", [None, 3])
def test_only_what_is_saved_can_be_kept(save_every: int | None) -> None:
    with pytest.raises(ValueError, match=f"keep_every=4 has to be a multiple of save_every={save_every}"):
        TrainSettings(steps=9, keep_every=4, save_every=save_every)


def test_there_may_be_none(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path / "missing") is None
    assert find_checkpoint(tmp_path) is None


def test_a_link_to_a_folder_that_is_not_there_is_no_lack_of_them(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").symlink_to("disk")
    with pytest.raises(CheckpointError, match="checkpoints is a link to disk, which is not there: is its disk mounted"):
        find_checkpoint(tmp_path / "checkpoints")


# Damage


def truncate(directory: Path) -> None:
    content = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(content[:-1])


def flip(name: str) -> Any:
    def flip_byte(directory: Path) -> None:
        content = bytearray((directory / name).read_bytes())
        content[len(content) // 2] ^= 1
        (directory / name).write_bytes(content)

    return flip_byte


def forge_step(directory: Path) -> None:
    text = (directory / STATE).read_text()
    (directory / STATE).write_text(text.replace('"sequence": 20', '"sequence": 29'))


def forge(directory: Path, **changes: Any) -> None:
    """Writes another state, with the checksum of that."""
    state = json.loads((directory / STATE).read_text()) | changes
    del state["sha256"]
    (directory / STATE).write_text(json.dumps(state | {"sha256": state_digest(state)}))


FORGED: list[tuple[str, Any]] = [
    *[(name, None) for name in ("step", "position", "files", "recipe")],
    ("step", "9"),
    ("seconds", "1"),
    ("totals", 5),
    ("recent_losses", [1.0]),
    ("best", {"step": 1, "evaluation": {}, "evaluations_since": 0}),
]
DAMAGES: dict[str, tuple[Any, str]] = {
    "truncated file": (truncate, r"weights\.safetensors: \d+ bytes where \d+ were written"),
    "flipped byte in the weights": (flip(WEIGHTS), r"weights\.safetensors: its checksum is not"),
    "flipped byte in the optimizer": (flip(OPTIMIZER), r"optimizer\.safetensors: its checksum is not"),
    "flipped byte in the generators": (flip(RANDOM), r"random\.safetensors: its checksum is not"),
    "another digit in the position": (forge_step, r"state\.json: its checksum is not"),
    "missing file": (lambda directory: (directory / OPTIMIZER).unlink(), r"optimizer\.safetensors: missing"),
    "missing state": (lambda directory: (directory / STATE).unlink(), r"state\.json: cannot be read"),
    "empty state": (lambda directory: (directory / STATE).write_text(""), r"state\.json: not JSON"),
    "foreign state": (lambda directory: (directory / STATE).write_text("[1]"), r"state\.json: expected a JSON object"),
    "state without a checksum": (lambda directory: (directory / STATE).write_text("{}"), r"state\.json: its checksum"),
    "state of 200 MB": (
        lambda directory: os.truncate(directory / STATE, 200_000_000),
        r"state\.json: 200,000,000 bytes",
    ),
    "state that is a pipe": (
        lambda directory: ((directory / STATE).unlink(), os.mkfifo(directory / STATE)),
        r"state\.json is a device, a pipe or a socket: expected a file",
    ),
    **{
        f"state with {field}={value!r}": (
            lambda directory, field=field, value=value: forge(directory, **{field: value}),
            rf"state\.json: made by .* \(no {field}, or not what",
        )
        for field, value in FORGED
    },
}


def saved_twice(checkpoints: Path) -> Path:
    run = Run()
    for _ in range(2):
        run.take_steps(10)
        newest = run.save(checkpoints)
    return newest


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_passed_over_with_the_reason(tmp_path: Path, damage: str) -> None:
    spoil, reason = DAMAGES[damage]
    newest = saved_twice(tmp_path)
    spoil(newest)
    found = find_checkpoint(tmp_path)
    assert (found.step, found.directory.name) == (10, "step-00000010")
    assert len(found.damaged) == 1
    with pytest.raises(CheckpointError, match=reason):
        raise CheckpointError(found.damaged[0])
    assert str(newest) in found.damaged[0]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("name", [WEIGHTS, OPTIMIZER])
def test_one_that_the_disk_does_not_give_back_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    newest, read = saved_twice(tmp_path), module_under_test.sha256

    def fail(path: Path) -> str:
        if path == newest / name:
            raise OSError(number, os.strerror(number), str(path))
        return read(path)

    monkeypatch.setattr(module_under_test, "sha256", fail)
    found = find_checkpoint(tmp_path)
    assert (found.step, found.damaged) == (10, (f"{newest / name}: cannot be read ({os.strerror(number)})",))


def test_a_directory_left_by_a_kill_is_never_looked_at_and_goes_with_the_next_save(tmp_path: Path) -> None:
    newest = saved_twice(tmp_path)
    left = newest.with_name(".unfinished-step-00000030")
    newest.rename(left)
    found = find_checkpoint(tmp_path)
    assert (found.step, found.damaged) == (10, ())
    run = Run()
    run.restore(tmp_path)
    run.take_steps(1)
    run.save(tmp_path)
    assert names(tmp_path) == ["step-00000010", "step-00000011"]


def test_where_none_is_sound_each_is_named(tmp_path: Path) -> None:
    saved_twice(tmp_path)
    for directory in tmp_path.iterdir():
        truncate(directory)
    with pytest.raises(CheckpointError, match=r"no checkpoint of this run can be used.*--overwrite") as refusal:
        find_checkpoint(tmp_path)
    assert "step-00000010" in str(refusal.value)
    assert "step-00000020" in str(refusal.value)


def test_one_of_another_version_is_passed_over_without_advice(tmp_path: Path) -> None:
    newest = saved_twice(tmp_path / CHECKPOINTS)
    forge(newest, roll_backs=None)
    found = find_checkpoint(newest.parent)
    assert found is not None
    reason = f"{newest / STATE}: made by another version of unmask (no roll_backs, or not what this one has under it)"
    assert found.damaged == (reason,)


def test_a_damaged_later_one_does_not_push_out_those_saved_after_it(tmp_path: Path) -> None:
    """Counted among the last, it would leave a run with nothing but damage."""
    truncate(saved_twice(tmp_path))
    run = Run()
    run.restore(tmp_path)
    run.take_steps(2)
    run.save(tmp_path, keep_last=1)
    found = find_checkpoint(tmp_path)
    assert found.step == 12
    assert names(tmp_path) == ["step-00000012", "step-00000020"]


def test_a_position_of_another_kind_of_run_is_refused(tmp_path: Path) -> None:
    run = Run()
    run.take_steps(1)
    run.save(tmp_path)
    found = find_checkpoint(tmp_path)
    assert found is not None
    with pytest.raises(CheckpointError, match=r"state\.json: its position is not one of this run: .*'data'"):
        replace(found, state={**found.state, "position": {"epoch": 1, "data": 5}}).position(Position)


@pytest.mark.parametrize("other", ["size", "names"])
def test_another_models_checkpoint_is_refused(tmp_path: Path, other: str) -> None:
    run = Run()
    run.take_steps(1)
    run.save(tmp_path)
    another = Run(hidden_size=7)
    if other == "names":
        another.module = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 6), nn.LayerNorm(6))
    with pytest.raises(CheckpointError, match=r"step-00000001: does not fit this run's model"):
        another.restore(tmp_path)


# A full disk


NO_SPACE = "Error while serializing: I/O error: No space left on device"


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), SafetensorError(f"{NO_SPACE} (os error 28)")]
)
@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_full_disk_leaves_the_earlier_checkpoint_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, fails_at: int
) -> None:
    run = Run()
    run.take_steps(10)
    run.save(tmp_path, keep_last=1)
    run.take_steps(10)
    save_file, calls = files.save_file, 0

    def fill_up(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise error
        save_file(*arguments)

    monkeypatch.setattr(files, "save_file", fill_up)
    with pytest.raises(OutputError, match=r"disk is full while writing [^;]*: free some space"):
        run.save(tmp_path, keep_last=1)
    assert names(tmp_path) == ["step-00000010"]
    found = find_checkpoint(tmp_path)
    assert (found.step, found.damaged) == (10, ())
