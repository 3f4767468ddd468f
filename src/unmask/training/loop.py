"""The one training loop, for pre-training and fine-tuning alike.

It is independent of objectives and tasks: it gets a module whose forward pass returns loss terms, the batches of each
step, a function that counts targets, an optimizer with its schedule, and hooks. The loss of a step is the sum over its
terms of coefficient x (sum of totals / sum of counts), the sums taken over the whole step, so cutting a step into
micro-batches changes nothing but memory use and which elements dropout zeroes: dropout draws batch by batch.

A `Stepper` computes the steps: it takes the update of each only if nothing is wrong with its loss and gradient norm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from unmask.batch import StepBatches
from unmask.training.distributed import ALONE, Ranks
from unmask.training.divergence import BadStep, divergence_fault, terms_with_targets
from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer
from unmask.training.settings import TrainSettings
from unmask.training.state import StepResult, TrainState
from unmask.training.stepping.protocol import StepFigures, Stepper
from unmask.training.steps import Learner, NumberedStep, PreparedStep, PreparedSteps, set_training_mode


def raise_out_of_memory(state: TrainState, step: PreparedStep, message: str) -> NoReturn:
    """Raises the error anew."""
    raise torch.OutOfMemoryError(message)


@dataclass(frozen=True)
class Hooks:
    """What a run does around its steps.

    Attributes:
        on_step: called after every step, or, where the stepper runs ahead, after those for which `is_due`: logs,
            evaluates, saves; stops the run by raising.
        before_step: called before each step: may begin a stage of the schedule and change what is trained. At the first
            call after a resume, of the module only weights and buffers have been restored, not what is frozen.
        is_due: whether `on_step` has anything to do after the step just launched, where the stepper runs ahead.
        on_bad_step: called in place of an update in which `divergence_fault` finds a fault; raises, or resets module,
            optimizer, schedule and state to where the next step is to begin. It returns the steps from `state.position`
            on. Without a function faults are not looked for, which only steps that are not captured allow.
        on_out_of_memory: called when a step does not fit into the device's memory, with the step and the error's
            message; raises, or returns the batches from `state.position` on again, in smaller micro-batches.
    """

    on_step: Callable[[TrainState, StepResult], None]
    before_step: Callable[[TrainState, Schedule], None] = lambda state, schedule: None
    is_due: Callable[[TrainState], bool] = lambda state: True
    on_bad_step: Callable[[TrainState, BadStep], Iterable[StepBatches[Any]]] | None = None
    on_out_of_memory: Callable[[TrainState, PreparedStep, str], Iterable[StepBatches[Any]]] = raise_out_of_memory


def train(
    learner: Learner,
    steps: Iterable[StepBatches[Any]],
    optimizer: ScheduledOptimizer,
    stepper: Stepper,
    settings: TrainSettings,
    state: TrainState,
    hooks: Hooks,
    ranks: Ranks = ALONE,
) -> None:
    """Trains until the budget is spent, or a hook has noted in `state.best` that evaluations get no better.

    Args:
        steps: the batches of each step, from `state.position` on. When a step's batches are requested, `state` is still
            as before that step; those of the next step are made ahead where the stepper leaves time for it, so that a
            budget in minutes, or a run that ends early, may make the batches of one step too many.
        state: the position of the run; updated after each step.
        ranks: the processes that take the steps together; the batches are this one's.
    """
    set_training_mode(learner.module)
    stepper.restart(state.recent_losses)
    prepared_steps = PreparedSteps(steps, learner, ranks)
    steps_under_way = StepsUnderWay(
        stepper, state, settings, hooks.is_due, looks_for_faults=hooks.on_bad_step is not None
    )
    while not state.is_over(settings):
        began = time.monotonic()
        hooks.before_step(state, optimizer.schedule)
        prepared = next(prepared_steps, None)
        if prepared is None:
            break
        step = state.next_step(prepared, optimizer.set_rate(state.done, settings))
        outcome = steps_under_way.take(step, prepared_steps)  # forward, backward, check, update
        state.seconds += time.monotonic() - began
        match outcome:
            case StepResult():
                hooks.on_step(state, outcome)
            case BadStep():
                assert hooks.on_bad_step is not None, "faults are looked for"
                prepared_steps = PreparedSteps(hooks.on_bad_step(state, outcome), learner, ranks)
                stepper.restart(state.recent_losses)
            case OutOfMemory():
                smaller = hooks.on_out_of_memory(state, prepared, outcome.message)
                prepared_steps = PreparedSteps(smaller, learner, ranks)
            case None:
                pass  # a GPU replays steps, and several are read at once


@dataclass(frozen=True)
class OutOfMemory:
    """A step did not fit into the device's memory. (The error's traceback would keep what the step has allocated.)"""

    message: str


@dataclass
class StepsUnderWay:
    """Launches steps, and takes their updates up to the first fault.

    A GPU that replays captured steps runs ahead of the loop: several are launched, then read together. Any other
    stepper has one at a time.

    Args:
        state: of the run; moved to the end of each step that is launched, and back to that of a bad one. The losses of
            steps that are taken are added to it.
        is_due: whether the steps are read although the stepper could run ahead.
        looks_for_faults: whether a step in which `divergence_fault` finds one is left out; else all are taken.
    """

    stepper: Stepper
    state: TrainState
    settings: TrainSettings
    is_due: Callable[[TrainState], bool]
    looks_for_faults: bool
    _launched: list[NumberedStep] = field(default_factory=list)

    def take(self, step: NumberedStep, following: PreparedSteps) -> StepResult | BadStep | OutOfMemory | None:
        """Forward and backward passes of a step, then its figures, and its update if nothing is wrong with them.

        Args:
            following: the steps after it, of which the next is prepared while the device computes.

        Returns:
            What came of the step; of several that were read together, of the first bad one, or the newest. Those after
            a bad one have changed nothing. None: it is under way, to be read with later ones.
        """
        stepper, state, settings = self.stepper, self.state, self.settings
        try:
            stepper.launch(step.prepared.batches, step.prepared.counts, step.number)
        except torch.OutOfMemoryError as error:
            return OutOfMemory(str(error))
        self._launched.append(step)
        state.move_to_end_of(step)
        is_last = state.is_over(settings) or (stepper.prepares_ahead and not following.make_next())
        if stepper.runs_ahead and not is_last and not self.is_due(state):
            return None
        return self._read()

    def _read(self) -> StepResult | BadStep:
        """Waits for what has been launched, see `Stepper.read`."""
        faults: list[str] = []

        def accept(place: int, figures: StepFigures) -> bool:
            step = self._launched[place]
            counts, recent = step.prepared.counts, self._recent_losses(step)
            loss, norm, factor = figures.loss(counts), figures.gradient_norm, self.settings.spike_factor
            if self.looks_for_faults and (fault := divergence_fault(step.number, loss, norm, recent, factor)):
                faults.append(fault)
                return False
            self.state.add_losses(figures.sums, counts, loss)
            return True

        read = self.stepper.read(accept)
        step, figures = self._launched[len(read) - 1], read[-1]
        self._launched.clear()
        if faults:
            self.state.move_to_end_of(step)
            return BadStep(step, figures, faults[0], tuple(self._recent_losses(step)))
        return StepResult(step.learning_rate, figures.gradient_norm, step.prepared.num_tokens, figures.coefficients)

    def _recent_losses(self, step: NumberedStep) -> list[float]:
        """Those that the loss of a step is judged against."""
        return self.state.recent_losses.get(terms_with_targets(step.prepared.counts), [])
