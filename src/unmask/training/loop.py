"""The one training loop, for pre-training and fine-tuning alike.

It knows nothing of objectives or tasks: it gets a module whose forward pass returns loss terms, the batches of each
step, a function that counts targets, an optimizer, a schedule, and one hook. The loss of a step is the sum over its
terms of coefficient x (sum of totals / sum of counts), the sums taken over the whole step, so cutting a step into
micro-batches changes nothing but memory, and which elements dropout takes: its generator is drawn from batch by batch.

Loss and gradient norm of each step are looked at before its update is taken, which makes a GPU wait for the CPU once a
step, for as long as it takes to launch the update; that the next step's batches are made meanwhile, where
`reads_ahead` says so, leaves nothing else to wait for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from unmask.batch import Batch
from unmask.training.best import Best
from unmask.training.divergence import WINDOW, BadStep, find_fault
from unmask.training.optimizer import Schedule, clip_gradients, share_done
from unmask.training.settings import TrainSettings


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
        position: the loader's next position; as JSON where it has just been restored.
        newest: what the newest step did.
        totals: summed loss terms since `take_means` was last called.
        counts: the targets they were summed over.
        logged_tokens, logged_seconds: `tokens` and `seconds` when it was called.
        recent_losses: of the last steps taken, the newest last; what a spike is told by.
        roll_backs: how often the run has gone back to a checkpoint.
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
        """The mean of each loss term since the last call."""
        means = {name: total / max(1, self.counts[name]) for name, total in self.totals.items()}
        self.totals, self.counts = {}, {}
        self.logged_tokens, self.logged_seconds = self.tokens, self.seconds
        return means

    def roll_back_to(self, earlier: TrainState) -> None:
        """Becomes an earlier state, but for what has been read since and the time that it took; counted."""
        kept = {"position": self.position, "epochs": self.epochs, "seconds": self.seconds}
        kept["roll_backs"] = self.roll_backs + 1
        kept["logged_seconds"] = earlier.logged_seconds + self.seconds - earlier.seconds  # what was lost has no rate
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
    on_bad_step: Callable[[TrainState, BadStep], None] | None = None,
    reads_ahead: bool = False,
) -> None:
    """Trains until the budget is spent, or the hook has noted in `state.best` that nothing gets better.

    Args:
        module: takes a prepared batch, returns its `LossTerm`s.
        steps: the batches of each step, from `state.position` on. When they are asked for a step's batches, `state` is
            that before the step.
        prepare: draws masks and labels; called once for each batch.
        counts: targets in a prepared batch of each loss term that the module may return for it.
        optimizer: its groups' rates at this point are the peak rates.
        schedule: the factor on the peak rates.
        settings: the budget and the clipping.
        state: where the run stands; brought up to date after each step.
        device: where the module is.
        autocast: a context in which the forward pass runs.
        on_step: called after each step: logs, evaluates, saves; stops the run by raising.
        before_step: called before each step: may begin a stage of the schedule and change what is trained. The first
            time after a resume, it finds a module whose weights alone have been restored.
        on_bad_step: called in place of an update that `find_fault` finds a fault with; raises, or puts module,
            optimizer, schedule and `state` back to where the next step is to begin. None: no fault is looked for.
        reads_ahead: True makes the next step's batches before this step's figures are waited for, which keeps a GPU
            busy; a budget in minutes, or a run that ends early, may then ask for one step too many.
    """
    peaks = [group["initial_lr"] if "initial_lr" in group else group["lr"] for group in optimizer.param_groups]
    for group, peak in zip(optimizer.param_groups, peaks, strict=True):
        group["initial_lr"] = peak
    set_training_mode(module)
    prepared = _prepare_steps(steps, prepare)
    upcoming: _PreparedStep | None = None
    while not state.is_over(settings):
        began = time.monotonic()
        if before_step is not None:
            before_step(state, schedule)
        step, upcoming = upcoming or next(prepared, None), None
        if step is None:
            break
        factor = schedule.factor(state.done, settings)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * factor
        step_counts = _sum_counts(counts(batch) for batch in step.batches)
        totals, coefficients = _accumulate_gradients(module, step.batches, step_counts, device, autocast)
        step_counts = {name: step_counts[name] for name in totals}
        norm = clip_gradients(module, settings.max_grad_norm)
        tokens = sum(batch.num_tokens for batch in step.batches)
        state.step += 1
        state.tokens += tokens
        state.epochs = step.epochs
        state.position = step.after
        if reads_ahead and not state.is_over(settings):
            upcoming = next(prepared, None)
        *sums, gradient_norm = torch.stack([*totals.values(), norm.double()]).tolist()  # waits for the device
        means = {name: total / max(1, step_counts[name]) for name, total in zip(totals, sums, strict=True)}
        loss = sum(coefficients[name] * mean for name, mean in means.items())
        fault = None
        if on_bad_step is not None:
            fault = find_fault(state.step, loss, gradient_norm, state.recent_losses, settings.spike_factor)
        if fault is None:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        state.seconds += time.monotonic() - began
        rate = peaks[0] * factor
        if fault is not None and on_bad_step is not None:
            recent = tuple(state.recent_losses)
            on_bad_step(
                state,
                BadStep(state.step, fault, step.batches, loss, means, step_counts, rate, gradient_norm, recent),
            )
            continue
        for name, total in zip(totals, sums, strict=True):
            state.totals[name] = state.totals.get(name, 0.0) + total
            state.counts[name] = state.counts.get(name, 0) + step_counts[name]
        state.recent_losses = [*state.recent_losses, loss][-WINDOW:]
        on_step(state, StepResult(rate, gradient_norm, tokens, coefficients))


@dataclass(frozen=True)
class _PreparedStep:
    """A step's batches with masks and labels; the rest as in `StepBatches`."""

    batches: list[Batch]
    after: Any
    epochs: float


def _prepare_steps(steps: Iterable[StepBatches], prepare: Callable[[Batch], Batch]) -> Iterator[_PreparedStep]:
    for step in steps:
        yield _PreparedStep([prepare(batch) for batch in step.batches], step.after, step.epochs)


def _accumulate_gradients(
    module: nn.Module,
    batches: list[Batch],
    step_counts: dict[str, int],
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The gradient of a step's loss, from its micro-batches one after another.

    Returns:
        Of each loss term, its total over the step as () float64 on the device, and its coefficient.
    """
    totals: dict[str, Tensor] = {}
    coefficients: dict[str, float] = {}
    for batch in batches:
        with autocast():
            terms = module(batch.to(device))
        loss = sum(term.coefficient * term.total / max(1, step_counts[term.name]) for term in terms)
        assert isinstance(loss, Tensor)
        loss.backward()  # type: ignore[no-untyped-call]
        for term in terms:
            total = term.total.detach().double()
            totals[term.name] = totals[term.name] + total if term.name in totals else total
            coefficients[term.name] = term.coefficient
    return totals, coefficients


def set_training_mode(module: nn.Module) -> None:
    """Training mode, but for what is frozen: that stays in eval mode, so that it is one fixed function of its input.

    Its dropout is off (in `transformers`, frozen layers keep theirs): a frozen encoder gives the same features in every
    epoch, those that `unmask features` writes.
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
