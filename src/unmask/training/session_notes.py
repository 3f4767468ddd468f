"""What a session of a run says before its first step and after its last."""

from __future__ import annotations

import logging

from unmask.training.loop import TrainState
from unmask.training.settings import BUDGETS, ScheduleSettings, TrainSettings, warmup_shortfall

logger = logging.getLogger("unmask")


def tell_resumed(state: TrainState, settings: TrainSettings, *, in_parts: bool) -> None:
    """Says where a run goes on, or that there is nothing left of it.

    Args:
        in_parts: the run has phases or stages, whose places depend on the budget, so that it cannot get a larger one.
    """
    if state.progress(settings) >= 1:
        budget = next(name for name in BUDGETS if getattr(settings, name) is not None)
        logger.info(
            "nothing is left to train: the run has taken its %s steps, all of train.%s=%s; %s",
            f"{state.step:,}",
            budget,
            getattr(settings, budget),
            "a new run goes on from its model with init_from="
            if in_parts
            else f"a larger train.{budget} goes on from there",
        )
    elif state.is_over(settings):
        logger.info("nothing is left to train: the run has ended at step %s by train.patience", f"{state.step:,}")
    else:
        logger.info("resumed from step %s", f"{state.step:,}")


def tell_limits(settings: TrainSettings, schedule: ScheduleSettings, *, is_resumed: bool) -> None:
    """Says beforehand what may differ from what one expects of the recipe."""
    if settings.minutes is not None:
        logger.log(
            logging.WARNING if is_resumed else logging.INFO,
            "%s under train.minutes is not repeatable bit for bit: its number of steps and their rates follow from the "
            "time that they take; each step's rate is in metrics.jsonl",
            "a resumed run" if is_resumed else "a run",
        )
    if settings.steps is not None and (told := warmup_shortfall(schedule, settings.steps)) is not None:
        logger.warning(told)


def tell_shortfalls(state: TrainState, settings: TrainSettings, schedule: ScheduleSettings) -> None:
    """Says afterwards what has not gone as the recipe says."""
    if settings.steps is None and state.step < (schedule.warmup_steps or 0):
        logger.warning(
            "the run took %s steps and schedule.warmup_steps is %s: its learning rate was never reached",
            f"{state.step:,}",
            f"{schedule.warmup_steps:,}",
        )
    if state.roll_backs:
        logger.warning("the run has rolled back %s time(s); what it left out is in divergence/", state.roll_backs)
