"""A trial of a search, and the process that runs one trial after another.

The process imports PyTorch once, receives plain settings and returns how each trial has ended; figures and weights are
in the run directories, as usual.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from logging.handlers import BufferingHandler
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch

from unmask.config import build_settings, read_settings_file
from unmask.errors import InputError, Interrupted, OutputError, SettingsError, UserError
from unmask.io.json_files import read_object
from unmask.io.paths import MODEL, RECIPE, RESULTS, TRIALS
from unmask.io.processes import WorkerProcess
from unmask.recipe.tree import FinetuneRecipe
from unmask.training.memory import first_sentences
from unmask.training.run.resuming import RESUMABLE_KEYS, changes_of


class RunOne(Protocol):
    """Makes one run of a recipe without `search`, as `unmask.finetuning.run.finetune_settings`."""

    def __call__(
        self, settings: FinetuneRecipe, directory: Path, *, recipe: str, resume: bool, overwrite: bool
    ) -> Path: ...


@dataclass(frozen=True)
class Trial:
    """One run of a search.

    Attributes:
        configuration: a name for all its settings but the seed.
        point: a name for all its settings but the seed and the checkpoint.
        given: what the search chose for it, by the names of settings.
    """

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


class Pace:
    """How long trials take, by those that have ended."""

    def __init__(self) -> None:
        self._spent_s, self._spent_cost = 0.0, 0.0

    def add(self, trial: Trial, spent_s: float) -> None:
        self._spent_s += spent_s
        self._spent_cost += trial.cost

    def needed_s(self, trials: Iterable[Trial]) -> float | None:
        """How many seconds some trials take, one after another; None before the first has ended."""
        if not self._spent_cost:
            return None
        return sum(trial.cost for trial in trials) * self._spent_s / self._spent_cost


@dataclass(frozen=True)
class Runs:
    """How the trials of a search are run.

    Attributes:
        directory: of the search.
        recipe: the recipe's name, for the record.
        run: makes one run; a module-level function where processes import it.
        num_threads: that each trial computes with, where several run at a time.
    """

    directory: Path
    recipe: str
    run: RunOne
    num_threads: int


@dataclass(frozen=True)
class Ended:
    """How a trial has ended: well, if all but `warnings` are None or False.

    Attributes:
        failure: what is wrong with this trial alone.
        error: what is wrong with every trial, or with our code.
        lost: why its machine has not ended it; it may begin again elsewhere.
        is_stopped: stopped by a signal; it has saved what it has done.
        warnings: what it has warned about.
    """

    failure: str | None = None
    error: Exception | None = None
    lost: str | None = None
    is_stopped: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def is_well(self) -> bool:
        return self == Ended(warnings=self.warnings)


def attempt(trial: Trial, runs: Runs) -> str | None:
    """Makes a trial's run, or resumes it.

    Returns:
        What is wrong with this trial alone, such as a learning rate at which it diverges, or a batch that does not fit
        into memory; None if it has finished.

    Raises:
        InputError, OutputError: the examples or the disk are at fault, which every trial shares.
        Interrupted: a signal has arrived; a checkpoint has been saved.
    """
    try:
        place = runs.directory / TRIALS / trial.name
        runs.run(trial.settings, place, recipe=runs.recipe, resume=True, overwrite=False)
    except (InputError, OutputError):
        raise
    except UserError as error:
        return str(error)
    except (torch.OutOfMemoryError, MemoryError) as error:
        reason = first_sentences(str(error))
        return f"{reason}: lower train.micro_batch_size, or search.parallel where runs share the memory"
    return None


def read_results(place: Path) -> dict[str, Any] | None:
    """The results of a finished run; None where it is not finished."""
    try:
        results = read_object(place / RESULTS)
    except InputError:
        return None
    is_whole = "dev" in results and (place / MODEL / "config.json").is_file()
    return results if is_whole else None


def refuse_other_settings(trial: Trial, place: Path) -> None:
    """Raises SettingsError where a finished run has the name of a trial, but not its settings; one that is resumed is
    compared as it begins."""
    saved = place / RECIPE
    if read_results(place) is None or not saved.is_file():
        return
    before = build_settings(FinetuneRecipe, read_settings_file(saved), str(saved))
    changed = changes_of(before, trial.settings).items()
    other = [
        f"{key}={then} (here it is {now})"
        for key, (then, now) in changed
        if key not in RESUMABLE_KEYS and os.path.realpath(str(then)) != os.path.realpath(str(now))  # one place
    ]
    if other:
        raise SettingsError(
            f"{place} was made with other settings than those of this search: {', '.join(other)}. Give the same "
            "settings, move it away, or give another --out"
        )


class TrialProcess:
    """A process that runs one trial at a time."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._worker = WorkerProcess(_prepare_process, runs.num_threads)
        self._is_stopping = False

    @property
    def is_alive(self) -> bool:
        return self._worker.process.is_alive()

    def begin(self, trial: Trial) -> Future[Ended]:
        return self._worker.submit(_run_trial, trial, self._runs)

    def ended(self, future: Future[Ended]) -> Ended:
        """How the trial of `begin` has ended; waits until it has."""
        try:
            return future.result()
        except BrokenProcessPool:
            code = self._worker.exit_code()
        if self._is_stopping or code == -signal.SIGTERM:
            return Ended(is_stopped=True)
        advice = ": lower search.parallel" if code == -signal.SIGKILL else ""
        return Ended(failure=f"its process {self._worker.how_it_ended()}{advice}")

    def stop(self) -> None:
        """Lets its trial save and stop."""
        self._is_stopping = True
        self._worker.process.terminate()

    def close(self) -> None:
        """Kills it; it has a trial here only after a fault of ours or a second Ctrl-C."""
        self._worker.close()


# In the process


def _prepare_process(num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  hides bars and messages while the process lives
    logging.captureWarnings(True)
    signal.signal(signal.SIGTERM, _stop_trial)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _stop_trial(number: int, _: FrameType | None) -> None:
    """Handles SIGTERM while no `Interruption` does; further ones are then ignored, so as not to disturb the end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Interrupted("stopped by SIGTERM", number)


def _run_trial(trial: Trial, runs: Runs) -> Ended:
    """Makes a trial's run; its warnings come back with its end, its errors as that end."""
    warnings = BufferingHandler(sys.maxsize)
    warnings.setLevel(logging.WARNING)
    warnings.addFilter(lambda record: record.levelno < logging.ERROR)
    loggers = [logging.getLogger(name) for name in ("unmask", "py.warnings")]
    for logger in loggers:
        logger.addHandler(warnings)
    try:
        ended = _attempt_all(trial, runs)
    finally:
        for logger in loggers:
            logger.removeHandler(warnings)
        torch.cuda.empty_cache()  # memory cached here is not free for the others
    messages = dict.fromkeys(warnings.format(record).rstrip() for record in warnings.buffer)
    return replace(ended, warnings=tuple(messages))


def _attempt_all(trial: Trial, runs: Runs) -> Ended:
    try:
        return Ended(failure=attempt(trial, runs))
    except Interrupted:
        return Ended(is_stopped=True)
    except UserError as error:
        kind = InputError if isinstance(error, InputError) else OutputError
        return Ended(error=kind(f"{trial.name}: {error}"))
    except OSError as error:  # the command line distinguishes these from faults of ours
        return Ended(error=error)
    except Exception:
        return Ended(error=RuntimeError(f"{trial.name}, in its process:\n{traceback.format_exc()}"))
