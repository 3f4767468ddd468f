"""Runs whose module learns in stages, each with its own schedule (ELECTRA in two stages)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from unmask.models.trained import TrainedModule
from unmask.training.optimizers.optimizer import Schedule
from unmask.training.settings import TrainSettings
from unmask.training.state import TrainState

logger = logging.getLogger("unmask")


def stage_changer(module: TrainedModule, settings: TrainSettings) -> Callable[[TrainState, Schedule], bool] | None:
    """A function that begins each stage of a run, with its own schedule, when the one before ends; None for one stage.

    It returns whether a stage has begun: the steps before it then get a metrics row of their own.
    """
    if len(module.stages) == 1:
        return None
    ends = module.stages

    def change(state: TrainState, schedule: Schedule) -> bool:
        if schedule.stage is None:
            schedule.begin_stage(state.done, until_share=ends[0])
        begins = module.stage + 1 < len(ends) and state.progress(settings) >= ends[module.stage]
        if begins:
            module.begin_stage(module.stage + 1)
            logger.info("step %s: stage %s of %s begins", f"{state.step + 1:,}", module.stage + 1, len(ends))
            schedule.begin_stage(state.done, until_share=ends[module.stage])
            state.recent_losses.clear()
        return begins

    return change
