"""Trials of a search side by side, each in a process of its own, because a small task's run is mostly start-up,
tokenization, compilation, evaluation and saving, which leave a GPU and most of a processor idle.

A worker process runs one trial after another, so that PyTorch is imported once in each. It receives plain settings
through a pipe and answers how the trial has ended; figures and weights are in the run directories, as usual.
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
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Protocol

import torch

from unmask.errors import InputError, Interrupted, OutputError, UserError
from unmask.finetuning.search.display import TrialsDisplay
from unmask.io.signals import Interruption
from unmask.recipe.tree import FinetuneRecipe

_LOOK_EVERY_S = 0.25
"""How long the parent waits before it looks at the clock and for signals again."""


class RunOne(Protocol):
    """Makes one run of a recipe without `search`, as `unmask.finetuning.run.finetune_settings`."""

    def __call__(
        self, settings: FinetuneRecipe, directory: Path, *, recipe: str, resume: bool, overwrite: bool
    ) -> Path: ...


@dataclass(frozen=True)
class Job:
    """A trial that is to be run.

    Attributes:
        name: the trial's name.
        directory: its run directory.
        settings: a recipe without `search`.
        cost: how long it takes, relative to the others.
    """

    name: str
    directory: Path
    settings: FinetuneRecipe
    cost: float


@dataclass(frozen=True)
class _Ended:
    """How a trial has ended: well, if all are None or False.

    Attributes:
        failure: what is wrong with this trial alone.
        error: what is wrong with every trial, or with our code.
        is_stopped: stopped by a signal; it has saved what it has done.
    """

    failure: str | None = None
    error: Exception | None = None
    is_stopped: bool = False


def attempt(job: Job, recipe: str, run: RunOne) -> str | None:
    """Makes a trial's run, or resumes it.

    Returns:
        What is wrong with this trial alone, such as a learning rate at which it diverges, or a batch that does not fit
        into memory; None if it has finished.

    Raises:
        InputError, OutputError: the examples or the disk are at fault, which every trial shares.
        Interrupted: a signal has arrived; a checkpoint has been saved.
    """
    try:
        run(job.settings, job.directory, recipe=recipe, resume=True, overwrite=False)
    except (InputError, OutputError):
        raise
    except UserError as error:
        return str(error)
    except (torch.OutOfMemoryError, MemoryError) as error:
        told = ". ".join(str(error).split(". ")[:2]) or "out of memory"
        return f"{told}: lower train.micro_batch_size, or search.parallel where runs share the memory"
    return None


def run_side_by_side(
    jobs: Sequence[Job],
    directory: Path,
    *,
    parallel: int,
    recipe: str,
    run: RunOne,
    note_end: Callable[[Job, str | None], str],
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
        directory: of the search, for its log.
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
    with Interruption() as interruption, TrialsDisplay(directory, len(jobs), parallel) as display:
        crew = _Crew(jobs, parallel, recipe, run, note_end, display, shown)
        try:
            crew.work(interruption)
        except KeyboardInterrupt as error:
            told = f"{directory}: stopped at once, with what its trials had saved"
            raise Interrupted(f"{told}; the same command with --resume goes on", signal.SIGINT) from error
        finally:
            crew.dismiss()
    if crew.error is not None:
        raise crew.error
    number = interruption.signal_number or (signal.SIGTERM if crew.is_stopping else None)
    if number is not None:
        told = f"{directory}: stopped; what is finished is kept, and the trials under way have saved where they are"
        raise Interrupted(f"{told}: the same command with --resume goes on", number)


@dataclass
class _Worker:
    """A worker process and its current trial."""

    process: SpawnProcess
    connection: Connection
    job: Job
    began: float

    def give(self, job: Job) -> None:
        self.job, self.began = job, time.monotonic()
        with suppress(OSError):  # it has died, as the end of its pipe will show
            self.connection.send(job)


class _Crew:
    """The workers of a search, and the trials that have not begun."""

    def __init__(
        self,
        jobs: Sequence[Job],
        parallel: int,
        recipe: str,
        run: RunOne,
        note_end: Callable[[Job, str | None], str],
        display: TrialsDisplay,
        shown: Set[str],
    ) -> None:
        self.error: Exception | None = None
        self.is_stopping = False
        self._waiting = deque(jobs)
        self._parallel = parallel
        self._arguments = (recipe, run, max(1, torch.get_num_threads() // parallel))
        self._note_end = note_end
        self._display = display
        self._busy: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._warnings = set(shown)
        self._spent_s, self._spent_cost = 0.0, 0.0

    def work(self, interruption: Interruption) -> None:
        """Runs until no trial is under way and none is left to begin."""
        for _ in range(min(self._parallel, len(self._waiting))):
            self._hire(self._waiting.popleft())
        while self._busy:
            if interruption.signal_number is not None:
                self._stop()
            ready = wait([worker.connection for worker in self._busy], _LOOK_EVERY_S)
            for worker in [worker for worker in self._busy if worker.connection in ready]:
                self._hear(worker)
            now = time.monotonic()
            self._display.show({worker.job.name: now - worker.began for worker in self._busy}, self._left_s(now))

    def dismiss(self) -> None:
        """Kills every worker: an idle one has nothing to save, and would take seconds to free its memory; a worker has
        a trial here only after a fault of ours or a second Ctrl-C."""
        for worker in (*self._busy, *self._idle):
            worker.process.kill()
        for worker in (*self._busy, *self._idle):
            worker.process.join()
            worker.connection.close()

    def _hire(self, job: Job) -> None:
        """Starts a worker. Ctrl-C, which a terminal sends to all processes at once, is for the parent alone: signals
        blocked at the start stay blocked in the worker, which then unblocks SIGTERM."""
        resource_tracker.ensure_running()  # if it started with the first worker, it would unblock both signals
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, *self._arguments))
        former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)
            there.close()
        worker = _Worker(process, here, job, 0.0)
        self._busy.append(worker)
        worker.give(job)

    def _hear(self, worker: _Worker) -> None:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            self._end(worker, self._death(worker))
            return
        if isinstance(message, _Ended):
            self._end(worker, message)
        elif message not in self._warnings:
            self._warnings.add(message)
            self._display.warn(f"{worker.job.name}: {message}")

    def _death(self, worker: _Worker) -> _Ended:
        worker.process.join()
        code = worker.process.exitcode or 0
        if self.is_stopping or code == -signal.SIGTERM:
            return _Ended(is_stopped=True)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        why = " (out of memory?): lower search.parallel" if code == -signal.SIGKILL else ""
        return _Ended(failure=f"its process {how}{why}")

    def _end(self, worker: _Worker, ended: _Ended) -> None:
        job = worker.job
        if ended.error is not None:
            self._waiting.clear()
            self._display.tell(f"{job.name} has failed; no other trial begins, and those under way run to their end")
            if self.error is not None:
                self._display.warn(str(ended.error))
            self.error = self.error or ended.error
        elif ended.is_stopped:
            self._stop()
        else:
            self._spent_s += time.monotonic() - worker.began
            self._spent_cost += job.cost
            self._display.num_ended += 1
            self._display.tell(self._note_end(job, ended.failure))
        self._busy.remove(worker)
        if worker.process.exitcode is not None:
            worker.connection.close()
            if self._waiting:
                self._hire(self._waiting.popleft())
        elif self._waiting:
            self._busy.append(worker)
            worker.give(self._waiting.popleft())
        else:
            self._idle.append(worker)

    def _stop(self) -> None:
        """Lets every worker save and stop."""
        if not self.is_stopping:
            self.is_stopping = True
            self._waiting.clear()
            for worker in self._busy:
                worker.process.terminate()

    def _left_s(self, now: float) -> float | None:
        """Estimated seconds until the last trial ends; None before the first has ended, and when none is left."""
        if not self._spent_cost or not self._busy:
            return None
        cost = sum(job.cost for job in (*self._waiting, *(worker.job for worker in self._busy)))
        under_way_s = sum(now - worker.began for worker in self._busy)
        return max(0.0, cost * self._spent_s / self._spent_cost - under_way_s) / self._parallel


def _work(connection: Connection, recipe: str, run: RunOne, num_threads: int) -> None:
    """What a worker process does until its parent kills it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(num_threads)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  hides bars and messages while the process lives
    logging.captureWarnings(True)
    parent = _WarningsToParent(connection)
    for name in ("unmask", "py.warnings"):
        logging.getLogger(name).addHandler(parent)
    signal.signal(signal.SIGTERM, _stop_trial)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        while True:
            parent.send(_make(connection.recv(), recipe, run))
            torch.cuda.empty_cache()  # memory cached here is not free for the others
    except Interrupted:  # between two trials
        parent.send(_Ended(is_stopped=True))


