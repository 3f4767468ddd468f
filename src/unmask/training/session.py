"""One session of a run: trains from a checkpoint, where there is one, to the end of the budget or to a signal.

Its `Session` is the hook that the loop calls after each step: it logs, evaluates, saves, rolls back and stops.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from unmask.batch import StepBatches
from unmask.errors import Interrupted, SettingsError, UserError
from unmask.io.paths import CHECKPOINTS
from unmask.io.progress import Progress
from unmask.io.signals import Interruption
from unmask.models.trained import TrainedModule
from unmask.training.averaging import WeightAverage
from unmask.training.device import Compute, keeping_freed_memory
from unmask.training.distributed import ALONE, Ranks
from unmask.training.divergence import BadStep, advise, keep_bad_step
from unmask.training.loop import Hooks, raise_out_of_memory, train
from unmask.training.memory import MicroBatches
from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer, build_optimizer
from unmask.training.recompute import recompute_blocks
from unmask.training.run.best import Ending
from unmask.training.run.checkpoint import (
    Checkpoint,
    find_shared_checkpoint,
    give_parts,
    list_steps,
    remove_later,
    restore,
    take_snapshot,
)
from unmask.training.run.evaluations import Evaluations
from unmask.training.run.log import RunLog
from unmask.training.run.saving import CheckpointWriter
from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from unmask.training.sharding import shard
from unmask.training.state import StepResult, TrainState, log_limits, log_resumed, log_shortfalls
from unmask.training.stepping.choosing import choose_stepper
from unmask.training.stepping.eager import EagerStepper
from unmask.training.steps import Learner, StepSource

logger = logging.getLogger("unmask")

_SECONDS_BETWEEN_REPORTS = 60


class RunSettings(Protocol):
    """What a session reads of a recipe: how the run trains, the seed of its dropout, and all of it for checkpoints."""

    @property
    def seed(self) -> int: ...
    @property
    def train(self) -> TrainSettings: ...
    @property
    def optimizer(self) -> OptimizerSettings: ...
    @property
    def schedule(self) -> ScheduleSettings: ...
    def as_written(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class RunContext:
    """Where a session of a run takes place.

    Attributes:
        what: the work, for the progress bar.
        checkpoint: what the run continues from; None at its beginning.
        ranks: the processes that train together; the directory and the log are this one's.
        draw_report: writes the page that shows the run so far; called after an evaluation, at most once a minute, at
            a stop, and where the run has diverged for good.
    """

    what: str
    directory: Path
    compute: Compute
    log: RunLog
    interruption: Interruption
    checkpoint: Checkpoint | None = None
    ranks: Ranks = ALONE
    draw_report: Callable[[], object] = lambda: None


def run_session(
    learner: Learner,
    steps: StepSource,
    recipe: RunSettings,
    context: RunContext,
    *,
    evaluate: Callable[[], dict[str, float]] | None,
    lower_is_better: frozenset[str] = frozenset(),
    evaluates_start: bool = False,
    change_stage: Callable[[TrainState, Schedule], bool] | None = None,
    compiles: bool = False,
    in_parts: bool = False,
) -> Ending:
    """Trains a module to the end of its budget, from a checkpoint where there is one.

    Every row of `metrics.jsonl` covers the steps since the row before; the last one of a run, and of a session that is
    stopped, may cover fewer than `train.log_every`. A resumed run removes the row written at the stop and counts its
    steps in the next one, so that it has the rows of a run that never stopped.

    With `train.patience` it also ends when that many evaluations have gone by without a better one; however it ends,
    the module then has the weights of its best evaluation.

    Args:
        learner: what is trained; its module is on the device, or anywhere with `train.shard`.
        steps: the batches of each step; they begin where the checkpoint is.
        recipe: of the run: `train`, `optimizer` and `schedule`.
        evaluate: measures the module on held-out data; None where there is none.
        lower_is_better: its figures of which less is better, besides the loss.
        evaluates_start: whether a new run is evaluated before its first step too, as step 0.
        change_stage: called before each step, as `Hooks.before_step`; it returns whether a stage begins, so that the
            steps before it get a row of their own.
        compiles: whether captured steps are compiled where the recipe leaves it open.
        in_parts: the run has phases or stages, whose places depend on the budget, so that it cannot get a larger one.

    Raises:
        Interrupted: a signal has arrived; a checkpoint has been saved.
        UserError: the run has diverged, the memory does not hold a single sequence, the checkpoint is of another model,
            or `train.metric` is none of the figures.
    """
    settings, module, compute, ranks = recipe.train, learner.module, context.compute, context.ranks
    if settings.patience is not None and evaluate is None:
        raise SettingsError(f"train.patience={settings.patience} needs something to measure: give data.dev")
    optimizer = _build_optimizer(module, recipe, context)
    averaging = settings.weight_averaging
    average = None if averaging is None else WeightAverage(optimizer.optimizer, averaging)
    state = _begin(module, optimizer, context)
    if context.checkpoint is not None:
        log_resumed(state, settings, in_parts=in_parts)
    log_limits(settings, recipe.schedule, is_resumed=context.checkpoint is not None)
    micro_batches = MicroBatches(steps, learner, compute, lambda: state.progress(settings), ranks)
    if settings.micro_batch_size == "auto" and state.micro_batch_tokens is None:
        micro_batches.choose(state)
    divided = settings.shard
    eager = EagerStepper(
        module, optimizer.optimizer, settings.max_grad_norm, compute, recipe.seed, ranks, is_divided=divided
    )
    stepper, how = choose_stepper(eager, settings, steps.longest, compiles=compiles)
    logger.info(how)
    _rewind_log(context, state)
    evaluations = Evaluations(module, evaluate, average, stepper, settings, context.log, ranks, lower_is_better)
    session = Session(context, recipe, module, optimizer, micro_batches, evaluations, saved_step=state.step or None)
    progress_bar = Progress(context.what, start_count=state.tokens, start_fraction=state.progress(settings))
    with keeping_freed_memory(compute.device), progress_bar as progress:
        context.log.echo_above(progress)

        def begin_step(state: TrainState, schedule: Schedule) -> None:
            progress.update(state.progress(settings), state.tokens)
            micro_batches.begin_step()
            if change_stage is not None and change_stage(state, schedule):
                session.log_rest(state)

        # A model that is divided would have to stop within the same block everywhere.
        halve = raise_out_of_memory if divided else micro_batches.halve
        hooks = Hooks(session, begin_step, session.is_due, session.handle_bad_step, halve)
        try:
            with session.writer, ranks.answered(beside_computing=True) if divided else nullcontext():
                if evaluates_start and context.checkpoint is None:
                    evaluations(state)
                train(learner, micro_batches.steps(state), optimizer, stepper, settings, state, hooks, ranks=ranks)
                session.finish(state)
        except torch.OutOfMemoryError as error:
            raise micro_batches.explain(state, error) from error
        finally:
            progress.update(state.progress(settings), state.tokens)
    module.zero_grad(set_to_none=True)  # captured steps would keep theirs
    log_shortfalls(state, settings, recipe.schedule)
    return evaluations.give_final_weights(state)


def _build_optimizer(module: TrainedModule, recipe: RunSettings, context: RunContext) -> ScheduledOptimizer:
    """The optimizer of the module, which has the same weights in all processes and is wrapped as the recipe says."""
    if context.checkpoint is None:
        context.ranks.copy_tensors([*module.parameters(), *module.buffers()])
    if recipe.train.recompute:
        recompute_blocks(module)
    if recipe.train.shard:
        shard(module, context.ranks, context.compute.device)
    optimizer = build_optimizer(module, recipe.optimizer, context.ranks)
    return ScheduledOptimizer(optimizer, Schedule(recipe.schedule))


def _begin(module: TrainedModule, optimizer: ScheduledOptimizer, context: RunContext) -> TrainState:
    """The state of a new run, or that of the checkpoint, from which module and optimizer are restored too."""
    if context.checkpoint is None:
        return TrainState()
    for damage in context.checkpoint.damaged:
        logger.warning("a checkpoint is passed over: %s", damage)
    with context.ranks.agreeing():  # all have read it before the first process may replace it
        return restore(context.checkpoint, module, optimizer.optimizer, optimizer.schedule)


def _rewind_log(context: RunContext, state: TrainState) -> None:
    """Takes the log back to where the run begins, and checks the rows up to there against the checkpoint."""
    with context.ranks.agreeing():
        if context.checkpoint is None:
            context.log.begin()
            return
        _rewind_to(state, context.log)
        if context.ranks.is_first:
            context.log.check_rows(context.checkpoint.state["metrics_sha256"], state.step)


def _rewind_to(state: TrainState, log: RunLog) -> None:
    log.rewind(state.step, is_open=bool(state.counts), is_evaluated=state.evaluated_step == state.step)


@dataclass
class Session:
    """The loop's hook, and what it needs; call it after each step, and `finish` after the last.

    Attributes:
        saved_step: the step of the newest checkpoint that need not be written again; None: there is none.
    """

    context: RunContext
    recipe: RunSettings
    module: TrainedModule
    optimizer: ScheduledOptimizer
    micro_batches: MicroBatches
    evaluations: Evaluations
    saved_step: int | None = None

    def __post_init__(self) -> None:
        self.settings = self.recipe.train
        self.checkpoints = self.context.directory / CHECKPOINTS
        self.writer = CheckpointWriter(self.checkpoints, self.settings)
        self.reported = time.monotonic()

    def is_due(self, state: TrainState) -> bool:
        """Whether the hook has anything to do after the step just launched."""
        settings = self.settings
        intervals = (settings.log_every, settings.save_every)
        return (
            settings.minutes is not None
            or settings.evaluates_at(state.step, state.epochs)
            or self.context.interruption.signal_number is not None
            or any(interval is not None and state.step % interval == 0 for interval in intervals)
        )

    def __call__(self, state: TrainState, result: StepResult) -> None:
        """Does what is due after a step; after the last one, everything. Raises Interrupted if a signal has arrived; a
        checkpoint has been saved."""
        settings, ranks = self.settings, self.context.ranks
        state.newest = result
        state.seconds = ranks.from_first(state.seconds)  # a budget may go by it
        is_last = state.is_over(settings)
        with ranks.agreeing():  # a disk that is full for the first process ends all alike
            self.writer.check()
        if is_last or settings.minutes is not None or state.step % settings.log_every == 0:
            self.log_rest(state)
        if is_last or settings.evaluates_at(state.step, state.epochs):
            self.evaluations(state)
            is_last = state.is_over(settings)
            if is_last:
                self.log_rest(state)  # where it ends early
            elif ranks.from_first(time.monotonic() > self.reported + _SECONDS_BETWEEN_REPORTS):  # clocks differ
                self._draw_report()
        signal_number = next(filter(None, ranks.gather(self.context.interruption.signal_number)), None)
        is_stopped = signal_number is not None
        if is_last or is_stopped or (settings.save_every is not None and state.step % settings.save_every == 0):
            self._save(state)
        if signal_number is not None:
            with ranks.agreeing():
                self.writer.wait()
            self.log_rest(state, is_stop=True)  # after the save: resumed, these steps are part of the next row
            self._draw_report()
            share, then = state.progress(settings), "writes the model" if is_last else "continues from here"
            raise Interrupted(
                f"stopped at step {state.step:,}, {share:.0%} of the run; everything is saved in "
                f"{self.context.directory}: the same command with --resume {then}",
                signal_number,
            )

    def handle_bad_step(self, state: TrainState, bad: BadStep) -> Iterable[StepBatches[Any]]:
        """Keeps a step that has not been taken, then stops the run or puts it back to its newest checkpoint.

        The text is not read again: the run continues with what comes after the step. The state is saved at once: a
        run that is stopped afterwards continues from there.

        Returns:
            The steps from there on; those that had been made ahead may be of a later phase.

        Raises:
            UserError: the recipe says so, there is no checkpoint, or the run has gone back too often.
        """
        ranks = self.context.ranks
        state.seconds = ranks.from_first(state.seconds)
        with ranks.agreeing():
            place = keep_bad_step(self.context.directory / "divergence", bad, state.roll_backs)
            self.writer.wait()
        batches = "batches and" if ranks.size == 1 else f"batches, as far as process 1 of {ranks.size} had them, and"
        kept = f"{bad.fault}. The step was not taken, its {batches} figures are in {place}"
        newest = None
        if self.settings.on_divergence == "roll_back" and state.roll_backs < self.settings.max_roll_backs:
            # a run that was stopped has saved at other steps too, but has to go back as far as one that was not
            newest = find_shared_checkpoint(self.checkpoints, ranks, self.settings.save_every or 1)
        if newest is None:
            self._log_bad_step(state, bad)
            if ranks.is_first:
                with suppress(Exception):  # the divergence is the error to raise
                    self.context.draw_report()
            with ranks.agreeing():  # all processes have it, and the first one says so
                has_checkpoint = bool(list_steps(self.checkpoints))
                raise UserError(f"{kept}. {advise(self.settings, state.step, state.roll_backs, has_checkpoint)}")
        with ranks.agreeing():  # all have read it before the first process may replace it
            state.roll_back_to(restore(newest, self.module, self.optimizer.optimizer, self.optimizer.schedule))
            remove_later(self.checkpoints, state.step)
            _rewind_to(state, self.context.log)
            times = f"{state.roll_backs} of at most {self.settings.max_roll_backs} times"
            back = f"back to the weights of step {state.step:,}, with the text after the step ({times})"
            logger.warning("%s; %s", kept, back)
        self._save(state)
        return self.micro_batches.steps(state)

    def finish(self, state: TrainState) -> None:
        """Logs, evaluates and saves if that was not done after the last step: when a run is resumed under a budget that
        ends where it was stopped, or when the batches have run out."""
        self.log_rest(state)
        if not (is_evaluated := state.evaluated_step == state.step):
            self.evaluations(state)
        if not is_evaluated or self.saved_step != state.step:
            self._save(state)
        with self.context.ranks.agreeing():
            self.writer.wait()

    def _draw_report(self) -> None:
        with self.context.ranks.agreeing():
            if self.context.ranks.is_first:
                self.context.draw_report()
        self.reported = time.monotonic()

    def log_rest(self, state: TrainState, *, is_stop: bool = False) -> None:
        """Writes a row of the steps that have none yet, if there are any."""
        newest = state.newest
        if not state.counts or newest is None:
            return
        tokens_per_s = state.tokens_per_s
        terms = state.take_means()
        with self.context.ranks.agreeing():
            self.context.log.write_training(
                step=state.step,
                tokens=state.tokens,
                examples_hash=state.examples_hash,
                loss=sum(newest.coefficients[name] * mean for name, mean in terms.items()) if terms else None,
                terms=terms,
                learning_rate=newest.learning_rate,
                gradient_norm=newest.gradient_norm,
                tokens_per_s=tokens_per_s,
                is_stop=is_stop,
            )

    def _log_bad_step(self, state: TrainState, bad: BadStep) -> None:
        """Writes its row, which shows where the curves end, after a row of the steps taken before it."""
        tokens_per_s = state.tokens_per_s
        step, tokens = bad.step, state.tokens - bad.step.prepared.num_tokens
        self.log_rest(replace(state, step=step.number - 1, tokens=tokens, examples_hash=step.examples_hash_before))
        with self.context.ranks.agreeing():
            self.context.log.write_training(
                step=bad.step.number,
                tokens=state.tokens,
                examples_hash=state.examples_hash,
                loss=bad.loss,
                terms=bad.terms,
                learning_rate=bad.step.learning_rate,
                gradient_norm=bad.figures.gradient_norm,
                tokens_per_s=tokens_per_s,
            )

    def _save(self, state: TrainState) -> None:
        self.saved_step = state.step
        module, optimizer, ranks = self.module, self.optimizer, self.context.ranks
        for name in module.lane_buffers:  # of each lane its own process has the newest
            setattr(module, name, ranks.join_slices(getattr(module, name)))
        with ranks.agreeing():
            rows = self.context.log.digest()
        with ranks.agreeing():
            if ranks.is_first:
                recipe = self.recipe.as_written()
                self.writer.write(take_snapshot(module, optimizer.optimizer, optimizer.schedule, state, rows, recipe))
            elif self.settings.shard:
                give_parts(module, optimizer.optimizer)
