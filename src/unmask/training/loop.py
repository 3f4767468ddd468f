"""The one training loop, for pre-training and fine-tuning alike.

It knows nothing of objectives or tasks: it is given a module whose forward pass returns loss terms, the batches of each
step, a function that counts targets, an optimizer, a schedule, and one hook. The loss of a step is the sum over its
terms of coefficient x (sum of totals / sum of counts), the sums taken over the whole step, so cutting a step into
micro-batches changes nothing but memory use and which elements dropout zeroes: dropout draws batch by batch.

A `Stepper` takes the steps: it checks the loss and gradient norm of each before its update is taken, on the device if
possible, so that the loop waits for figures only when they are due.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Any, Protocol

import torch
from torch import nn

from unmask.batch import Batch
from unmask.training.divergence import WINDOW, BadStep, find_fault
from unmask.training.optimizers.optimizer import Schedule, share_done
from unmask.training.run.best import Best
from unmask.training.settings import TrainSettings
from unmask.training.stepper import EagerStepper, StepFigures, Stepper


class StepBatches(Protocol):
    """What a loader yields for each optimizer step."""

    @property
    def batches(self) -> list[Batch]:
        """The micro-batches."""

    @property
    def after(self) -> Any:
        """The loader's position after the step."""

    @property
    def epochs(self) -> float:
        """Passes over the data when the step is done."""


@dataclass
class TrainState:
    """Where a run stands; with weights, optimizer and generators, all that a checkpoint needs.

    Attributes:
        step: optimizer updates done.
        tokens: tokens shown.
        epochs: passes over the data done.
        seconds: time spent training, evaluations and stops not counted.
        position: the loader's next position; JSON if it has just been restored.
        newest: what the newest step did.
        totals: summed loss terms since `take_means` was last called.
        counts: the targets they were summed over.
        logged_tokens, logged_seconds: `tokens` and `seconds` when it was called.
        recent_losses: of the last steps taken, the newest last; spikes are judged against them.
        roll_backs: how often the run has gone back to a checkpoint.
        micro_batch_tokens: the most tokens of a micro-batch, every sequence counted as long as the longest; None unless
            the memory has limited it, see `unmask.training.memory`.
        evaluation: the newest held-out figures, by name.
        evaluated_step: the step they were measured after; None before the first time.
        best: the best evaluation so far, where the run may end early; None before the first one.
    """

    step: int = 0
    tokens: int = 0
    epochs: float = 0.0
    seconds: float = 0.0
    position: Any = None
    newest: StepResult | None = None
    totals: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    logged_tokens: int = 0
    logged_seconds: float = 0.0
    recent_losses: list[float] = field(default_factory=list)
    roll_backs: int = 0
    micro_batch_tokens: int | None = None
    evaluation: dict[str, float] = field(default_factory=dict)
    evaluated_step: int | None = None
    best: Best | None = None

    @property
    def done(self) -> dict[str, float]:
        """How much is done, by the names of the budgets."""
        return {"steps": self.step, "tokens": self.tokens, "epochs": self.epochs, "minutes": self.seconds / 60}

    def progress(self, settings: TrainSettings) -> float:
        """The share of the budget that is done, from 0 to 1."""
        return share_done(self.done, settings)

    def is_over(self, settings: TrainSettings) -> bool:
        """True where the budget is spent, or `patience` evaluations have gone by without a better one."""
        has_lost_patience = (
            settings.patience is not None and self.best is not None and self.best.evaluations_since >= settings.patience
        )
        return has_lost_patience or self.progress(settings) >= 1

    def take_means(self) -> dict[str, float]:
        """The mean since the last call of each loss term that has had targets."""
        means = {name: total / self.counts[name] for name, total in self.totals.items() if self.counts[name]}
        self.totals, self.counts = {}, {}
        self.logged_tokens, self.logged_seconds = self.tokens, self.seconds
        return means

    def roll_back_to(self, earlier: TrainState) -> None:
        """Becomes an earlier state, but keeps the place in the data and the time spent; counts the roll-back.

        Which phase of a run the next step belongs to follows from what is done, so it is that of the earlier state.
        """
        kept: dict[str, Any] = {"position": self.position, "epochs": self.epochs, "seconds": self.seconds}
        kept["roll_backs"] = self.roll_backs + 1
        kept["micro_batch_tokens"] = self.micro_batch_tokens
        # Lost steps do not count in the rate.
        kept["logged_seconds"] = earlier.logged_seconds + self.seconds - earlier.seconds
        for each in fields(self):
            setattr(self, each.name, kept.get(each.name, getattr(earlier, each.name)))


