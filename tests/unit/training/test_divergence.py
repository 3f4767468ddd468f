"""Steps that are not taken: how they are detected, what is kept of them, and how a run continues after one."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from support.sessions import Toy, Whole, sit
from unmask.batch import StepBatches, pack
from unmask.errors import Interrupted, OutputError, UserError
from unmask.packing.loader import Position
from unmask.training.divergence import BadStep, advise, divergence_fault, keep_bad_step
from unmask.training.run.checkpoint import OPTIMIZER, WEIGHTS, find_checkpoint
from unmask.training.run.log import read_metrics
from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from unmask.training.stepping.protocol import StepFigures
from unmask.training.steps import NumberedStep, PreparedStep

# What is wrong with a step


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)])
def test_what_is_not_finite_is_a_fault_at_any_step(loss: float, norm: float) -> None:
    fault = "the loss or its gradient is not finite at step 1: the run has diverged"
    assert divergence_fault(1, loss, norm, [], None) == fault


RECENT = [*[2.0] * 30, *[3.0] * 31, *[90.0] * 30]
"""Their median is 3 and their mean 31: the large ones do not hide another."""


@pytest.mark.parametrize(
    ("loss", "recent", "factor", "is_spike"),
    [
        (6.01, RECENT, 2.0, True),
        (6.0, RECENT, 2.0, False),
        (6.01, RECENT, 2.1, False),
        (6.01, RECENT, None, False),
        (50.0, [3.0] * 20, 2.0, True),
        (50.0, [3.0] * 19, 2.0, False),
        (50.0, [*[0.0] * 30, *[3.0] * 20], 2.0, False),
        (50.0, [*[0.0] * 20, *[3.0] * 30], 2.0, True),
    ],
)
def test_a_spike_is_over_a_multiple_of_the_median(
    loss: float, recent: list[float], factor: float | None, is_spike: bool
) -> None:
    assert (divergence_fault(5, loss, 1.0, recent, factor) is not None) == is_spike


def test_a_spike_is_reported_with_its_rule() -> None:
    assert divergence_fault(1234, 7.5, 1.0, RECENT, 2.0) == (
        "the loss at step 1,234 is 7.5, over 2 times (train.spike_factor) 3, the median of the last 91 steps "
        "with the same loss terms"
    )


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_up(*arguments: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("unmask.models.hub.files.save_file", fill_up)
    step = NumberedStep(PreparedStep([pack([[1, 2]])], {}, 2, 0, None, 0.0), 3, 2, 0, 0, 0.1)
    bad = BadStep(step, StepFigures({}, 1.0, {}), "a fault", [])
    with pytest.raises(OutputError, match=r"the disk is full while writing .*3"):
        keep_bad_step(tmp_path / "divergence", bad, 0)
    assert list((tmp_path / "divergence").iterdir()) == []


# Whole runs


def steps_of(numbers: Sequence[int], poison: dict[int, float]) -> Iterator[StepBatches[Position]]:
    """Steps of two micro-batches, by number; what a number is poisoned with, its loss is multiplied by."""
    for number in numbers:
        factors = torch.tensor([1.0, poison.get(number, 1.0)])
        first = pack([[number % 7, 1, 2], [3]], keys=[number, -number]).with_columns(poison=factors)
        second = pack([[4]]).with_columns(poison=torch.ones(1))
        yield StepBatches([first, second], Position(sequence=number), number / 10)


def run(
    directory: Path,
    poison: dict[int, float],
    *,
    numbers: Sequence[int] | None = None,
    stop_at: int | None = None,
    draw_report: Callable[[], object] = lambda: None,
    **settings: Any,
) -> Toy:
    """A run of 12 steps, resumed where it has been begun; it is interrupted after the batch `stop_at`."""
    module = Toy()
    sit(
        directory,
        module,
        Whole(lambda progress, start: steps_of(numbers or range(start.sequence + 1, 1000), poison)),
        {"steps": 12, "save_every": 4, "log_every": 3} | settings,
        stops=lambda batch: batch.keys is not None and stop_at is not None and int(batch.keys[0]) == stop_at,
        draw_report=draw_report,
        optimizer=OptimizerSettings(learning_rate=0.01),
        schedule=ScheduleSettings(warmup_steps=2),
    )
    return module


def same_end(one: Path, other: Path) -> bool:
    """Whether the newest checkpoints have the same weights and moments."""
    ends = [find_checkpoint(directory / "checkpoints") for directory in (one, other)]
    first, second = (end.directory for end in ends if end is not None)
    return all((first / name).read_bytes() == (second / name).read_bytes() for name in (WEIGHTS, OPTIMIZER))


def test_the_report_of_a_run_that_diverged_has_its_last_row_and_hides_no_error(tmp_path: Path) -> None:
    steps: list[int] = []

    def draw() -> None:
        steps.extend(row["step"] for row in read_metrics(tmp_path / "metrics.jsonl"))
        raise OSError("no space left")

    with pytest.raises(UserError, match="the run has diverged"):
        run(tmp_path, {7: math.nan}, draw_report=draw)
    assert steps == [3, 6, 7]


def test_a_run_stops_before_the_update_and_keeps_step_and_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the run has diverged") as stop:
        run(tmp_path, {7: math.nan}, log_every=100)
    kept = tmp_path / "divergence" / "step-00000007"
    for words in (f"are in {kept}", "--resume and train.on_divergence=roll_back", "earlier checkpoints are kept"):
        assert words in str(stop.value)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000004"]
    tensors = load_file(kept / "batches.safetensors")
    first, second = next(steps_of([7], {7: math.nan})).batches
    assert tensors.keys() == {
        *(f"0.{name}" for name in ("input_ids", "token_type_ids", "position_ids", "bounds", "keys", "columns.poison")),
        *(f"1.{name}" for name in ("input_ids", "token_type_ids", "position_ids", "bounds", "columns.poison")),
    }
    assert torch.equal(tensors["0.input_ids"], first.input_ids)
    assert torch.equal(tensors["0.bounds"], first.bounds)
    assert torch.equal(tensors["0.keys"], first.keys)
    assert tensors["0.columns.poison"].isnan().tolist() == [False, True]
    assert torch.equal(tensors["1.input_ids"], second.input_ids)
    figures = json.loads((kept / "figures.json").read_text())
    assert (figures["step"], figures["loss"], figures["loss/task"], figures["counts"]) == (7, None, None, {"task": 5})
    assert (figures["micro_batches"], len(figures["recent_losses"])) == (2, 6)
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["step"] == 7  # where the curves end


def test_the_steps_before_it_have_their_row(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the run has diverged"):
        run(tmp_path, {8: math.nan}, log_every=5, save_every=6)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    found = [(row["step"], row["tokens"], row["loss"] is None) for row in rows]
    assert found == [(5, 25, False), (7, 35, False), (8, 40, True)]
    with pytest.raises(UserError, match="the run has diverged"):  # of step 6 there is a checkpoint
        run(tmp_path, {7: math.nan}, log_every=5, save_every=6)
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [5, 6, 7]
    run(tmp_path, {}, log_every=5, save_every=6)
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [5, 10, 12]


def test_a_gradient_alone_may_be_at_fault(tmp_path: Path) -> None:
    """1e30 squared is within float32 as a loss and its gradient's norm, 1e60 squared, is not."""
    with pytest.raises(UserError, match="not finite at step 3"):
        run(tmp_path, {3: 1e30})
    figures = json.loads((tmp_path / "divergence" / "step-00000003" / "figures.json").read_text())
    assert (figures["loss"] is not None, figures["gradient_norm"]) == (True, None)


