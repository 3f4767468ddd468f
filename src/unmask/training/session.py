"""One session of a run, the hook that the loop calls after each step: logs, evaluates, saves, rolls back, stops."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.batch import Batch
from unmask.errors import Interrupted, SettingsError, UserError
from unmask.io.progress import Progress
from unmask.io.signals import Interruption
from unmask.training.device import Compute
from unmask.training.divergence import BadStep, keep_bad_step
from unmask.training.host_memory import keep_freed_memory
from unmask.training.loop import StepBatches, StepResult, TrainState, set_training_mode, train
from unmask.training.memory import MicroBatches, StepSource
from unmask.training.optimizers.optimizer import Schedule, build_optimizer
from unmask.training.run.best import Best, choose_metric, copy_weights, is_better
from unmask.training.run.checkpoint import (
    Checkpoint,
    find_checkpoint,
    list_steps,
    remove_later,
    restore,
    save_checkpoint,
)
from unmask.training.run.log import RunLog
from unmask.training.session_notes import tell_limits, tell_resumed, tell_shortfalls
from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from unmask.training.stepper import Stepper
from unmask.training.steppers import choose_stepper

logger = logging.getLogger("unmask")

_MOST_FIGURES = 10
"""Figures of an evaluation that the log shows; `metrics.jsonl` has all."""


def run_session(
    what: str,
    directory: Path,
    *,
    module: nn.Module,
    steps: StepSource,
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
    longest: int | None = None,
    compiles: bool = False,
    before_step: Callable[[TrainState, Schedule], bool] | None = None,
    in_parts: bool = False,
) -> dict[str, float]:
    """Trains a module to the end of its budget, from a checkpoint where there is one.

    Every row of `metrics.jsonl` covers the steps since the row before; the last one of a run, and of a session that is
    stopped, may cover fewer than `train.log_every`. A resumed run removes the row written at the stop and counts its
    steps in the next one, so that it has the rows of a run that never stopped.

    With `train.patience` it also ends when that many evaluations have gone by without a better one; however it ends,
    the module then has the weights of its best evaluation.

    Args:
        what: the work, for the progress bar.
        directory: the run directory.
        module, prepare, counts: see `unmask.training.loop.train`; `module` is on the device.
        steps: the batches of each step; they begin where the checkpoint stands.
        checkpoint: what the run goes on from; None at its beginning.
        evaluate: measures the module on held-out data; None where there is none.
        longest: upper bound on the tokens of a sequence; None: unknown, so steps are computed as they come.
        compiles: whether recorded steps are compiled where the recipe leaves it open.
        before_step: as in `unmask.training.loop.train`; it returns whether a stage begins, so that the steps before it
            get a row of their own.
        in_parts: as in `unmask.training.session_notes.tell_resumed`.

    Returns:
        The held-out figures of the weights that the module ends with, by name.

    Raises:
        Interrupted: a signal has arrived; a checkpoint has been saved.
        UserError: the run has diverged, the memory does not hold a single sequence, the checkpoint is of another model,
            or `train.metric` is none of the figures.
    """
    if settings.patience is not None and evaluate is None:
        raise SettingsError(f"train.patience={settings.patience} needs something to measure: give data.dev")
    the_optimizer = build_optimizer(module, optimizer)
    the_schedule = Schedule(schedule)
    state = TrainState()
    if checkpoint is not None:
        for damage in checkpoint.damaged:
            logger.warning("a damaged checkpoint is passed over: %s", damage)
        state = restore(checkpoint, module, the_optimizer, the_schedule)
        tell_resumed(state, settings, in_parts=in_parts)
    tell_limits(settings, schedule, is_resumed=checkpoint is not None)
    micro_batches = MicroBatches(steps, module, compute, lambda: state.progress(settings))
    if settings.micro_batch_size == "auto" and state.micro_batch_tokens is None:
        micro_batches.choose(state, prepare, counts)
    if compute.device.type == "cpu":
        keep_freed_memory()
    stepper = None
    if longest is not None:
        stepper, how = choose_stepper(module, the_optimizer, settings, compute, longest, compiles=compiles)
        logger.info(how)
    log.rewind(state.step, is_open=bool(state.counts))
    with Progress(what, start_count=state.tokens, start_fraction=state.progress(settings)) as progress:
        log.echo_above(progress)
        session = Session(
            directory, settings, module, the_optimizer, the_schedule, log, progress, interruption, evaluate, stepper
        )
        session.start(state)

        def begin_step(state: TrainState, schedule: Schedule) -> None:
            micro_batches.begin_step()
            if before_step is not None and before_step(state, schedule):
                session.log_rest(state)

        def go_on_after(state: TrainState, bad: BadStep) -> Iterable[StepBatches]:
            session.handle_bad_step(state, bad)
            return micro_batches.steps(state)  # those made ahead may be of a later phase

        try:
            train(
                module,
                micro_batches.steps(state),
                prepare,
                counts,
                the_optimizer,
                the_schedule,
                settings,
                state,
                compute.device,
                compute.autocast,
                session,
                before_step=begin_step,
                on_bad_step=go_on_after,
                on_out_of_memory=micro_batches.halve,
                stepper=stepper,
                is_due=session.is_due,
                reads_ahead=compute.device.type == "cuda",
            )
            session.finish(state)
        except torch.OutOfMemoryError as error:
            raise micro_batches.explain(state, error) from error
    module.zero_grad(set_to_none=True)  # recorded steps would keep theirs
    tell_shortfalls(state, settings, schedule)
    return session.last_evaluation if state.best is None else _restore_best(module, state.best)


def _restore_best(module: nn.Module, best: Best) -> dict[str, float]:
    """Gives the module the weights of the best evaluation, and returns its figures."""
    module.load_state_dict(best.weights)
    logger.info("the model is that of step %s, the best evaluation", f"{best.step:,}")
    return dict(best.evaluation)


@dataclass
class Session:
    """The loop's hook, and what it needs; call it after each step, and `finish` after the last.

    Attributes:
        directory: the run directory.
        settings: how often to log, evaluate and save.
        module, optimizer, schedule: what a checkpoint holds.
        log: of the run.
        progress: shown to the user.
        interruption: noted signals.
        evaluate: measures the module on held-out data; None where there is none.
        stepper: takes the steps, and may free its memory for an evaluation; None: nothing can be freed.
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
    stepper: Stepper | None = None
    last_evaluation: dict[str, float] = field(default_factory=dict)
    _saved_step: int | None = None

    def start(self, state: TrainState) -> None:
        """To be called before the first step, with the state as new or as restored from a checkpoint."""
        self.last_evaluation = state.evaluation
        self._saved_step = state.step or None

    def is_due(self, state: TrainState) -> bool:
        """Whether the hook has anything to do after the step just launched; also updates the progress bar."""
        settings = self.settings
        self.progress.update(state.progress(settings), state.tokens)
        intervals = (settings.log_every, settings.eval_every, settings.save_every)
        return (
            settings.minutes is not None
            or self.interruption.signal_number is not None
            or any(interval is not None and state.step % interval == 0 for interval in intervals)
        )

    def __call__(self, state: TrainState, result: StepResult) -> None:
        """Does what is due after a step; after the last one, everything.

        Raises:
            Interrupted: a signal has arrived; a checkpoint has been saved.
        """
        settings = self.settings
        state.newest = result
        self.progress.update(state.progress(settings), state.tokens)
        is_last = state.is_over(settings)
        if is_last or settings.minutes is not None or state.step % settings.log_every == 0:
            self.log_rest(state)
        if is_last or (settings.eval_every is not None and state.step % settings.eval_every == 0):
            self._evaluate(state)
            is_last = state.is_over(settings)
            if is_last:
                self.log_rest(state)  # where it ends early
        signal_number = self.interruption.signal_number
        is_stopped = signal_number is not None
        if is_last or is_stopped or (settings.save_every is not None and state.step % settings.save_every == 0):
            self._save(state)
        if signal_number is not None:
            self.log_rest(state)  # after the save: resumed, these steps are part of the next row
            told = f"stopped at step {state.step:,}, {state.progress(settings):.0%} of the run; everything is saved in "
            told += f"{self.directory}: the same command with --resume "
            raise Interrupted(told + ("writes the model" if is_last else "goes on from here"), signal_number)

    def handle_bad_step(self, state: TrainState, bad: BadStep) -> None:
        """Keeps a step that has not been taken, then stops the run or puts it back to its newest checkpoint.

        The text is not read again: the run goes on with what comes after the step. The state is saved at once: a
        run that is stopped afterwards goes on from there.

        Raises:
            UserError: the recipe says so, there is no checkpoint, or the run has gone back too often.
        """
        place = keep_bad_step(self.directory / "divergence", bad, state.roll_backs)
        kept = f"{bad.fault}. The step was not taken, its batches and figures are in {place}"
        newest = None
        if self.settings.on_divergence == "roll_back" and state.roll_backs < self.settings.max_roll_backs:
            # a run that was stopped has saved at other steps too, but has to go back as far as one that was not
            newest = find_checkpoint(self.directory / "checkpoints", self.settings.save_every or 1)
        if newest is None:
            self._log_bad_step(state, bad)
            raise UserError(f"{kept}. {self._advise(state)}")
        state.roll_back_to(restore(newest, self.module, self.optimizer, self.schedule))
        remove_later(self.directory / "checkpoints", state.step)
        self.log.rewind(state.step, is_open=bool(state.counts))
        self.start(state)
        self._save(state)
        logger.warning(
            "%s; back to the weights of step %s, with the text after the step (%s of at most %s times)",
            kept,
            f"{state.step:,}",
            state.roll_backs,
            self.settings.max_roll_backs,
        )

    def _advise(self, state: TrainState) -> str:
        """What to do about a step that ends the run."""
        again = "Start it again with a lower optimizer.learning_rate or a longer warm-up (schedule.*)"
        has_checkpoint = bool(list_steps(self.directory / "checkpoints"))
        if self.settings.on_divergence == "stop" and has_checkpoint:
            past = "go on past this step with --resume and train.on_divergence=roll_back"
            interval = " and a train.save_every" if self.settings.save_every is None else ""
            return f"{again}, or {past}{interval}; its earlier checkpoints are kept"
        if state.roll_backs:
            times = f"{state.roll_backs} times, as often as train.max_roll_backs allows"
            return f"The run has rolled back {times}. {again}; its earlier checkpoints are kept"
        told = f"There is no checkpoint to roll back to yet. {again}"
        if state.step == 1:
            return told
        how = "" if self.settings.on_divergence == "roll_back" else " and train.on_divergence=roll_back"
        return f"{told}, or with a train.save_every under {state.step:,}{how}"

    def finish(self, state: TrainState) -> None:
        """Logs, evaluates and saves if that was not done after the last step: when a run is resumed under a budget that
        ends where it was stopped, or when the batches have run out."""
        self.log_rest(state)
        if state.evaluated_step != state.step:
            self._evaluate(state)
            self._save(state)
        elif self._saved_step != state.step:
            self._save(state)

    def log_rest(self, state: TrainState) -> None:
        """Writes a row of the steps that have none yet, if there are any."""
        newest = state.newest
        if not state.counts or newest is None:  # old checkpoints do not hold the newest step
            return
        tokens_per_s = _rate(state)
        terms = state.take_means()
        self.log.write_training(
            step=state.step,
            tokens=state.tokens,
            loss=sum(newest.coefficients[name] * mean for name, mean in terms.items()) if terms else None,
            terms=terms,
            learning_rate=newest.learning_rate,
            gradient_norm=newest.gradient_norm,
            tokens_per_s=tokens_per_s,
        )

    def _log_bad_step(self, state: TrainState, bad: BadStep) -> None:
        """Writes its row, which shows where the curves end, after a row of the steps taken before it."""
        tokens_per_s = _rate(state)
        self.log_rest(replace(state, step=bad.step - 1, tokens=state.tokens - bad.num_tokens))
        self.log.write_training(
            step=bad.step,
            tokens=state.tokens,
            loss=bad.loss,
            terms=bad.terms,
            learning_rate=bad.learning_rate,
            gradient_norm=bad.gradient_norm,
            tokens_per_s=tokens_per_s,
        )

    def _evaluate(self, state: TrainState) -> None:
        state.evaluated_step = state.step
        if self.evaluate is None:
            return
        self.module.eval()
        measured = self._try_to_evaluate()
        if measured is None:  # memory held for steps may be in its way
            assert self.stepper is not None
            self.stepper.release()
            gc.collect()
            torch.cuda.empty_cache()
            measured = self.evaluate()
        self.last_evaluation = state.evaluation = measured
        set_training_mode(self.module)
        self.log.write_evaluation(state.step, self.last_evaluation)
        shown = list(self.last_evaluation.items())[:_MOST_FIGURES]
        left = len(self.last_evaluation) - len(shown)
        figures = " · ".join(f"{name} {value:.4g}" for name, value in shown) + (f" · {left} more" if left else "")
        logger.info("step %s: %s", f"{state.step:,}", figures)
        if self.settings.patience is not None:
            self._note_best(state)

    def _try_to_evaluate(self) -> dict[str, float] | None:
        """The figures; None if memory runs out. The error is not kept: it would keep some of the memory."""
        assert self.evaluate is not None
        try:
            return self.evaluate()
        except torch.OutOfMemoryError:
            if self.stepper is None:
                raise
            return None

    def _note_best(self, state: TrainState) -> None:
        """Keeps the weights if the newest evaluation is the best so far; counts it if it is not."""
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
            self.settings.save_every,
        )
        self._saved_step = state.step


def _rate(state: TrainState) -> float:
    """Tokens a second since the last row."""
    return (state.tokens - state.logged_tokens) / max(1e-9, state.seconds - state.logged_seconds)


def _as_json(position: Any) -> dict[str, int]:
    """A loader's position, a dataclass of integers; one just read from a checkpoint is JSON already."""
    return asdict(position) if is_dataclass(position) and not isinstance(position, type) else dict(position)
