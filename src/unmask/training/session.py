"""One sitting of a run: what happens after each step, for pre-training and fine-tuning alike.

It logs, evaluates, saves, and stops when asked to; it is the hook that the loop calls.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.batch import Batch
from unmask.errors import Interrupted, SettingsError, UserError
from unmask.interruption import Interruption
from unmask.progress import Progress
from unmask.training.best import Best, choose_metric, copy_weights, is_better
from unmask.training.checkpoint import Checkpoint, restore, save_checkpoint
from unmask.training.device import Compute
from unmask.training.loop import StepBatches, StepResult, TrainState, set_training_mode, train
from unmask.training.optimizer import Schedule, build_optimizer
from unmask.training.run_log import RunLog
from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings

logger = logging.getLogger("unmask")

_MOST_FIGURES = 6
"""Of an evaluation that the log tells; `metrics.jsonl` has all."""


def run_session(
    what: str,
    directory: Path,
    *,
    module: nn.Module,
    steps: Iterable[StepBatches],
    prepare: Callable[[Batch], Batch],
    counts: Callable[[Batch], dict[str, int]],
    settings: TrainSettings,
    optimizer: OptimizerSettings,
    schedule: ScheduleSettings,
    checkpoint: Checkpoint | None,
    evaluate: Callable[[], dict[str, float]] | None,
    compute: Compute,
    log: RunLog,
    interruption: Interruption,
) -> dict[str, float]:
    """Trains a module to the end of its budget, from a checkpoint where there is one.

    With `train.patience` it also ends when that many evaluations have gone by without a better one; whatever it ended
    by, the module has the weights of its best evaluation then.

    Args:
        what: the work, for the progress bar.
        directory: the run directory.
        module, steps, prepare, counts: see `unmask.training.loop.train`; `module` is on the device, and `steps` begins
            where the checkpoint stands.
        checkpoint: what the run goes on from; None at its beginning.
        evaluate: measures the module on held-out data; None where there is none.

    Returns:
        The held-out figures of the weights that the module ends with, by name.

    Raises:
        Interrupted: a signal has arrived; a checkpoint has been saved.
        UserError: the loss is not finite, the checkpoint is of another model, or `train.metric` is none of the figures.
    """
    if settings.patience is not None and evaluate is None:
        raise SettingsError(f"train.patience={settings.patience} needs something to measure: give data.dev")
    the_optimizer = build_optimizer(module, optimizer)
    the_schedule = Schedule(schedule)
    state = TrainState()
    if checkpoint is not None:
        for damage in checkpoint.damaged:
            logger.warning("a damaged checkpoint is passed over: %s", damage)
        state = restore(checkpoint, module, the_optimizer, the_schedule, compute.device)
        logger.info("resumed from step %s", f"{state.step:,}")
    log.rewind(state.step)
    with Progress(what, start_count=state.tokens, start_fraction=state.progress(settings)) as progress:
        log.echo_above(progress)
        session = Session(
            directory, settings, module, the_optimizer, the_schedule, log, progress, interruption, evaluate
        )
        session.start(state)
        train(
            module,
            steps,
            prepare,
            counts,
            the_optimizer,
            the_schedule,
            settings,
            state,
            compute.device,
            compute.autocast,
            session,
        )
        session.finish(state)
    return session.last_evaluation if state.best is None else _restore_best(module, state.best)


def _restore_best(module: nn.Module, best: Best) -> dict[str, float]:
    """Gives the module the weights of the best evaluation, and returns its figures."""
    module.load_state_dict(best.weights)
    logger.info("the model is that of step %s, the best evaluation", f"{best.step:,}")
    return dict(best.evaluation)


@dataclass
class Session:
    """What the loop's hook needs; call it after each step, and `finish` after the last.

    Attributes:
        directory: the run directory.
        settings: how often to log, evaluate and save.
        module, optimizer, schedule: what a checkpoint holds.
        log: of the run.
        progress: shown to the user.
        interruption: noted signals.
        evaluate: measures the module on held-out data; None where there is none.
        last_evaluation: the newest held-out figures, by name.
    """

    directory: Path
    settings: TrainSettings
    module: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    log: RunLog
    progress: Progress
    interruption: Interruption
    evaluate: Callable[[], dict[str, float]] | None
    last_evaluation: dict[str, float] = field(default_factory=dict)
    _logged_tokens: int = 0
    _logged_seconds: float = 0.0
    _saved_step: int | None = None

    def start(self, state: TrainState) -> None:
        """To be called before the first step, with the state as new or as restored from a checkpoint."""
        self.last_evaluation = state.evaluation
        self._saved_step = state.step or None
        self._count_rate_from(state)

    def __call__(self, state: TrainState, result: StepResult) -> None:
        """Does what is due after a step; after the last one, everything.

        Raises:
            Interrupted: a signal has arrived; a checkpoint has been saved.
            UserError: the loss or the gradient is not finite.
        """
        settings = self.settings
        self.progress.update(state.progress(settings), state.tokens)
        is_last = state.is_over(settings)
        is_logged = is_last or state.step % settings.log_every == 0
        if is_logged:
            self._log(state, result)
        if is_last or (settings.eval_every is not None and state.step % settings.eval_every == 0):
            self._evaluate(state)
            is_last = state.is_over(settings)
            if is_last and not is_logged:  # it ends early
                self._log(state, result)
        signal_number = self.interruption.signal_number
        is_stopped = signal_number is not None
        if is_last or is_stopped or (settings.save_every is not None and state.step % settings.save_every == 0):
            _refuse_divergence(state.step, [*map(float, state.totals.values()), float(result.gradient_norm)])
            self._save(state)
        if signal_number is not None:
            raise Interrupted(
                f"stopped at step {state.step:,}, {state.progress(settings):.0%} of the run; everything is saved "
                f"in {self.directory}: the same command with --resume goes on from here",
                signal_number,
            )

    def finish(self, state: TrainState) -> None:
        """Evaluates and saves where the last step has not: a run resumed under a smaller budget, or out of batches."""
        if state.evaluated_step != state.step:
            self._evaluate(state)
            self._save(state)
        elif self._saved_step != state.step:
            self._save(state)

    def _log(self, state: TrainState, result: StepResult) -> None:
        terms = state.take_means()
        loss = sum(result.coefficients[name] * mean for name, mean in terms.items())
        self.log.write_training(
            step=state.step,
            tokens=state.tokens,
            loss=loss,
            terms=terms,
            learning_rate=result.learning_rate,
            gradient_norm=float(result.gradient_norm),
            tokens_per_s=(state.tokens - self._logged_tokens) / max(1e-9, state.seconds - self._logged_seconds),
        )
        self._count_rate_from(state)
        _refuse_divergence(state.step, [loss, float(result.gradient_norm)])

    def _count_rate_from(self, state: TrainState) -> None:
        self._logged_tokens, self._logged_seconds = state.tokens, state.seconds

    def _evaluate(self, state: TrainState) -> None:
        state.evaluated_step = state.step
        if self.evaluate is None:
            return
        self.module.eval()
        self.last_evaluation = state.evaluation = self.evaluate()
        set_training_mode(self.module)
        self.log.write_evaluation(state.step, self.last_evaluation)
        shown = list(self.last_evaluation.items())[:_MOST_FIGURES]
        left = len(self.last_evaluation) - len(shown)
        figures = " · ".join(f"{name} {value:.4g}" for name, value in shown) + (f" · {left} more" if left else "")
        logger.info("step %s: %s", f"{state.step:,}", figures)
        if self.settings.patience is not None:
            self._note_best(state)

    def _note_best(self, state: TrainState) -> None:
        """Keeps the weights where the newest evaluation is the best so far, and counts it where it is not."""
        metric = choose_metric(state.evaluation, self.settings.metric)
        best = state.best
        if best is None or is_better(metric, state.evaluation[metric], best.evaluation[metric]):
            state.best = Best(state.step, state.evaluation, copy_weights(self.module))
            return
        state.best = replace(best, evaluations_since=best.evaluations_since + 1)
        if state.best.evaluations_since == self.settings.patience:
            logger.info(
                "%s has not been better than %.4g, that of step %s, for %s evaluations: the run ends here",
                metric,
                best.evaluation[metric],
                f"{best.step:,}",
                state.best.evaluations_since,
            )

    def _save(self, state: TrainState) -> None:
        save_checkpoint(
            self.directory / "checkpoints",
            self.module,
            self.optimizer,
            self.schedule,
            state,
            _as_json(state.position),
            self.settings.keep_last,
        )
        self._saved_step = state.step


def _as_json(position: Any) -> dict[str, int]:
    """A loader's position, a dataclass of integers; one just read from a checkpoint is JSON already."""
    return asdict(position) if is_dataclass(position) and not isinstance(position, type) else dict(position)


def _refuse_divergence(step: int, figures: list[float]) -> None:
    """Stops before a checkpoint that nobody can go on from takes the place of a good one."""
    if not all(map(math.isfinite, figures)):
        raise UserError(
            f"the loss or its gradient is not finite at step {step:,}: the run has diverged. Start it again with a "
            "lower optimizer.learning_rate or a longer warm-up (schedule.*); its earlier checkpoints are kept"
        )
