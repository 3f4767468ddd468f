"""How far a run is, what its newest step did, and what the log says of that at the beginning and the end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from unmask.chance import key
from unmask.training.divergence import WINDOW, terms_with_targets
from unmask.training.run.best import Best
from unmask.training.settings import ScheduleSettings, TrainSettings, warmup_shortfall
from unmask.training.steps import NumberedStep, PreparedStep

logger = logging.getLogger("unmask")


@dataclass(frozen=True)
class StepResult:
    """What the hook gets about a step.

    Attributes:
        gradient_norm: before clipping.
        coefficients: of each loss term.
    """

    learning_rate: float
    gradient_norm: float
    tokens: int
    coefficients: dict[str, float]


@dataclass
class TrainState:
    """How far a run is; with weights, optimizer and generators, all that a checkpoint needs.

    Attributes:
        step: optimizer updates done; between launching a step and reading its figures, steps launched.
        examples_hash: of all examples shown, with their masks, in the order of the steps: equal in all runs that have
            seen the same, on any number of processes.
        epochs: passes over the data done.
        seconds: time spent training, evaluations and stops not counted.
        position: the loader's next position; JSON if it has just been restored.
        newest: what the newest step did.
        totals: summed loss terms since `take_means` was last called.
        counts: the targets they were summed over.
        logged_tokens, logged_seconds: `tokens` and `seconds` when it was called.
        recent_losses: of the last steps taken, by `terms_with_targets`, the newest last; spikes are judged against
            them.
        roll_backs: how often the run has gone back to a checkpoint.
        micro_batch_tokens: the most tokens of a micro-batch, every sequence counted as long as the longest; None unless
            the memory has limited it, see `unmask.training.memory`.
        evaluation: the newest held-out figures, by name.
        evaluated_step: the step they were measured after; None before the first time.
        best: the best evaluation so far, where the run may end early; None before the first one.
    """

    step: int = 0
    tokens: int = 0
    examples_hash: int = 0
    epochs: float = 0.0
    seconds: float = 0.0
    position: Any = None
    newest: StepResult | None = None
    totals: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    logged_tokens: int = 0
    logged_seconds: float = 0.0
    recent_losses: dict[str, list[float]] = field(default_factory=dict)
    roll_backs: int = 0
    micro_batch_tokens: int | None = None
    evaluation: dict[str, float] = field(default_factory=dict)
    evaluated_step: int | None = None
    best: Best | None = None

    @property
    def done(self) -> dict[str, float]:
        """How much is done, by the names of the budgets."""
        return {"steps": self.step, "tokens": self.tokens, "epochs": self.epochs, "minutes": self.seconds / 60}

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second since `take_means` was last called."""
        return (self.tokens - self.logged_tokens) / max(1e-9, self.seconds - self.logged_seconds)

    def progress(self, settings: TrainSettings) -> float:
        """The share of the budget that is done, from 0 to 1."""
        return settings.share_done(self.done)

    def has_lost_patience(self, settings: TrainSettings) -> bool:
        """True where `patience` evaluations have gone by without a better one."""
        return (
            settings.patience is not None and self.best is not None and self.best.evaluations_since >= settings.patience
        )

    def is_over(self, settings: TrainSettings) -> bool:
        """True where the budget is spent, or patience is lost."""
        return self.has_lost_patience(settings) or self.progress(settings) >= 1

    def next_step(self, prepared: PreparedStep, learning_rate: float) -> NumberedStep:
        """The step after those done."""
        examples_hash = key(self.examples_hash, prepared.fingerprint) % 2**48
        tokens = self.tokens + prepared.num_tokens
        return NumberedStep(prepared, self.step + 1, tokens, examples_hash, self.examples_hash, learning_rate)

    def move_to_end_of(self, step: NumberedStep) -> None:
        """Moves to the end of a step; back to it where later ones have not been taken."""
        self.step, self.tokens, self.examples_hash = step.number, step.tokens, step.examples_hash
        self.epochs, self.position = step.prepared.epochs, step.prepared.after

    def add_losses(self, sums: Mapping[str, float], counts: Mapping[str, int], loss: float) -> None:
        """Adds what a step that has been taken lost: of each term the total and its targets, and the loss of all."""
        for name, total in sums.items():
            self.totals[name] = self.totals.get(name, 0.0) + total
            self.counts[name] = self.counts.get(name, 0) + counts[name]
        terms = terms_with_targets(counts)
        recent = [*self.recent_losses.get(terms, []), loss][-WINDOW:]
        self.recent_losses = {**self.recent_losses, terms: recent}

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
        kept["examples_hash"] = self.examples_hash
        kept["roll_backs"] = self.roll_backs + 1
        kept["micro_batch_tokens"] = self.micro_batch_tokens
        # Lost steps do not count in the rate.
        kept["logged_seconds"] = earlier.logged_seconds + self.seconds - earlier.seconds
        for each in fields(self):
            setattr(self, each.name, kept.get(each.name, getattr(earlier, each.name)))


def log_resumed(state: TrainState, settings: TrainSettings, *, in_parts: bool) -> None:
    """Logs where a run continues, or that there is nothing left of it; `in_parts` as in
    `unmask.training.session.run_session`."""
    if state.progress(settings) >= 1:
        budget, amount = settings.budget
        done = f"the run has taken its {state.step:,} steps, all of train.{budget}={amount}"
        of_model = "a new run continues from its model with init_from="
        then = of_model if in_parts else f"a larger train.{budget} continues from there"
        logger.info("nothing is left to train: %s; %s", done, then)
    elif state.is_over(settings):
        logger.info("nothing is left to train: the run has ended at step %s by train.patience", f"{state.step:,}")
    else:
        logger.info("resumed from step %s", f"{state.step:,}")


def log_limits(settings: TrainSettings, schedule: ScheduleSettings, *, is_resumed: bool) -> None:
    """Logs beforehand what may differ from what one expects of the recipe."""
    if settings.minutes is not None:
        level, which = (logging.WARNING, "a resumed run") if is_resumed else (logging.INFO, "a run")
        why = "its number of steps and their rates follow from the time that they take"
        where = "each step's rate is in metrics.jsonl"
        logger.log(level, "%s under train.minutes is not repeatable bit for bit: %s; %s", which, why, where)
    if settings.steps is not None and (shortfall := warmup_shortfall(schedule, settings.steps)) is not None:
        logger.warning(shortfall)


def log_shortfalls(state: TrainState, settings: TrainSettings, schedule: ScheduleSettings) -> None:
    """Logs afterwards what has not gone as the recipe says."""
    if state.step == 1 and (schedule.warmup_steps or schedule.warmup_ratio):
        logger.warning("the run took one step, whose learning rate a warm-up begins at 0: nothing was learnt")
    elif settings.steps is None and state.step < (schedule.warmup_steps or 0):
        taken = f"the run took {state.step:,} steps and schedule.warmup_steps is {schedule.warmup_steps:,}"
        logger.warning("%s: its learning rate was never reached", taken)
    if state.roll_backs:
        times = "once" if state.roll_backs == 1 else f"{state.roll_backs} times"
        logger.warning("the run has rolled back %s; what it left out is in divergence/", times)
