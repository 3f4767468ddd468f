"""Whole sessions: batches that follow the share done, stages with a schedule of their own, and what is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.runs import rows_of
from support.sessions import Whole, sit
from unmask.batch import Batch, LossTerm, StepBatches, pack
from unmask.errors import Interrupted
from unmask.models.trained import TrainedModule
from unmask.packing.loader import Position
from unmask.training.optimizers.optimizer import Schedule
from unmask.training.run.checkpoint import OPTIMIZER, WEIGHTS, find_checkpoint
from unmask.training.run.log import read_metrics
from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from unmask.training.state import TrainState


def phases(progress: Callable[[], float], start: Position) -> Iterator[StepBatches[Position]]:
    """Short sequences in the first .7 of a run, long ones after it."""
    sequence = start.sequence
    while True:
        sequence += 1
        phase = int(progress() >= 0.7)
        after = Position(sequence=sequence, phase=phase)
        yield StepBatches([pack([[sequence % 9] * (6 if phase else 2)])], after, sequence / 10)


class Toy(TrainedModule):
    """A first part that is trained in both stages, and a second that is trained in the second alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Embedding(10, 4), nn.Embedding(10, 4)
        self.dropout = nn.Dropout(0.5)
        self.is_second_stage = False

    def forward(self, batch: Batch) -> list[LossTerm]:
        hidden = self.first(batch.input_ids)
        if self.is_second_stage:
            hidden = hidden + self.second(batch.input_ids)
        return [LossTerm("task", self.dropout(hidden).pow(2).sum())]


def run(
    directory: Path,
    *,
    schedule: ScheduleSettings = ScheduleSettings(warmup_steps=2),  # noqa: B008  frozen
    stop_after: int | None = None,
    stage_at: float | None = None,
    optimizer: str = "adamw",
    **settings: Any,
) -> list[int]:
    """A run, resumed where it has been begun; it returns the tokens of each batch that it was given."""
    module, seen = Toy(), list[int]()
    settings = {"log_every": 1, **settings}

    def change_stage(state: TrainState, schedule: Schedule) -> bool:
        share = state.progress(TrainSettings.model_validate(settings))
        if stage_at is None or share < stage_at:
            return False
        module.is_second_stage = True
        if schedule.stage is not None:
            return False
        with torch.no_grad():
            module.second.weight.copy_(module.first.weight)
        schedule.begin_stage(state.done)
        return True

    def stops(batch: Batch) -> bool:
        seen.append(batch.num_tokens)
        return len(seen) == stop_after

    sit(
        directory,
        module,
        Whole(phases),
        settings,
        stops=stops,
        change_stage=change_stage,
        optimizer=OptimizerSettings.model_validate({"name": optimizer, "learning_rate": 0.1}),
        schedule=schedule,
    )
    return seen


@pytest.mark.parametrize("budget", [{"steps": 10}, {"tokens": 20}, {"epochs": 1}], ids=str)
def test_batches_follow_the_share_done(tmp_path: Path, budget: dict[str, float]) -> None:
    assert run(tmp_path, **budget) == [*[2] * 7, *[6] * (1 if "tokens" in budget else 3)]


@pytest.fixture(scope="module", params=["adamw", "lamb"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run that was never interrupted, and its settings."""
    directory = tmp_path_factory.mktemp("whole")
    changes = {"steps": 10, "stage_at": 0.5, "optimizer": request.param}
    run(directory, **changes)
    return directory, changes


@pytest.mark.parametrize("stop_after", range(1, 10))
def test_phases_and_stages_resume_bit_for_bit_at_any_step(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]], stop_after: int
) -> None:
    directory, changes = whole
    with pytest.raises(Interrupted):
        run(tmp_path, stop_after=stop_after, **changes)
    run(tmp_path, **changes)
    ends = [find_checkpoint(each / "checkpoints") for each in (directory, tmp_path)]
    first, second = (end for end in ends if end is not None)
    for name in (WEIGHTS, OPTIMIZER):
        assert (first.directory / name).read_bytes() == (second.directory / name).read_bytes()
    assert first.state["position"] == second.state["position"]
    assert (first.state["position"]["phase"], first.state["position"]["sequence"]) == (1, 10)
    unbroken, resumed = ([row["learning_rate"] for row in rows_of(each)] for each in (directory, tmp_path))
    expected = [0, 0.05, 0.1, 0.1 * 7 / 8, 0.1 * 6 / 8, 0, 0.05, 0.1, 0.1 * 2 / 3, 0.1 / 3]
    assert unbroken == resumed == pytest.approx(expected)


@pytest.mark.parametrize("stop_after", range(1, 10))
def test_no_step_is_without_a_row_and_a_resumed_run_has_the_same_rows(tmp_path: Path, stop_after: int) -> None:
    """At the end of the run, of its first stage, and where it is stopped."""
    changes: dict[str, Any] = {"steps": 10, "stage_at": 0.5, "log_every": 4}
    run(tmp_path / "whole", **changes)
    assert [row["step"] for row in rows_of(tmp_path / "whole")] == [4, 5, 8, 10]
    with pytest.raises(Interrupted):
        run(tmp_path / "run", stop_after=stop_after, **changes)
    assert rows_of(tmp_path / "run")[-1]["step"] == stop_after
    run(tmp_path / "run", **changes)
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "whole")


def test_a_run_that_is_done_says_so_and_how_to_continue(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path, tokens=9)
    rows = rows_of(tmp_path)
    with caplog.at_level(logging.INFO, "unmask"):
        assert run(tmp_path, tokens=9) == []
    assert [message for message in caplog.messages if not message.startswith("steps:")] == [
        "nothing is left to train: the run has taken its 5 steps, all of train.tokens=9; a larger train.tokens "
        "continues from there"
    ]
    assert rows_of(tmp_path) == rows


def test_a_run_by_time_has_each_steps_rate_and_is_not_repeatable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def levels(which: str) -> list[str]:
        message = f"{which} run under train.minutes is not repeatable bit for bit"
        return [record.levelname for record in caplog.records if message in record.getMessage()]

    with caplog.at_level(logging.INFO, "unmask"):
        with pytest.raises(Interrupted):
            run(tmp_path, minutes=1e6, stop_after=3, log_every=50)
        assert levels("a") == ["INFO"]
        run(tmp_path, minutes=1e-9, log_every=50)
    assert levels("a resumed") == ["WARNING"]
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert [row["learning_rate"] for row in rows] == pytest.approx([0, 0.05, 0.1], abs=1e-6)  # 3 steps of 1e6 minutes


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"steps": 4}, "schedule.warmup_steps=1,000 of the 4 steps of the run: the run ends before its learning rate"),
        ({"tokens": 1}, "the run took one step, whose learning rate a warm-up begins at 0: nothing was learnt"),
        ({"tokens": 8}, "the run took 4 steps and schedule.warmup_steps is 1,000: its learning rate was never reached"),
    ],
    ids=str,
)
def test_a_warm_up_longer_than_the_run_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, budget: dict[str, float], message: str
) -> None:
    with caplog.at_level(logging.WARNING, "unmask"):
        run(tmp_path, schedule=ScheduleSettings(warmup_steps=1000), **budget)
    [line] = caplog.messages
    assert line.startswith(message)
