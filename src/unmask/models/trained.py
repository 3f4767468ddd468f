"""What the loop reads of a module that it trains, be it an objective's or a task's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import nn

from unmask.batch import Batch, LossTerm
from unmask.models.buckets import Paddings


class TrainedModule(nn.Module, ABC):
    """A module that is trained.

    Attributes:
        lane_buffers: the names of buffers with an axis of lanes, their third; of several processes each has the newest
            entries of its own lanes, and they are joined before the buffers are saved.
        stage: the present one, from 0. Where there are several it is part of the `state_dict`, so that a checkpoint
            has it.
    """

    lane_buffers: ClassVar[tuple[str, ...]] = ()
    stage: int = 0

    @property
    def paddings(self) -> Paddings | None:
        """How the columns that `forward` reads are padded to a bucket; None: they cannot be, and its steps are not
        captured."""
        return None

    @property
    def num_parameters(self) -> int:
        """How many numbers its parameters hold, frozen ones too; one that several parts share counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def stages(self) -> tuple[float, ...]:
        """The shares of the budget at which each stage of a run ends, ascending; the last is 1. Each stage trains
        different weights."""
        return (1.0,)

    def begin_stage(self, number: int) -> None:
        """Enters a stage: the present one or the next."""
        assert number == self.stage, "a module of one stage has no next one"

    @abstractmethod
    def forward(self, batch: Batch) -> list[LossTerm]:
        """The terms of the loss on a prepared batch."""