@dataclass(frozen=True)
class StepResult:
    """What the hook is told about a step.

    Attributes:
        learning_rate: the rate of the step.
        gradient_norm: before clipping.
        tokens: tokens shown in the step.
        coefficients: of each loss term.
    """

    learning_rate: float
    gradient_norm: float
    tokens: int
    coefficients: dict[str, float]


def train(
    module: nn.Module,
    steps: Iterable[StepBatches],
    prepare: Callable[[Batch], Batch],
    counts: Callable[[Batch], dict[str, int]],
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    settings: TrainSettings,
    state: TrainState,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]],
    on_step: Callable[[TrainState, StepResult], None],
    *,
    before_step: Callable[[TrainState, Schedule], None] | None = None,
    on_bad_step: Callable[[TrainState, BadStep], Iterable[StepBatches] | None] | None = None,
    on_out_of_memory: Callable[[TrainState, StepBatches, str], Iterable[StepBatches]] | None = None,
    stepper: Stepper | None = None,
    is_due: Callable[[TrainState], bool] | None = None,
    reads_ahead: bool = False,
) -> None:
    """Trains until the budget is spent, or the hook has noted in `state.best` that evaluations get no better.

    Args:
        module: takes a prepared batch, returns its `LossTerm`s.
        steps: the batches of each step, from `state.position` on. When a step's batches are requested, `state` is still
            as before that step.
        prepare: draws masks and labels; called once for each batch.
        counts: the number of targets in a prepared batch, for each loss term that the module may return.
        optimizer: its groups' rates at this point are the peak rates.
        schedule: the factor on the peak rates.
        settings: the budget and the clipping.
        state: where the run stands; brought up to date after each step.
        device: where the module is.
        autocast: a context in which the forward pass runs.
        on_step: called after each step that is due: logs, evaluates, saves; stops the run by raising.
        before_step: called before each step: may begin a stage of the schedule and change what is trained. At the first
            call after a resume, only the weights of the module have been restored.
        on_bad_step: called in place of an update in which `find_fault` finds a fault; raises, or resets module,
            optimizer, schedule and `state` to where the next step is to begin. It returns the batches from
            `state.position` on again if they depend on what it has reset; None if they are those that come next
            anyway. No function: faults are not looked for, which only steps that are not recorded allow.
        on_out_of_memory: called when a step does not fit into the device's memory, with the step and the error's
            message; raises, or returns the batches from `state.position` on again, in smaller micro-batches. None: the
            error is raised.
        stepper: takes the steps; None computes every batch as it comes.
        is_due: whether the hook has anything to do after the step just launched, if the device may run ahead; None: it
            has after every step.
        reads_ahead: True prepares the next step's batches before waiting for this step's figures, which keeps a GPU
            busy; a budget in minutes, or a run that ends early, may then read one step too many.
    """
    peaks = [group["initial_lr"] if "initial_lr" in group else group["lr"] for group in optimizer.param_groups]
    for group, peak in zip(optimizer.param_groups, peaks, strict=True):
        group["initial_lr"] = peak
    set_training_mode(module)
    if stepper is None:
        stepper = EagerStepper(module, optimizer, settings.max_grad_norm, device, autocast)
    stepper.restart(state.recent_losses)
    prepared = _prepare_steps(steps, prepare)
    waiting: deque[_PreparedStep] = deque()
    launched: list[_Launched] = []
    while not state.is_over(settings):
        began = time.monotonic()
        if before_step is not None:
            before_step(state, schedule)
        step = waiting.popleft() if waiting else next(prepared, None)
        if step is not None:
            factor = schedule.factor(state.done, settings)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            step_counts = _sum_counts(counts(batch) for batch in step.batches)
            reason = _launch(stepper, step, step_counts, raises=on_out_of_memory is None)
            if reason is not None and on_out_of_memory is not None:
                waiting.clear()
                prepared = _prepare_steps(on_out_of_memory(state, step, reason), prepare)
                continue
            state.step += 1
            state.tokens += step.num_tokens
            state.epochs = step.epochs
            state.position = step.after
            launched.append(_Launched(step, step_counts, peaks[0] * factor, state.step, state.tokens))
            if reads_ahead and not waiting and not state.is_over(settings):
                waiting.extend(islice(prepared, 1))
            if not (_must_read(stepper, launched) or is_due is None or is_due(state) or state.is_over(settings)):
                state.seconds += time.monotonic() - began
                continue
        elif not launched:
            break  # the batches have run out
        ledger = _Ledger(state, launched, settings.spike_factor, looks_for_faults=on_bad_step is not None)
        figures = stepper.read(ledger.enter)
        state.seconds += time.monotonic() - began
        newest, *after = launched[len(figures) - 1 :]
        launched = []
        if ledger.fault is not None and on_bad_step is not None:
            state.step, state.tokens = newest.step, newest.tokens
            state.epochs, state.position = newest.prepared.epochs, newest.prepared.after
            waiting.extendleft(later.prepared for later in reversed(after))
            made_anew = on_bad_step(state, ledger.bad_step(newest, figures[-1]))
            if made_anew is not None:
                waiting.clear()
                prepared = _prepare_steps(made_anew, prepare)
            stepper.restart(state.recent_losses)
            continue
        told = figures[-1]
        on_step(state, StepResult(newest.rate, told.gradient_norm, newest.prepared.num_tokens, told.coefficients))