def _make(job: Job, recipe: str, run: RunOne) -> _Ended:
    try:
        return _Ended(failure=attempt(job, recipe, run))
    except Interrupted:
        return _Ended(is_stopped=True)
    except UserError as error:
        kind = InputError if isinstance(error, InputError) else OutputError
        return _Ended(error=kind(f"{job.name}: {error}"))
    except OSError as error:  # the command line tells these from faults of ours
        return _Ended(error=error)
    except Exception:
        return _Ended(error=RuntimeError(f"{job.name}, in its process:\n{traceback.format_exc()}"))


def _stop_trial(number: int, frame: FrameType | None) -> None:
    """Handles SIGTERM while no `Interruption` does; further ones are then ignored, so as not to disturb the end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Interrupted("stopped by SIGTERM", number)


def _end_with_parent() -> None:
    """Ends the worker with its parent: a killed parent cannot tell its workers, and they would go on in vain."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class _WarningsToParent(logging.Handler):
    """Sends warnings to the parent, but not errors, which it gets as the end of the trial."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.WARNING)
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR:
            self._connection.send(self.format(record).rstrip())

    def send(self, ended: _Ended) -> None:
        """Sends how a trial has ended, not in the middle of another thread's warning."""
        self.acquire()
        try:
            self._connection.send(ended)
        finally:
            self.release()
