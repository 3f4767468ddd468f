"""What goes wrong in the course of pre-training, as the command tells it, and what is left of the run."""

from __future__ import annotations

import errno
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file

from support.commands import Command
from support.ranks import run_ranks
from support.runs import weight_bytes
from unmask.models.hub import files
from unmask.pretraining.run import pretrain
from unmask.training import session
from unmask.training.run import checkpoint

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


def test_a_full_disk_keeps_the_earlier_checkpoint_and_the_run_can_go_on(
    words: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unmask: Command
) -> None:
    (recipe, overrides), run, save_file = words, tmp_path / "run", files.save_file

    def fill_up(tensors: Any, path: Path) -> None:
        if "step-00000008" in str(path) and path.name == checkpoint.OPTIMIZER:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_file(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "save_file", fill_up)
        finished = unmask("pretrain", recipe, *overrides, "--out", run, "--workers=1")
    assert finished.code == 2
    last = finished.errors.splitlines()[-1]
    assert "error: the disk is full while writing" in last
    assert last.endswith("; then the same command with --resume continues")
    assert "the disk is full" in (run / "log.txt").read_text()
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000004"]
    pretrain(*words, out=run, resume=True)
    pretrain(*words, out=tmp_path / "whole")
    assert weight_bytes(run / "model") == weight_bytes(tmp_path / "whole" / "model")


def test_a_loss_that_is_not_finite_is_told_and_never_saved(
    words: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unmask: Command
) -> None:
    recipe, overrides = words
    run, train = tmp_path / "run", session.train

    def train_and_spoil(learner: Any, *arguments: Any, **named: Any) -> None:
        *others, hooks = arguments

        def hook(state: Any, result: Any) -> None:
            hooks.on_step(state, result)
            if state.step == 5:
                with torch.no_grad():
                    learner.module.get_parameter("masked_lm_head.bias").fill_(math.nan)

        train(learner, *others, replace(hooks, on_step=hook), **named)

    monkeypatch.setattr(session, "train", train_and_spoil)
    # rows are further apart than checkpoints: those of steps 6 and 8 would push out the sound ones
    changes = ["train.log_every=50", "train.save_every=2", "train.keep_last=1"]
    finished = unmask("pretrain", recipe, *overrides, *changes, "--out", run, "--workers=1")
    assert finished.code == 2
    assert "not finite at step 6: the run has diverged" in finished.errors.splitlines()[-1]
    assert "optimizer.learning_rate" in finished.errors.splitlines()[-1]
    assert "the run has diverged" in (run / "log.txt").read_text()
    [kept] = (run / "checkpoints").iterdir()
    assert kept.name == "step-00000004"
    assert all(weight.isfinite().all() for weight in load_file(kept / checkpoint.WEIGHTS).values())


def test_our_own_fault_leaves_its_traceback_in_the_log_of_the_run(
    words: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unmask: Command
) -> None:
    def fail(*arguments: Any, **named: Any) -> NoReturn:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(session, "train", fail)
    recipe, overrides = words
    finished = unmask("pretrain", recipe, *overrides, "--out", tmp_path / "run", "--workers=1")
    assert finished.code == 1
    assert "Traceback" not in finished.errors
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Traceback (most recent call last)" in log
    assert "ZeroDivisionError: a mistake of ours" in log


def test_rows_of_another_run_end_all_processes_with_one_message(words: tuple[str, list[str]], tmp_path: Path) -> None:
    recipe, more = words
    command = ["pretrain", recipe, *more, "train.log_every=1", "--out", str(tmp_path / "run")]
    ended = run_ranks(*[[*command, "train.steps=2"]] * 2)
    assert [each.exit_code for each in ended] == [0, 0], ended[0].errors
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"step": 1,', '"step":  1,'))
    ended = run_ranks(*[[*command, "train.steps=3", "--resume"]] * 2)
    assert [each.exit_code for each in ended] == [2, 2]
    assert [each.errors.count("error: ") for each in ended] == [1, 0], ended[1].errors
    assert "are not those that the run has written" in ended[0].errors
