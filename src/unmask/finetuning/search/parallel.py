"""Trials of a search side by side, each in a process of its own, because a small task's run is mostly start-up,
tokenization, compilation, evaluation and saving, which leave a GPU and most of a processor idle.

The processes are on this machine, or on the machines of a Ray cluster.
"""

from __future__ import annotations

import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from typing import Protocol

from unmask.errors import Interrupted
from unmask.finetuning.search.display import TrialsDisplay
from unmask.finetuning.search.on_ray import RayMachines
from unmask.finetuning.search.trial import Ended, Pace, Runs, Trial, TrialProcess
from unmask.io.signals import Interruption
from unmask.recipe.tree import FinetuneRecipe

_LOOK_EVERY_S = 0.25
"""How long the parent waits before it looks for signals again and brings the bars up to date."""
_MOST_LOSSES = 5
"""How often a trial begins again after its machine was lost."""


class Machines(Protocol):
    """Where trials run."""

    def capacity(self) -> int:
        """How many trials can run at a time, as things are."""
        ...

    def begin(self, trial: Trial) -> None: ...

    def ended(self, timeout_s: float) -> list[tuple[str, Ended]]:
        """The trials that have ended since the last call, by name; waits for the first of them, and no longer than
        that."""
        ...

    def stop(self) -> None:
        """Lets every trial that is under way save and stop."""
        ...

    def close(self) -> None:
        """Ends every process."""
        ...


def run_side_by_side(
    waiting: Sequence[Trial],
    runs: Runs,
    seen: set[str],
    *,
    settings: FinetuneRecipe,
    note_end: Callable[[Trial, str | None], str],
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
        seen: warnings that have been shown; those of the trials are added.
        settings: of the search: how many at a time, and where.
        note_end: called for each trial that has finished or failed, in the order in which they end, with what is wrong
            with that trial alone; it returns the line to show.

    Raises:
        UserError, OSError: the examples or the disk are at fault. Trials that were under way have run to their end, and
            no other has begun. Or the cluster is lost.
        RuntimeError: a fault of ours, with the worker's traceback; the other trials are left as above.
        Interrupted: Ctrl-C or SIGTERM; trials that were under way have saved their checkpoints. A second Ctrl-C ends
            them at once.
    """
    directory, search = runs.directory, settings.search
    with Interruption() as interruption:
        try:
            machines: Machines = (
                ThisMachine(search.parallel, runs)
                if search.ray is None
                else RayMachines(search.ray, search.parallel, settings.device, runs)
            )
            with closing(machines):
                at_a_time = max(1, min(machines.capacity(), len(waiting)))
                with TrialsDisplay(directory, len(waiting), at_a_time) as display:
                    trials = _Trials(waiting, machines, seen, note_end, display)
                    trials.run(interruption)
        except KeyboardInterrupt as error:
            message = f"{directory}: stopped at once, with what its trials had saved"
            raise Interrupted(f"{message}; the same command with --resume continues", signal.SIGINT) from error
    if trials.error is not None:
        raise trials.error
    number = interruption.signal_number or (signal.SIGTERM if trials.is_stopping else None)
    if number is not None:
        message = f"{directory}: stopped; what is finished is kept, and the trials under way have saved where they are"
        raise Interrupted(f"{message}: the same command with --resume continues", number)


class ThisMachine:
    """Processes of this machine, which are kept from one trial to the next."""

    def __init__(self, parallel: int, runs: Runs) -> None:
        self._parallel = parallel
        self._runs = runs
        self._idle: list[TrialProcess] = []
        self._busy: dict[Future[Ended], tuple[str, TrialProcess]] = {}

    def capacity(self) -> int:
        return self._parallel

    def begin(self, trial: Trial) -> None:
        process = self._idle.pop() if self._idle else TrialProcess(self._runs)
        self._busy[process.begin(trial)] = (trial.name, process)

    def ended(self, timeout_s: float) -> list[tuple[str, Ended]]:
        found = []
        for future in wait(self._busy, timeout_s, FIRST_COMPLETED).done:
            name, process = self._busy.pop(future)
            found.append((name, process.ended(future)))
            if process.is_alive:
                self._idle.append(process)
        return found

    def stop(self) -> None:
        for _, process in self._busy.values():
            process.stop()

    def close(self) -> None:
        for process in (*self._idle, *(process for _, process in self._busy.values())):
            process.close()


class _Trials:
    """The trials of a search: those that have not begun, and those that are under way."""

    def __init__(
        self,
        waiting: Sequence[Trial],
        machines: Machines,
        seen: set[str],
        note_end: Callable[[Trial, str | None], str],
        display: TrialsDisplay,
    ) -> None:
        self.error: Exception | None = None
        self.is_stopping = False
        self._waiting = deque(waiting)
        self._machines = machines
        self._running: dict[str, tuple[Trial, float]] = {}  # with the time at which each has begun
        self._losses: Counter[str] = Counter()
        self._note_end = note_end
        self._display = display
        self._seen = seen
        self._pace = Pace()

    def run(self, interruption: Interruption) -> None:
        """Runs until no trial is under way and none is left to begin."""
        while self._waiting or self._running:
            if interruption.signal_number is not None:
                self._stop()
            capacity = self._machines.capacity()
            while self._waiting and len(self._running) < capacity:
                trial = self._waiting.popleft()
                self._running[trial.name] = (trial, time.monotonic())
                self._machines.begin(trial)
            for name, ended in self._machines.ended(_LOOK_EVERY_S):
                self._end(*self._running.pop(name), ended)
            self._display.show(list(self._running), self._left_s(capacity))

    def _end(self, trial: Trial, began: float, ended: Ended) -> None:
        for message in ended.warnings:
            if message not in self._seen:
                self._seen.add(message)
                self._display.warn(f"{trial.name}: {message}")
        if ended.lost is not None and not self.is_stopping and self.error is None:
            self._losses[trial.name] += 1
            if self._losses[trial.name] <= _MOST_LOSSES:
                self._waiting.appendleft(trial)
                self._display.warn(f"{trial.name} begins again from its last checkpoint: {ended.lost}")
                return
            ended = Ended(failure=f"it was lost {self._losses[trial.name]} times, the last time: {ended.lost}")
        if ended.error is not None:
            self._waiting.clear()
            self._display.log(f"{trial.name} has failed; no other trial begins, and those under way run to their end")
            if self.error is not None:
                self._display.warn(str(ended.error))
            self.error = self.error or ended.error
        elif ended.is_stopped:
            self._stop()
        elif ended.lost is None:
            self._pace.add(trial, time.monotonic() - began)
            self._display.num_ended += 1
            self._display.log(self._note_end(trial, ended.failure))

    def _stop(self) -> None:
        """Lets every trial save and stop."""
        if not self.is_stopping:
            self.is_stopping = True
            self._waiting.clear()
            self._machines.stop()

    def _left_s(self, capacity: int) -> float | None:
        """Estimated seconds until the last trial ends; None before the first has ended, and when none is left."""
        needed_s = self._pace.needed_s((*self._waiting, *(trial for trial, _ in self._running.values())))
        if needed_s is None or not self._running or not capacity:
            return None
        under_way_s = sum(time.monotonic() - began for _, began in self._running.values())
        return max(0.0, needed_s - under_way_s) / capacity