_MOST_LAUNCHED = 256
"""Steps that may be launched before their figures are read."""


def _launch(stepper: Stepper, step: _PreparedStep, counts: dict[str, int], *, raises: bool) -> str | None:
    """Launches a step; returns the error's message if it does not fit into the memory, else None.

    The error itself is dropped: its traceback keeps what the step has allocated.
    """
    try:
        stepper.launch(step.batches, counts)
    except torch.OutOfMemoryError as error:
        if raises:
            raise
        return str(error)
    return None


def _must_read(stepper: Stepper, launched: Sequence[_Launched]) -> bool:
    return not stepper.runs_ahead or len(launched) >= _MOST_LAUNCHED


@dataclass(frozen=True)
class _PreparedStep:
    """A step's batches with masks and labels; the rest as in `StepBatches`."""

    batches: list[Batch]
    after: Any
    epochs: float

    @property
    def num_tokens(self) -> int:
        return sum(batch.num_tokens for batch in self.batches)


def _prepare_steps(steps: Iterable[StepBatches], prepare: Callable[[Batch], Batch]) -> Iterator[_PreparedStep]:
    for step in steps:
        yield _PreparedStep([prepare(batch) for batch in step.batches], step.after, step.epochs)


@dataclass(frozen=True)
class _Launched:
    """A step whose figures are not known yet.

    Attributes:
        counts: targets of each loss term.
        rate: the learning rate.
        step, tokens: those of the state after the step.
    """

    prepared: _PreparedStep
    counts: dict[str, int]
    rate: float
    step: int
    tokens: int


@dataclass
class _Ledger:
    """Enters the figures of launched steps, one after another, into the state.

    Attributes:
        fault: what is wrong with the newest step, in words.
    """

    state: TrainState
    launched: list[_Launched]
    spike_factor: float | None
    looks_for_faults: bool
    fault: str | None = None

    def enter(self, place: int, figures: StepFigures) -> bool:
        """Returns whether a step may be taken; if so, adds its figures to the state."""
        step, state = self.launched[place], self.state
        loss = figures.loss(step.counts)
        if self.looks_for_faults:
            self.fault = find_fault(step.step, loss, figures.gradient_norm, state.recent_losses, self.spike_factor)
        if self.fault is not None:
            return False
        for name, total in figures.sums.items():
            state.totals[name] = state.totals.get(name, 0.0) + total
            state.counts[name] = state.counts.get(name, 0) + step.counts[name]
        state.recent_losses = [*state.recent_losses, loss][-WINDOW:]
        return True

    def bad_step(self, step: _Launched, figures: StepFigures) -> BadStep:
        """All that is known of the step that was not taken."""
        assert self.fault is not None
        return BadStep(
            step.step,
            self.fault,
            step.prepared.batches,
            figures.loss(step.counts),
            figures.means(step.counts),
            {name: step.counts[name] for name in figures.sums},
            step.rate,
            figures.gradient_norm,
            tuple(self.state.recent_losses),
        )


def set_training_mode(module: nn.Module) -> None:
    """Sets training mode, except for frozen parts: they stay in eval mode, so each is a fixed function of its input.

    Their dropout is off (in `transformers`, frozen layers keep theirs), so a frozen encoder gives the same features in
    every epoch, those that `unmask features` writes.
    """
    module.train()
    for part in module.modules():
        parameters = list(part.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            part.eval()


def _sum_counts(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for count in counts:
        for name, value in count.items():
            total[name] = total.get(name, 0) + value
    return total
