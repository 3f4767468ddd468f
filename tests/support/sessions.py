"""One sitting of a run, resumed where it has been begun, and a small module to train in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask.batch import Batch, LossTerm, StepBatches, pack
from unmask.io.signals import Interruption
from unmask.models.trained import TrainedModule
from unmask.packing.loader import Position
from unmask.training.device import Compute
from unmask.training.optimizers.optimizer import Schedule
from unmask.training.run.best import Ending
from unmask.training.run.checkpoint import find_checkpoint
from unmask.training.run.log import RunLog
from unmask.training.session import RunContext, run_session
from unmask.training.settings import Cut, OptimizerSettings, ScheduleSettings, TrainSettings
from unmask.training.state import TrainState
from unmask.training.steps import Learner, StepSource


@dataclass(frozen=True)
class Settings:
    """The part of a recipe that a session reads."""

    train: TrainSettings
    optimizer: OptimizerSettings
    schedule: ScheduleSettings
    seed: int = 0

    def as_written(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Whole:
    """Steps from a position on, in micro-batches that nobody changes."""

    open: Callable[[Callable[[], float], Position], Iterator[StepBatches[Position]]]
    longest: None = None

    def cut(self, position: Any, most_tokens: int | None) -> Cut:
        return Cut(1, 1, 8).at_most(most_tokens)

    def steps(
        self, progress: Callable[[], float], position: Any, most_tokens: int | None
    ) -> Iterator[StepBatches[Position]]:
        start = position if isinstance(position, Position) else Position(**(position or {}))
        return self.open(progress, start)


def steps_from(step: int) -> Iterator[StepBatches[Position]]:
    """Endless steps of one sequence, whose key is the number of the step."""
    while True:
        step += 1
        yield StepBatches([pack([[step % 7, 1, 2]], keys=[step])], Position(sequence=step), step / 10)


NUMBERED = Whole(lambda progress, start: steps_from(start.sequence))


class Toy(TrainedModule):
    """It counts its batches, and has dropout. The column `poison`, where there is one, multiplies the loss."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(10, 4)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: Batch) -> list[LossTerm]:
        assert self.training
        self.seen += 1
        squares = self.dropout(self.embedding(batch.input_ids)).pow(2).sum()
        poison = batch.columns.get("poison", torch.ones(1)).prod()
        return [LossTerm("task", squares * poison, coefficient=2.0)]


class Noting(Toy):
    """It notes its weights when they are evaluated, by the number of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.evaluated: dict[int, Tensor] = {}

    def eval(self) -> Noting:
        self.evaluated[int(self.seen)] = self.embedding.weight.detach().clone()
        super().eval()
        return self


def sit(
    directory: Path,
    module: nn.Module,
    source: StepSource,
    settings: Mapping[str, Any],
    *,
    stops: Callable[[Batch], bool] = lambda batch: False,
    evaluate: Callable[[], dict[str, float]] | None = None,
    lower_is_better: frozenset[str] = frozenset(),
    change_stage: Callable[[TrainState, Schedule], bool] | None = None,
    draw_report: Callable[[], object] = lambda: None,
    counts: Callable[[Batch], dict[str, int]] = lambda batch: {"task": batch.num_tokens},
    optimizer: OptimizerSettings,
    schedule: ScheduleSettings,
) -> Ending:
    """`run_session` in a directory; a signal arrives where `stops` says so of a batch that is prepared."""
    directory.mkdir(exist_ok=True)
    interruption, compute = Interruption(), Compute(torch.device("cpu"), torch.float32, "a test")

    def prepare(batch: Batch) -> Batch:
        if stops(batch):
            interruption.signal_number = 15
        return batch

    checkpoint = find_checkpoint(directory / "checkpoints")
    with RunLog(directory) as log:
        return run_session(
            Learner(module, counts, prepare),
            source,
            Settings(TrainSettings.model_validate(settings), optimizer, schedule),
            RunContext("testing", directory, compute, log, interruption, checkpoint, draw_report=draw_report),
            evaluate=evaluate,
            lower_is_better=lower_is_better,
            change_stage=change_stage,
        )
