"""Trials of a search side by side, each in a process of its own, because a small task's run is mostly start-up,
tokenization, compilation, evaluation and saving, which leave a GPU and most of a processor idle.

A worker process runs one trial after another, so that PyTorch is imported once in each. It receives plain settings and
returns how the trial has ended; figures and weights are in the run directories, as usual.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from logging.handlers import BufferingHandler
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch

from unmask.errors import InputError, Interrupted, OutputError, UserError
from unmask.finetuning.search.display import TrialsDisplay
from unmask.io.signals import Interruption
from unmask.recipe.tree import FinetuneRecipe

TRIALS = "trials"
"""The folder of a search that holds the run directories of its trials, by name."""

_LOOK_EVERY_S = 0.25
"""How long the parent waits before it looks for signals again and brings the bars up to date."""


class RunOne(Protocol):
    """Makes one run of a recipe without `search`, as `unmask.finetuning.run.finetune_settings`."""

    def __call__(
        self, settings: FinetuneRecipe, directory: Path, *, recipe: str, resume: bool, overwrite: bool
    ) -> Path: ...


@dataclass(frozen=True)
class Trial:
    """One run of a search; `name`, `configuration`, `point` and `given` are those of its `TrialOutcome`."""

    name: str
    configuration: str
    point: str
    given: Mapping[str, Any]
    settings: FinetuneRecipe

    @property
    def cost(self) -> float:
        """How long it takes, relative to the other trials of its search."""
        train = self.settings.train
        return train.epochs if train.epochs is not None else train.batch_size if train.steps is not None else 1.0


@dataclass(frozen=True)
class _Ended:
    """How a trial has ended: well, if all but `warnings` are None or False.

    Attributes:
        failure: what is wrong with this trial alone.
        error: what is wrong with every trial, or with our code.
        is_stopped: stopped by a signal; it has saved what it has done.
        warnings: what it has warned about.
    """

    failure: str | None = None
    error: Exception | None = None
    is_stopped: bool = False
    warnings: tuple[str, ...] = ()


def attempt(trial: Trial, directory: Path, recipe: str, run: RunOne) -> str | None:
    """Makes a trial's run, or resumes it.

    Returns:
        What is wrong with this trial alone, such as a learning rate at which it diverges, or a batch that does not fit
        into memory; None if it has finished.

    Raises:
        InputError, OutputError: the examples or the disk are at fault, which every trial shares.
        Interrupted: a signal has arrived; a checkpoint has been saved.
    """
    try:
        run(trial.settings, directory / TRIALS / trial.name, recipe=recipe, resume=True, overwrite=False)
    except (InputError, OutputError):
        raise
    except UserError as error:
        return str(error)
    except (torch.OutOfMemoryError, MemoryError) as error:
        message = ". ".join(str(error).split(". ")[:2]) or "out of memory"
        return f"{message}: lower train.micro_batch_size, or search.parallel where runs share the memory"
    return None


def run_side_by_side(
    waiting: Sequence[Trial],
    directory: Path,
    *,
    parallel: int,
    recipe: str,
    run: RunOne,
    note_end: Callable[[Trial, str | None], str],
    shown: Set[str],
) -> None:
    """Runs trials in worker processes, several at a time.

    Each worker computes with its share of the available threads. What a run leaves behind is, byte for byte, what it
    would leave if trials ran one after another with as many threads; with another number, sums are taken in another
    order and may differ in their last bits. Times, and rates in tokens per second, differ in any case, and so does
    where a run under `train.minutes` ends.

    The bars and messages of a trial are not shown: its `log.txt` has them. Each warning is shown once, under the name
    of the first trial that gives it.

    Args:
        waiting: the trials to run.
        directory: of the search.
        parallel: trials at a time, 1 or more.
        recipe: the recipe's name, for the record.
        run: a module-level function, which workers import.
        note_end: called for each trial that has finished or failed, in the order in which they end, with what is wrong
            with that trial alone; it returns the line to show.
        shown: warnings that have been shown already and are not repeated.

    Raises:
        UserError, OSError: the examples or the disk are at fault. Trials that were under way have run to their end, and
            no other has begun.
        RuntimeError: a fault of ours, with the worker's traceback; the other trials are left as above.
        Interrupted: Ctrl-C or SIGTERM; trials that were under way have saved their checkpoints. A second Ctrl-C ends
            them at once.
    """
    num_threads = max(1, torch.get_num_threads() // parallel)
    with Interruption() as interruption, TrialsDisplay(directory, len(waiting), parallel) as display:
        trials = _Trials(
            waiting, parallel, lambda: _Worker(directory, recipe, run, num_threads), note_end, display, shown
        )
        try:
            trials.run(interruption)
        except KeyboardInterrupt as error:
            message = f"{directory}: stopped at once, with what its trials had saved"
            raise Interrupted(f"{message}; the same command with --resume continues", signal.SIGINT) from error
        finally:
            trials.close()
    if trials.error is not None:
        raise trials.error
    number = interruption.signal_number or (signal.SIGTERM if trials.is_stopping else None)
    if number is not None:
        message = f"{directory}: stopped; what is finished is kept, and the trials under way have saved where they are"
        raise Interrupted(f"{message}: the same command with --resume continues", number)


class _Worker:
    """A process that runs one trial at a time: a pool of its own, since a killed process breaks its whole pool."""

    def __init__(self, directory: Path, recipe: str, run: RunOne, num_threads: int) -> None:
        self._arguments = (directory, recipe, run)
        self._executor = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=_prepare_process, initargs=(num_threads,)
        )
        before = multiprocessing.active_children()
        # Ctrl-C, which a terminal sends to all processes at once, is for the parent alone: signals blocked at the start
        # stay blocked in the process, which then unblocks SIGTERM.
        former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            self._executor.submit(os.getpid)  # starts the process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)
        (self.process,) = set(multiprocessing.active_children()).difference(before)

    def submit(self, trial: Trial) -> Future[_Ended]:
        self.trial, self.began = trial, time.monotonic()
        try:
            return self._executor.submit(_run_trial, trial, *self._arguments)
        except BrokenProcessPool as error:  # it was killed before
            future: Future[_Ended] = Future()
            future.set_exception(error)
            return future

    def exit_code(self) -> int:
        """How the process, which has died, has ended: minus the number of the signal that killed it, if one did.

        The pool's own thread waits for the process, too, and the system reports an end to one of them only: so that
        thread ends first.
        """
        self._executor.shutdown()
        self.process.join()
        return self.process.exitcode or 0

    def close(self) -> None:
        """Kills the process: an idle one has nothing to save, and would take seconds to free its memory; it has a trial
        here only after a fault of ours or a second Ctrl-C."""
        self.process.kill()
        self._executor.shutdown()


class _Trials:
    """The trials of a search: those that have not begun, and the workers."""

    def __init__(
        self,
        waiting: Sequence[Trial],
        parallel: int,
        new_worker: Callable[[], _Worker],
        note_end: Callable[[Trial, str | None], str],
        display: TrialsDisplay,
        shown: Set[str],
    ) -> None:
        self.error: Exception | None = None
        self.is_stopping = False
        self._waiting = deque(waiting)
        self._parallel = parallel
        self._new_worker = new_worker
        self._workers: list[_Worker] = []
        self._running: dict[Future[_Ended], _Worker] = {}
        self._note_end = note_end
        self._display = display
        self._warnings = set(shown)
        self._spent_s, self._spent_cost = 0.0, 0.0

    def run(self, interruption: Interruption) -> None:
        """Runs until no trial is under way and none is left to begin."""
        for _ in range(min(self._parallel, len(self._waiting))):
            self._begin(None)
        while self._running:
            if interruption.signal_number is not None:
                self._stop()
            done, _ = wait(self._running, _LOOK_EVERY_S, FIRST_COMPLETED)
            for future in done:
                worker = self._running.pop(future)
                ended = self._ending(future, worker)
                self._end(worker, ended)
                if self._waiting:
                    self._begin(worker if worker.process.is_alive() else None)
            self._display.show([worker.trial.name for worker in self._running.values()], self._left_s())

    def close(self) -> None:
        """Ends every worker."""
        for worker in self._workers:
            worker.close()

    def _begin(self, worker: _Worker | None) -> None:
        """Begins the next trial, in a new worker if none is given."""
        if worker is None:
            worker = self._new_worker()
            self._workers.append(worker)
        self._running[worker.submit(self._waiting.popleft())] = worker

    def _ending(self, future: Future[_Ended], worker: _Worker) -> _Ended:
        try:
            return future.result()
        except BrokenProcessPool:
            code = worker.exit_code()
        if self.is_stopping or code == -signal.SIGTERM:
            return _Ended(is_stopped=True)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        why = " (out of memory?): lower search.parallel" if code == -signal.SIGKILL else ""
        return _Ended(failure=f"its process {how}{why}")

    def _end(self, worker: _Worker, ended: _Ended) -> None:
        trial = worker.trial
        for message in ended.warnings:
            if message not in self._warnings:
                self._warnings.add(message)
                self._display.warn(f"{trial.name}: {message}")
        if ended.error is not None:
            self._waiting.clear()
            self._display.log(f"{trial.name} has failed; no other trial begins, and those under way run to their end")
            if self.error is not None:
                self._display.warn(str(ended.error))
            self.error = self.error or ended.error
        elif ended.is_stopped:
            self._stop()
        else:
            self._spent_s += time.monotonic() - worker.began
            self._spent_cost += trial.cost
            self._display.num_ended += 1
            self._display.log(self._note_end(trial, ended.failure))

    def _stop(self) -> None:
        """Lets every worker save and stop."""
        if not self.is_stopping:
            self.is_stopping = True
            self._waiting.clear()
            for worker in self._running.values():
                worker.process.terminate()

    def _left_s(self) -> float | None:
        """Estimated seconds until the last trial ends; None before the first has ended, and when none is left."""
        if not self._spent_cost or not self._running:
            return None
        workers = self._running.values()
        cost = sum(trial.cost for trial in (*self._waiting, *(worker.trial for worker in workers)))
        under_way_s = sum(time.monotonic() - worker.began for worker in workers)
        return max(0.0, cost * self._spent_s / self._spent_cost - under_way_s) / self._parallel


# In a worker process


def _prepare_process(num_threads: int) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(num_threads)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  hides bars and messages while the process lives
    logging.captureWarnings(True)
    signal.signal(signal.SIGTERM, _stop_trial)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _end_with_parent() -> None:
    """Ends the worker with its parent: a killed parent cannot stop its workers, which would then run on for nothing."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _stop_trial(number: int, frame: FrameType | None) -> None:
    """Handles SIGTERM while no `Interruption` does; further ones are then ignored, so as not to disturb the end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Interrupted("stopped by SIGTERM", number)


def _run_trial(trial: Trial, directory: Path, recipe: str, run: RunOne) -> _Ended:
    """Makes a trial's run; its warnings come back with its end, its errors as that end."""
    warnings = BufferingHandler(sys.maxsize)
    warnings.setLevel(logging.WARNING)
    warnings.addFilter(lambda record: record.levelno < logging.ERROR)
    loggers = [logging.getLogger(name) for name in ("unmask", "py.warnings")]
    for logger in loggers:
        logger.addHandler(warnings)
    try:
        ended = _attempt_all(trial, directory, recipe, run)
    finally:
        for logger in loggers:
            logger.removeHandler(warnings)
        torch.cuda.empty_cache()  # memory cached here is not free for the others
    messages = dict.fromkeys(warnings.format(record).rstrip() for record in warnings.buffer)
    return replace(ended, warnings=tuple(messages))


def _attempt_all(trial: Trial, directory: Path, recipe: str, run: RunOne) -> _Ended:
    try:
        return _Ended(failure=attempt(trial, directory, recipe, run))
    except Interrupted:
        return _Ended(is_stopped=True)
    except UserError as error:
        kind = InputError if isinstance(error, InputError) else OutputError
        return _Ended(error=kind(f"{trial.name}: {error}"))
    except OSError as error:  # the command line distinguishes these from faults of ours
        return _Ended(error=error)
    except Exception:
        return _Ended(error=RuntimeError(f"{trial.name}, in its process:\n{traceback.format_exc()}"))
