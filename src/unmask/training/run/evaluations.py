"""Measures the weights of a run on held-out data, and says which of them the run ends with."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass

import torch

from unmask.io.progress import counted, figures_in_a_line
from unmask.models.trained import TrainedModule
from unmask.training.averaging import WeightAverage
from unmask.training.distributed import Ranks
from unmask.training.run.best import Ending, choose_metric, newest_best, restore_best
from unmask.training.run.log import RunLog
from unmask.training.settings import TrainSettings
from unmask.training.state import TrainState
from unmask.training.stepping.protocol import Stepper
from unmask.training.steps import set_training_mode

logger = logging.getLogger("unmask")

_MOST_FIGURES = 10
"""Figures of an evaluation that the log shows; `metrics.jsonl` has all."""


@dataclass
class Evaluations:
    """The evaluations of one session of a run.

    Attributes:
        measure: returns the module's figures on held-out data, by name; None where there is none.
        average: of the weights, which is what is measured; None: the newest ones are.
        stepper: may free its memory for an evaluation.
        lower_is_better: the figures of which less is better, besides the loss.
    """

    module: TrainedModule
    measure: Callable[[], dict[str, float]] | None
    average: WeightAverage | None
    stepper: Stepper
    settings: TrainSettings
    log: RunLog
    ranks: Ranks
    lower_is_better: frozenset[str] = frozenset()

    def __call__(self, state: TrainState) -> None:
        """Measures the weights, and notes them in `state.best` where they are the best under `train.patience`."""
        state.evaluated_step = state.step
        if self.measure is None:
            return
        with self.average.used() if self.average is not None else nullcontext():
            self.module.eval()
            state.evaluation = self.ranks.from_first(self._measured(self.measure))
            set_training_mode(self.module)
            self._log(state)
            if self.settings.patience is not None:
                self._compare(state)

    def _measured(self, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        if self.settings.shard:
            return measure()  # it communicates within: no process can measure again alone
        with suppress(torch.OutOfMemoryError):  # an error that is kept would keep some of the memory
            return measure()
        self.stepper.release()  # memory held for steps may be in its way
        gc.collect()
        torch.cuda.empty_cache()
        return measure()

    def _log(self, state: TrainState) -> None:
        shown = dict(list(state.evaluation.items())[:_MOST_FIGURES])
        left = len(state.evaluation) - len(shown)
        figures = figures_in_a_line(shown) + (f" · {left} more" if left else "")
        with self.ranks.agreeing():
            self.log.write_evaluation(state.step, state.evaluation)
            logger.info("step %s: %s", f"{state.step:,}", figures)

    def _compare(self, state: TrainState) -> None:
        metric = choose_metric(state.evaluation, self.settings.metric, self.lower_is_better)
        state.best = newest_best(state.best, state.step, state.evaluation, metric, self.module)
        if state.has_lost_patience(self.settings):
            best = f"{state.best.evaluation[metric.name]:.4g}, that of step {state.best.step:,}"
            since = f"for {counted(state.best.evaluations_since, 'evaluation')}"
            logger.info("%s has not been better than %s, %s: the run ends here", metric.name, best, since)

    def give_final_weights(self, state: TrainState) -> Ending:
        """Gives the module the weights that the run ends with: those of the best evaluation under `train.patience`,
        else the average where there is one."""
        if state.best is not None:
            return restore_best(self.module, state.best, state.step)
        if self.average is not None:
            self.average.use()
        return Ending(state.step, state.evaluation, {})
