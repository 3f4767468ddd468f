"""One session of a run: trains from a checkpoint, where there is one, to the end of the budget or to a signal.

Its `Session` is the hook that the loop calls after each step: it logs, evaluates, saves, rolls back and stops.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch

from unmask.errors import Interrupted, SettingsError, UserError
from unmask.io.paths import CHECKPOINTS
from unmask.io.progress import Progress
from unmask.io.signals import Interruption
from unmask.training.averaging import WeightAverage
from unmask.training.device import Compute, keep_freed_memory
from unmask.training.distributed import ALONE, Ranks
from unmask.training.divergence import BadStep, advise, keep_bad_step
from unmask.training.eager import EagerStepper
from unmask.training.loop import Hooks, raise_out_of_memory, train
from unmask.training.memory import MicroBatches, StepSource
from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer, build_optimizer
from unmask.training.recompute import recompute_blocks
from unmask.training.run.best import choose_metric, newest_best, restore_best
from unmask.training.run.checkpoint import (
    Checkpoint,
    find_shared_checkpoint,
    give_parts,
    list_steps,
    remove_later,
    restore,
    take_snapshot,
)
from unmask.training.run.log import RunLog
from unmask.training.run.saving import CheckpointWriter
from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from unmask.training.sharding import shard
from unmask.training.state import StepResult, TrainState, log_limits, log_resumed, log_shortfalls
from unmask.training.stepper import Stepper
from unmask.training.steppers import choose_stepper
from unmask.training.steps import Learner, PreparedStep, StepBatches, set_training_mode

logger = logging.getLogger("unmask")

_MOST_FIGURES = 10
"""Figures of an evaluation that the log shows; `metrics.jsonl` has all."""


class RunSettings(Protocol):
    """The part of a recipe that says how a run trains."""

    @property
    def train(self) -> TrainSettings: ...
    @property
    def optimizer(self) -> OptimizerSettings: ...
    @property
    def schedule(self) -> ScheduleSettings: ...


@dataclass(frozen=True)
class RunContext:
    """Where a session of a run takes place.

    Attributes:
        what: the work, for the progress bar.
        checkpoint: what the run continues from; None at its beginning.
        seed: of dropout; None: it draws from PyTorch's generators as they are.
        ranks: the processes that train together; the directory and the log are this one's.
    """

    what: str
    directory: Path
    compute: Compute
    log: RunLog
    interruption: Interruption
    checkpoint: Checkpoint | None = None
    seed: int | None = None
    ranks: Ranks = ALONE


def run_session(
    learner: Learner,
    steps: StepSource,
    settings: RunSettings,
    context: RunContext,
    *,
    evaluate: Callable[[], dict[str, float]] | None = None,
    before_step: Callable[[TrainState, Schedule], bool] | None = None,
    compiles: bool = False,
    in_parts: bool = False,
) -> dict[str, float]:
    """Trains a module to the end of its budget, from a checkpoint where there is one.

    Every row of `metrics.jsonl` covers the steps since the row before; the last one of a run, and of a session that is
    stopped, may cover fewer than `train.log_every`. A resumed run removes the row written at the stop and counts its
    steps in the next one, so that it has the rows of a run that never stopped.

    With `train.patience` it also ends when that many evaluations have gone by without a better one; however it ends,
    the module then has the weights of its best evaluation.

    Args:
        learner: what is trained; its module is on the device.
        steps: the batches of each step; they begin where the checkpoint is.
        settings: of the run: `train`, `optimizer` and `schedule`.
        evaluate: measures the module on held-out data; None where there is none.
        before_step: as in `unmask.training.loop.Hooks`; it returns whether a stage begins, so that the steps before it
            get a row of their own.
        compiles: whether captured steps are compiled where the recipe leaves it open.
        in_parts: the run has phases or stages, whose places depend on the budget, so that it cannot get a larger one.

    Returns:
        The held-out figures of the weights that the module ends with, by name.

    Raises:
        Interrupted: a signal has arrived; a checkpoint has been saved.
        UserError: the run has diverged, the memory does not hold a single sequence, the checkpoint is of another model,
            or `train.metric` is none of the figures.
    """
    budget, module, compute, ranks = settings.train, learner.module, context.compute, context.ranks
    if budget.patience is not None and evaluate is None:
        raise SettingsError(f"train.patience={budget.patience} needs something to measure: give data.dev")
    if context.checkpoint is None:
        ranks.copy_tensors([*module.parameters(), *module.buffers()])
    if budget.recompute:
        recompute_blocks(module)
    if budget.shard:
        shard(module, ranks, compute.device)
    optimizer = ScheduledOptimizer(build_optimizer(module, settings.optimizer, ranks), Schedule(settings.schedule))
    decay = budget.weight_averaging
    average = None if decay is None else WeightAverage(optimizer.optimizer, decay)
    state = TrainState()
    if context.checkpoint is not None:
        for damage in context.checkpoint.damaged:
            logger.warning("a damaged checkpoint is passed over: %s", damage)
        with ranks.agreeing():  # all have read it before the first process may replace it
            state = restore(context.checkpoint, module, optimizer.optimizer, optimizer.schedule)
        log_resumed(state, budget, in_parts=in_parts)
    log_limits(budget, settings.schedule, is_resumed=context.checkpoint is not None)
    micro_batches = MicroBatches(steps, learner, compute, lambda: state.progress(budget))
    if budget.micro_batch_size == "auto" and state.micro_batch_tokens is None:
        micro_batches.choose(state)
        state.micro_batch_tokens = min(filter(None, ranks.gather(state.micro_batch_tokens)), default=None)
    if compute.device.type == "cpu":
        keep_freed_memory()
    eager = EagerStepper(
        module, optimizer.optimizer, budget.max_grad_norm, compute, context.seed, ranks, is_divided=budget.shard
    )
    stepper, how = choose_stepper(eager, budget, steps.longest, compiles=compiles)
    logger.info(how)
    digest = None if context.checkpoint is None else context.checkpoint.state.get("metrics_sha256")
    with ranks.agreeing():
        context.log.rewind(state.step, is_open=bool(state.counts), is_evaluated=state.evaluated_step == state.step)
        if digest and ranks.is_first:
            context.log.check_rows(digest, state.step)
    with Progress(context.what, start_count=state.tokens, start_fraction=state.progress(budget)) as progress:
        context.log.echo_above(progress)
        session = Session(context, budget, learner, optimizer, stepper, evaluate, average)
        session.start(state)

        def begin_step(state: TrainState, schedule: Schedule) -> None:
            progress.update(state.progress(budget), state.tokens)
            micro_batches.begin_step()
            if before_step is not None and before_step(state, schedule):
                session.log_rest(state)

        def continue_after(state: TrainState, bad: BadStep) -> Iterable[StepBatches]:
            session.handle_bad_step(state, bad)
            return micro_batches.steps(state)  # those made ahead may be of a later phase

        def halve(state: TrainState, step: PreparedStep, reason: str) -> Iterable[StepBatches]:
            state.seconds = ranks.from_first(state.seconds)
            with ranks.agreeing():
                return micro_batches.halve(state, step, reason)

        divided = budget.shard  # all would have to stop within the same block
        hooks = Hooks(session, begin_step, session.is_due, continue_after, raise_out_of_memory if divided else halve)
        try:
            with session.writer, ranks.answered(beside_computing=True) if divided else nullcontext():
                train(learner, micro_batches.steps(state), optimizer, stepper, budget, state, hooks, ranks=ranks)
                session.finish(state)
        except torch.OutOfMemoryError as error:
            raise micro_batches.explain(state, error) from error
        finally:
            progress.update(state.progress(budget), state.tokens)
    module.zero_grad(set_to_none=True)  # captured steps would keep theirs
    log_shortfalls(state, budget, settings.schedule)
    if state.best is not None:
        return restore_best(module, state.best)
    if average is not None:
        average.use()
    return session.last_evaluation


@dataclass
class Session:
    """The loop's hook, and what it needs; call it after each step, and `finish` after the last.

    Attributes:
        settings: how often to log, evaluate and save.
        stepper: takes the steps, and may free its memory for an evaluation.
        evaluate: measures the module on held-out data; None where there is none.
        average: of the weights, which is what is evaluated; None: the newest ones are.
    """

    context: RunContext
    settings: TrainSettings
    learner: Learner
    optimizer: ScheduledOptimizer
    stepper: Stepper
    evaluate: Callable[[], dict[str, float]] | None
    average: WeightAverage | None = None
    last_evaluation: dict[str, float] = field(default_factory=dict)
    _saved_step: int | None = None

    def __post_init__(self) -> None:
        self.checkpoints = self.context.directory / CHECKPOINTS
        self.writer = CheckpointWriter(self.checkpoints, self.settings)

    def start(self, state: TrainState) -> None:
        """To be called before the first step, with the state as new or as restored from a checkpoint."""
        self.last_evaluation = state.evaluation
        self._saved_step = state.step or None

    def is_due(self, state: TrainState) -> bool:
        """Whether the hook has anything to do after the step just launched."""
        settings = self.settings
        intervals = (settings.log_every, settings.eval_every, settings.save_every)
        return (
            settings.minutes is not None
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
        if is_last or (settings.eval_every is not None and state.step % settings.eval_every == 0):
            self._evaluate(state)
            is_last = state.is_over(settings)
            if is_last:
                self.log_rest(state)  # where it ends early
        signal_number = next(filter(None, ranks.gather(self.context.interruption.signal_number)), None)
        is_stopped = signal_number is not None
        if is_last or is_stopped or (settings.save_every is not None and state.step % settings.save_every == 0):
            self._save(state)
        if signal_number is not None:
            with ranks.agreeing():
                self.writer.wait()
            self.log_rest(state)  # after the save: resumed, these steps are part of the next row
            share, then = state.progress(settings), "writes the model" if is_last else "continues from here"
            raise Interrupted(
                f"stopped at step {state.step:,}, {share:.0%} of the run; everything is saved in "
                f"{self.context.directory}: the same command with --resume {then}",
                signal_number,
            )

    def handle_bad_step(self, state: TrainState, bad: BadStep) -> None:
        """Keeps a step that has not been taken, then stops the run or puts it back to its newest checkpoint.

        The text is not read again: the run continues with what comes after the step. The state is saved at once: a
        run that is stopped afterwards continues from there.

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
            with ranks.agreeing():  # all processes have it, and the first one says so
                has_checkpoint = bool(list_steps(self.checkpoints))
                raise UserError(f"{kept}. {advise(self.settings, state.step, state.roll_backs, has_checkpoint)}")
        with ranks.agreeing():  # as in `run_session`
            state.roll_back_to(restore(newest, self.learner.module, self.optimizer.optimizer, self.optimizer.schedule))
            remove_later(self.checkpoints, state.step)
            is_evaluated = state.evaluated_step == state.step
            self.context.log.rewind(state.step, is_open=bool(state.counts), is_evaluated=is_evaluated)
            times = f"{state.roll_backs} of at most {self.settings.max_roll_backs} times"
            back = f"back to the weights of step {state.step:,}, with the text after the step ({times})"
            logger.warning("%s; %s", kept, back)
        self.start(state)
        self._save(state)

    def finish(self, state: TrainState) -> None:
        """Logs, evaluates and saves if that was not done after the last step: when a run is resumed under a budget that
        ends where it was stopped, or when the batches have run out."""
        self.log_rest(state)
        if not (is_evaluated := state.evaluated_step == state.step):
            self._evaluate(state)
        if not is_evaluated or self._saved_step != state.step:
            self._save(state)
        with self.context.ranks.agreeing():
            self.writer.wait()

    def log_rest(self, state: TrainState) -> None:
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

    def _evaluate(self, state: TrainState) -> None:
        state.evaluated_step = state.step
        if self.evaluate is not None:
            with self.average.used() if self.average is not None else nullcontext():
                self._evaluate_weights(state, self.evaluate)

    def _evaluate_weights(self, state: TrainState, evaluate: Callable[[], dict[str, float]]) -> None:
        module = self.learner.module
        module.eval()
        measured = None
        with suppress(torch.OutOfMemoryError):  # an error that is kept would keep some of the memory
            measured = evaluate()
        if measured is None:  # memory held for steps may be in its way
            self.stepper.release()
            gc.collect()
            torch.cuda.empty_cache()
            measured = evaluate()
        measured = self.context.ranks.from_first(measured)
        self.last_evaluation = state.evaluation = measured
        set_training_mode(module)
        shown = list(measured.items())[:_MOST_FIGURES]
        left = len(measured) - len(shown)
        figures = " · ".join(f"{name} {value:.4g}" for name, value in shown) + (f" · {left} more" if left else "")
        with self.context.ranks.agreeing():
            self.context.log.write_evaluation(state.step, measured)
            logger.info("step %s: %s", f"{state.step:,}", figures)
        if self.settings.patience is not None:
            metric = choose_metric(measured, self.settings.metric)
            state.best = newest_best(state.best, state.step, measured, metric, module)
            if state.has_lost_patience(self.settings):
                best = f"{state.best.evaluation[metric]:.4g}, that of step {state.best.step:,}"
                since = f"for {state.best.evaluations_since} evaluations"
                logger.info("%s has not been better than %s, %s: the run ends here", metric, best, since)

    def _save(self, state: TrainState) -> None:
        self._saved_step = state.step
        module, optimizer, ranks = self.learner.module, self.optimizer, self.context.ranks
        for name in module.lane_buffers:  # of each lane its own process has the newest
            setattr(module, name, ranks.join_slices(getattr(module, name), dim=2))
        with ranks.agreeing():
            rows = self.context.log.digest()
        with ranks.agreeing():
            if ranks.is_first:
                self.writer.write(take_snapshot(module, optimizer.optimizer, optimizer.schedule, state, rows))
            elif self.settings.shard:
                give_parts(module, optimizer.optimizer)
