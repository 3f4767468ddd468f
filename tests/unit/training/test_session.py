"""What happens after each step: rows, evaluations and checkpoints fall where they are due, and once each."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from support.sessions import NUMBERED, Settings, Toy, sit
from unmask.errors import Interrupted
from unmask.io.progress import Progress
from unmask.io.signals import Interruption
from unmask.models.trained import TrainedModule
from unmask.training.device import Compute
from unmask.training.distributed import ALONE
from unmask.training.memory import MicroBatches
from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer, build_optimizer
from unmask.training.run.checkpoint import find_checkpoint, restore
from unmask.training.run.evaluations import Evaluations
from unmask.training.run.log import RunLog
from unmask.training.session import RunContext, Session
from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from unmask.training.state import StepResult, TrainState
from unmask.training.stepping.eager import EagerStepper
from unmask.training.stepping.protocol import Stepper
from unmask.training.steps import Learner


@dataclass
class Notes:
    """Replaces the log."""

    rows: list[tuple[str, int]] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)

    def write_training(self, **row: Any) -> None:
        self.rows.append(("row", row["step"]))
        self.figures.append(row)

    def write_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        self.rows.append(("evaluation", step))

    def digest(self) -> str:
        return ""


class Linear(nn.Linear, TrainedModule):
    """It is saved, and never called."""


class Sitting:
    """A session whose steps are pretended."""

    def __init__(self, directory: Path, state: TrainState | None = None, **settings: Any) -> None:
        self.notes, self.interruption, self.modes = Notes(), Interruption(), list[bool]()
        self.pages: list[str] = []
        self.module = Linear(2, 2)
        optimizer = build_optimizer(self.module, OptimizerSettings())
        compute = Compute(torch.device("cpu"), torch.float32, "a test")
        self.state = state or TrainState()
        train, log = (
            TrainSettings.model_validate({"steps": 10, "save_every": None, **settings}),
            cast(RunLog, self.notes),
        )
        stepper = EagerStepper(self.module, optimizer, None, compute)
        self.evaluations = Evaluations(self.module, self.evaluate, None, stepper, train, log, ALONE)
        self.session = Session(
            RunContext(
                "testing", directory, compute, log, self.interruption, draw_report=lambda: self.pages.append("page")
            ),
            Settings(train, OptimizerSettings(), ScheduleSettings()),
            self.module,
            ScheduledOptimizer(optimizer, Schedule(ScheduleSettings())),
            MicroBatches(NUMBERED, Learner(self.module, lambda batch: {}), compute, float),
            self.evaluations,
            self.state.step or None,
        )
        self.checkpoints = directory / "checkpoints"

    def evaluate(self) -> dict[str, float]:
        self.modes.append(self.module.training)
        return {"mlm_loss": float(self.state.step)}

    def take_steps(self, number: int, loss: float = 2.0) -> None:
        for _ in range(number):
            state = self.state
            state.step += 1
            state.tokens += 100
            state.seconds += 2.0
            state.position = {"sequence": state.step}
            state.totals["mlm"] = state.totals.get("mlm", 0.0) + 8 * loss
            state.counts["mlm"] = state.counts.get("mlm", 0) + 8
            self.session(state, StepResult(1e-3, 1.0, 100, {"mlm": 3.0}))

    def saved(self) -> list[int]:
        return sorted(int(path.name.removeprefix("step-")) for path in self.checkpoints.glob("step-*"))


def test_all_is_done_where_it_is_due_and_after_the_last_step(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, log_every=4, eval_every=3, save_every=5, keep_last=9)
    sitting.take_steps(10)
    sitting.session.finish(sitting.state)
    rows = [step for kind, step in sitting.notes.rows if kind == "row"]
    evaluations = [step for kind, step in sitting.notes.rows if kind == "evaluation"]
    assert (rows, evaluations, sitting.saved()) == ([4, 8, 10], [3, 6, 9, 10], [5, 10])
    assert sitting.modes == [False] * 4
    assert sitting.module.training
    assert sitting.state.evaluation == {"mlm_loss": 10.0}


def test_a_row_has_the_mean_since_the_last_one_times_its_coefficient(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, log_every=2)
    sitting.take_steps(1, loss=1.0)
    sitting.take_steps(1, loss=2.0)
    sitting.take_steps(2, loss=5.0)
    first, second = sitting.notes.figures
    assert (first["terms"], first["loss"]) == ({"mlm": 1.5}, 4.5)
    assert (second["terms"], second["loss"]) == ({"mlm": 5.0}, 15.0)
    assert second["tokens_per_s"] == 50.0
    assert (second["learning_rate"], second["gradient_norm"], second["tokens"]) == (1e-3, 1.0, 400)


def test_a_row_has_no_figure_of_what_had_no_target(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, log_every=1)
    state = sitting.state
    for count in (0, 4):
        state.step += 1
        state.position = {"sequence": state.step}
        state.totals, state.counts = {"mlm": 2.0 * count, "sbo": 0.0}, {"mlm": count, "sbo": 0}
        sitting.session(state, StepResult(1e-3, 1.0, 100, {"mlm": 3.0, "sbo": 1.0}))
    assert [(row["terms"], row["loss"]) for row in sitting.notes.figures] == [({}, None), ({"mlm": 2.0}, 6.0)]


def test_a_session_that_begins_at_the_end_does_not_evaluate_again(tmp_path: Path) -> None:
    state = TrainState(step=10, evaluation={"mlm_loss": 0.5}, evaluated_step=10, position={})
    sitting = Sitting(tmp_path, state)
    sitting.session.finish(state)
    assert (sitting.notes.rows, sitting.saved()) == ([], [])
    assert sitting.state.evaluation == {"mlm_loss": 0.5}


def test_a_session_that_begins_beyond_the_end_evaluates_once_and_saves_that(tmp_path: Path) -> None:
    state = TrainState(step=12, evaluation={"mlm_loss": 0.5}, evaluated_step=9, position={})
    sitting = Sitting(tmp_path, state)
    sitting.session.finish(state)
    assert (sitting.notes.rows, sitting.saved()) == ([("evaluation", 12)], [12])


def test_steps_that_have_no_row_yet_get_one_at_the_end(tmp_path: Path) -> None:
    """Where the batches end, or a run that was stopped is to end there."""
    sitting = Sitting(tmp_path, log_every=4)
    sitting.take_steps(4, loss=1.0)
    sitting.take_steps(3, loss=2.0)
    sitting.session.finish(sitting.state)
    found = [(row["step"], row["loss"], row["tokens_per_s"]) for row in sitting.notes.figures]
    assert found == [(4, 3.0, 50.0), (7, 6.0, 50.0)]


def test_a_row_goes_over_a_stop(tmp_path: Path) -> None:
    """Its rate too, which is of time spent training."""
    stopped = Sitting(tmp_path, log_every=4)
    stopped.take_steps(5, loss=1.0)
    stopped.interruption.signal_number = 15
    with pytest.raises(Interrupted):
        stopped.take_steps(1, loss=2.0)
    assert [(row["step"], row["loss"]) for row in stopped.notes.figures] == [(4, 3.0), (6, 4.5)]
    found = find_checkpoint(stopped.checkpoints)
    optimizer = stopped.session.optimizer
    parts = stopped.module, optimizer.optimizer, optimizer.schedule
    resumed = Sitting(tmp_path, restore(found, *parts), log_every=4)
    resumed.take_steps(2, loss=6.0)
    [row] = resumed.notes.figures
    assert (row["step"], row["loss"], row["tokens_per_s"]) == (8, 3 * (1 + 2 + 6 + 6) / 4, 50.0)


@pytest.mark.parametrize("step", [3, 5, 10])
def test_a_signal_saves_and_stops(tmp_path: Path, step: int) -> None:
    sitting = Sitting(tmp_path, save_every=5)
    sitting.take_steps(step - 1)
    sitting.interruption.signal_number = 15
    with pytest.raises(Interrupted, match=rf"stopped at step {step}, {step * 10}% of the run; everything is saved"):
        sitting.take_steps(1)
    assert sitting.saved()[-1] == step
    assert sitting.pages == ["page"]


def test_the_page_is_drawn_after_an_evaluation_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 25))
    monkeypatch.setattr("unmask.training.session.time", SimpleNamespace(monotonic=lambda: next(clock)))
    sitting = Sitting(tmp_path, eval_every=1)
    sitting.take_steps(9)
    assert len(sitting.pages) == 3


def test_an_evaluation_that_does_not_fit_beside_graphs_is_tried_without_them(tmp_path: Path) -> None:
    sitting = Sitting(tmp_path, eval_every=1)
    released: list[int] = []

    def evaluate() -> dict[str, float]:
        if not released:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return {"mlm_loss": 2.0}

    sitting.evaluations.measure = evaluate
    with pytest.raises(torch.OutOfMemoryError):
        sitting.take_steps(1)  # nothing to release
    sitting.evaluations.stepper = cast(Stepper, SimpleNamespace(release=lambda: released.append(sitting.state.step)))
    sitting.take_steps(1)
    assert (released, sitting.state.evaluation) == ([2], {"mlm_loss": 2.0})
    assert sitting.module.training


def test_the_progress_bar_moves_once_a_step_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[float] = []
    monkeypatch.setattr(Progress, "update", lambda _, fraction, tokens: shown.extend((fraction, tokens)))
    with pytest.raises(Interrupted):
        sit(
            tmp_path,
            Toy(),
            NUMBERED,
            {"steps": 4},
            stops=lambda batch: batch.keys is not None and int(batch.keys[0]) == 2,
            optimizer=OptimizerSettings(),
            schedule=ScheduleSettings(),
        )
    assert shown == [0, 0, 0.25, 3, 0.5, 6]
