"""Runs that launch several captured steps before they look: when they look, where they end, and their checkpoints."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support.captured_toy import Run, endless_steps, new_run, train_both
from support.checkpoints import save_checkpoint
from support.tensors import assert_equal
from unmask.errors import Interrupted
from unmask.training.run.best import Best, copy_weights
from unmask.training.run.checkpoint import OPTIMIZER, WEIGHTS, find_checkpoint, restore
from unmask.training.settings import ScheduleSettings
from unmask.training.state import TrainState


@pytest.mark.parametrize("budget", [{"steps": 30}, {"tokens": 3000}, {"epochs": 1.7}], ids=str)
def test_a_budget_ends_a_run_that_launches_ahead_where_it_ends_any_other(budget: dict[str, float]) -> None:
    eager, captured = train_both(budget, log_every=8, schedule=ScheduleSettings(warmup_steps=5))
    assert eager.shown == captured.shown  # none is requested after the last step


def test_a_device_is_not_ahead_of_what_is_known_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many steps the loop looks, whether one is due or not."""
    plain, looking = new_run("captured"), new_run("captured")
    plain.train({"steps": 20}, log_every=10)
    monkeypatch.setattr("unmask.training.captured.stepper._MOST_LAUNCHED", 3)
    known: list[int] = []
    looking.train({"steps": 20}, log_every=10, on_step=lambda state: known.append(state.step))
    assert known == [3, 6, 9, 10, 13, 16, 19, 20]
    assert looking.rows == plain.rows
    assert torch.equal(looking.weights(), plain.weights())


def test_a_run_without_batches_left_reads_what_it_has_launched() -> None:
    eager, captured = train_both({"steps": 100}, lambda start: islice(endless_steps(start), 10), log_every=7)
    assert captured.state.step == 10
    assert eager.state.counts == captured.state.counts


def test_patience_ends_a_run_at_the_evaluation_that_ended_it() -> None:
    def evaluate(run: Run, state: TrainState) -> None:
        if state.step % 5 == 0:
            state.best = Best(5, {"loss": 1.0}, copy_weights(run.module), evaluations_since=state.step // 5 - 1)

    settings = {"steps": 100, "patience": 3, "eval_every": 5}
    _, captured = train_both(settings, log_every=5, on_step=evaluate)
    assert captured.state.step == 20


def test_a_signal_in_the_middle_of_an_interval_stops_after_what_has_been_launched() -> None:
    """As `Session` does: a step is due once a signal has come, and the hook raises."""
    run, plain = new_run("captured"), new_run("captured")
    called: list[int] = []

    def is_due(state: TrainState) -> bool:
        called.append(state.step)
        return state.step >= 11

    def stop(state: TrainState) -> None:
        if state.step >= 11:
            raise Interrupted("stopped", 15)

    with pytest.raises(Interrupted):
        run.train({"steps": 40}, log_every=7, on_step=stop, is_due=is_due)
    assert (run.state.step, run.state.position) == (11, 11)
    assert called == [step for step in range(1, 12) if step != 7]
    plain.train({"steps": 11}, log_every=7)
    assert run.state.recent_losses == plain.state.recent_losses
    assert torch.equal(run.weights(), plain.weights())


def test_minutes_are_looked_at_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Session.is_due` says so; a clock that moves a second at each look."""
    run = new_run("captured")
    seconds = iter(range(10**6))
    monkeypatch.setattr("unmask.training.loop.time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    run.train({"minutes": 0.1}, is_due=lambda state: True)
    assert run.state.step == 6


# Checkpoints


def save(directory: Path, run: Any) -> None:
    position = {"step": run.state.position}
    save_checkpoint(directory, run.module, run.optimizer, run.schedule, run.state, position, keep_last=9)


@pytest.mark.parametrize("stop", [1, 6, 13])
def test_a_run_that_continues_from_a_checkpoint_is_bit_for_bit_one_that_never_stopped(
    tmp_path: Path, stop: int
) -> None:
    """With dropout, whose numbers depend on the shapes of padded batches, and so must not on those seen before."""
    schedule = ScheduleSettings(warmup_steps=4)
    whole = new_run("captured", dropout_prob=0.2, schedule=schedule)
    whole.train({"steps": 20}, log_every=10, is_due=lambda state: state.step == stop)
    first = new_run("captured", dropout_prob=0.2, schedule=schedule)

    def leave(state: TrainState) -> None:
        if state.step == stop:
            save(tmp_path, first)
            raise Interrupted("stopped", 15)

    with pytest.raises(Interrupted):
        first.train({"steps": 20}, log_every=10, on_step=leave, is_due=lambda state: state.step == stop)
    second = new_run("captured", dropout_prob=0.2, schedule=schedule)
    torch.manual_seed(99)
    checkpoint = find_checkpoint(tmp_path)
    second.state = restore(checkpoint, second.module, second.optimizer, second.schedule)
    second.train({"steps": 20}, lambda _: endless_steps(stop), log_every=10)
    assert torch.equal(whole.weights(), second.weights())
    assert torch.equal(whole.moments(), second.moments())
    assert whole.state.recent_losses == second.state.recent_losses
    assert whole.rows[-1][5] == second.rows[-1][5]
    other = new_run("captured", dropout_prob=0.2, schedule=schedule)
    torch.manual_seed(99)
    other.train({"steps": 20}, log_every=10)
    assert not torch.equal(whole.weights(), other.weights())  # dropout is drawn


def test_a_checkpoint_of_flat_parameters_holds_each_once(tmp_path: Path) -> None:
    sizes = []
    for kind in ("eager", "captured"):
        run = new_run(kind)
        run.train({"steps": 2})
        save(tmp_path / kind, run)
        directory = tmp_path / kind / "step-00000002"
        assert_equal(load_file(directory / WEIGHTS), dict(run.module.state_dict()))
        sizes.append([(directory / name).stat().st_size for name in (WEIGHTS, OPTIMIZER)])
    assert sizes[0] == sizes[1]