def test_rolled_back_a_run_is_one_without_the_batches_between(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "unmask"):
        run(tmp_path / "rolled", {7: math.inf}, on_divergence="roll_back", log_every=1)
    run(tmp_path / "plain", {}, numbers=[1, 2, 3, 4, *range(8, 100)], log_every=1)
    assert same_end(tmp_path / "rolled", tmp_path / "plain")
    [message, summary] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "back to the weights of step 4, with the text after the step (1 of at most 3 times)" in message
    assert str(tmp_path / "rolled" / "divergence" / "step-00000007") in message
    assert "the run has rolled back once" in summary
    rolled, plain = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("rolled", "plain"))
    assert [row["step"] for row in rolled] == list(range(1, 13))  # each step once
    assert [row["loss"] for row in rolled] == [row["loss"] for row in plain]
    end = find_checkpoint(tmp_path / "rolled" / "checkpoints")
    assert (end.state["roll_backs"], end.state["position"]["sequence"]) == (1, 15)


def test_a_spike_rolls_back_too(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"steps": 32, "on_divergence": "roll_back", "spike_factor": 5.0}
    run(tmp_path / "rolled", {10: 50.0, 27: 50.0}, **changes)  # the tenth has too few before it to be judged
    numbers = [*range(1, 25), *range(28, 100)]
    run(tmp_path / "plain", {10: 50.0, 27: 50.0}, numbers=numbers, **changes)
    assert same_end(tmp_path / "rolled", tmp_path / "plain")
    assert [path.name for path in (tmp_path / "rolled" / "divergence").iterdir()] == ["step-00000027"]
    assert not (tmp_path / "plain" / "divergence").exists()


