"""A run in stages: where each begins, whatever the module, and that resumed it begins where it would have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.sessions import NUMBERED, sit
from support.tensors import assert_equal
from unmask.batch import Batch, LossTerm
from unmask.errors import Interrupted
from unmask.models.trained import TrainedModule
from unmask.pretraining.stages import stage_changer
from unmask.training.run.log import read_metrics
from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings


class Staged(TrainedModule):
    """In each stage, one of its weights learns."""

    stages: tuple[float, ...] = (1.0,)  # type: ignore[assignment]  # in place of a property

    def __init__(self, *stages: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.ParameterList(torch.randn(3) for _ in stages)
        self.stages, self.stage = stages, 0
        self.begun: list[int] = []

    def begin_stage(self, number: int) -> None:
        self.stage = number
        self.begun.append(number)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.stage)

    def set_extra_state(self, state: Any) -> None:
        self.stage = int(state)

    def forward(self, batch: Batch) -> list[LossTerm]:
        return [LossTerm(f"term{self.stage}", self.weights[self.stage].pow(2).sum() * batch.num_tokens)]


STEPS = {"steps": 20, "log_every": 1, "save_every": 3}
TRAIN = TrainSettings.model_validate(STEPS)


def pretrain(run: Path, module: Staged, stop_at: int | None = None) -> None:
    """Twenty steps, resumed where they have been begun; a signal arrives with the batch `stop_at`."""
    sit(
        run,
        module,
        NUMBERED,
        STEPS,
        stops=lambda batch: batch.keys.tolist() == [stop_at],
        change_stage=stage_changer(module, TRAIN),
        counts=lambda batch: {f"term{stage}": 5 for stage in range(3)},
        optimizer=OptimizerSettings(learning_rate=0.1),
        schedule=ScheduleSettings(warmup_steps=2),
    )


def test_each_stage_begins_where_the_one_before_ends_with_a_schedule_of_its_own(tmp_path: Path) -> None:
    """Twenty steps: the stages have 4, 6 and 10, each with two of warm-up."""
    module = Staged(0.2, 0.5, 1.0)
    pretrain(tmp_path, module)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    terms = [next(key for key in row if key.startswith("loss/")) for row in rows]
    assert terms == ["loss/term0"] * 4 + ["loss/term1"] * 6 + ["loss/term2"] * 10
    rates = [rate for rest in (2, 4, 8) for rate in (0, 0.5, *(left / rest for left in range(rest, 0, -1)))]
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.1 * rate for rate in rates])
    assert module.begun == [1, 2]


@pytest.mark.parametrize("stop_at", [3, 4, 5, 10, 11, 15])
def test_resumed_the_stages_are_those_of_a_run_that_never_stopped(tmp_path: Path, stop_at: int) -> None:
    whole, stopped, resumed = (Staged(0.2, 0.5, 1.0) for _ in range(3))
    pretrain(tmp_path / "whole", whole)
    with pytest.raises(Interrupted):
        pretrain(tmp_path / "run", stopped, stop_at)
    pretrain(tmp_path / "run", resumed)
    assert stopped.begun + resumed.begun == [1, 2]  # each once
    assert_equal(list(resumed.parameters()), list(whole.parameters()))


def test_what_has_one_stage_is_left_alone() -> None:
    assert stage_changer(Staged(1.0), TRAIN) is None