@pytest.mark.parametrize("stop_at", [3, 6, 8, 9, 12, 14])
def test_interrupted_is_uninterrupted_bit_for_bit(tmp_path: Path, stop_at: int) -> None:
    changes: dict[str, Any] = {"on_divergence": "roll_back"}
    poison = {7: math.nan, 13: math.nan}
    run(tmp_path / "whole", poison, **changes)
    with pytest.raises(Interrupted):
        run(tmp_path / "run", poison, stop_at=stop_at, **changes)
    run(tmp_path / "run", poison, **changes)
    ends = [find_checkpoint(tmp_path / name / "checkpoints") for name in ("whole", "run")]
    timed = dict.fromkeys(("seconds", "logged_seconds", "files", "warmup_end", "metrics_sha256"))
    states = [end.state | timed for end in ends if end is not None]
    assert states[0]["roll_backs"] == 2
    assert states[0] == states[1]
    assert same_end(tmp_path / "whole", tmp_path / "run")


def test_a_run_stopped_often_goes_back_as_far_as_one_that_was_not(tmp_path: Path) -> None:
    """However few checkpoints are kept: that of step 4 stays."""
    changes: dict[str, Any] = {"on_divergence": "roll_back", "keep_last": 1}
    poison = {8: math.nan, 10: math.nan}
    run(tmp_path / "whole", poison, **changes)
    for stop_at in (5, 6, 7, 9):
        with pytest.raises(Interrupted):
            run(tmp_path / "run", poison, stop_at=stop_at, **changes)
    run(tmp_path / "run", poison, **changes)
    assert same_end(tmp_path / "whole", tmp_path / "run")
    end = find_checkpoint(tmp_path / "run" / "checkpoints")
    assert end.state["roll_backs"] == 2


def test_a_stopped_run_continues_past_the_step_when_reported_to(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the run has diverged"):
        run(tmp_path / "run", {7: math.nan})
    run(tmp_path / "run", {7: math.nan}, on_divergence="roll_back")
    run(tmp_path / "whole", {7: math.nan}, on_divergence="roll_back")
    assert same_end(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize(("roll_backs", "times"), [(1, "1 time"), (2, "2 times")])
def test_how_often_it_rolled_back_is_told(roll_backs: int, times: str) -> None:
    advice = advise(TrainSettings(steps=9, on_divergence="roll_back"), 7, roll_backs, has_checkpoint=True)
    assert advice.startswith(f"The run has rolled back {times}, as often as train.max_roll_backs allows")


def test_it_rolls_back_only_so_often(tmp_path: Path) -> None:
    poison = dict.fromkeys((7, 9, 11), math.nan)
    with pytest.raises(UserError, match=r"has rolled back 2 times, as often as train\.max_roll_backs"):
        run(tmp_path, poison, on_divergence="roll_back", max_roll_backs=2)
    kept = sorted(path.name for path in (tmp_path / "divergence").iterdir())
    assert kept == ["step-00000006-again-1", "step-00000006-again-2", "step-00000007"]


def test_without_a_checkpoint_there_is_nothing_to_roll_back_to(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no checkpoint to roll back to yet.*a train\.save_every under 2$"):
        run(tmp_path, {2: math.nan}, on_divergence="roll_back")


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b""), lambda path: path.unlink()])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    changes: dict[str, Any] = {"on_divergence": "roll_back"}
    with pytest.raises(Interrupted):
        run(tmp_path / "run", {11: math.nan}, stop_at=9, **changes)
    damage(tmp_path / "run" / "checkpoints" / "step-00000009" / WEIGHTS)
    run(tmp_path / "run", {11: math.nan}, **changes)
    run(tmp_path / "plain", {}, numbers=[*range(1, 9), *range(12, 100)], **changes)
    assert same_end(tmp_path / "run", tmp_path / "plain")
