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
from dataclasses import dataclass

import torch

from unmask.chance import key
from unmask.training.distributed import ALONE, Ranks
from unmask.training.divergence import BadStep, divergence_fault
from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer
from unmask.training.settings import TrainSettings
from unmask.training.state import StepResult, TrainState
from unmask.training.stepper import StepFigures, Stepper
from unmask.training.steps import Learner, NumberedStep, PreparedStep, PreparedSteps, StepBatches, set_training_mode


@dataclass(frozen=True)
class Hooks:
    """What a run does around its steps.

    Attributes:
        on_step: called after each step that is due: logs, evaluates, saves; stops the run by raising.
        before_step: called before each step: may begin a stage of the schedule and change what is trained. At the first
            call after a resume, only the weights of the module have been restored.
        is_due: whether `on_step` has anything to do after the step just launched, where the stepper runs ahead.
        on_bad_step: called in place of an update in which `divergence_fault` finds a fault; raises, or resets module,
            optimizer, schedule and state to where the next step is to begin. It returns the batches from
            `state.position` on again if they depend on what it has reset; None if they are those that come next
            anyway. No function: faults are not looked for, which only steps that are not captured allow.
        on_out_of_memory: called when a step does not fit into the device's memory, with the step and the error's
            message; raises, or returns the batches from `state.position` on again, in smaller micro-batches. None: the
            error is raised.
    """

    on_step: Callable[[TrainState, StepResult], None]
    before_step: Callable[[TrainState, Schedule], None] = lambda state, schedule: None
    is_due: Callable[[TrainState], bool] = lambda state: True
    on_bad_step: Callable[[TrainState, BadStep], Iterable[StepBatches] | None] | None = None
    on_out_of_memory: Callable[[TrainState, PreparedStep, str], Iterable[StepBatches]] | None = None


def train(
    learner: Learner,
    steps: Iterable[StepBatches],
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
            budget in minutes, or a run that ends early, may read one step too many.
        state: the position of the run; updated after each step.
        ranks: the processes that take the steps together; the batches are this one's.
    """

    faults: list[str] = []  # of the newest step, if it is not taken

    def may_take(place: int, figures: StepFigures) -> bool:
        """Looks for what is wrong with a step; where nothing is, its losses are added to the state."""
        step, counts = launched[place], launched[place].prepared.counts
        loss, norm, fault = figures.loss(counts), figures.gradient_norm, None
        if hooks.on_bad_step is not None:
            fault = divergence_fault(step.number, loss, norm, state.recent_losses, settings.spike_factor)
        if fault is None:
            state.add_losses(figures.sums, counts, loss)
        else:
            faults.append(fault)
        return fault is None

    set_training_mode(learner.module)
    stepper.restart(state.recent_losses)
    prepared = PreparedSteps(steps, learner, ranks)
    launched: list[NumberedStep] = []  # more than one only where the stepper runs ahead
    while not state.is_over(settings):
        began = time.monotonic()
        hooks.before_step(state, optimizer.schedule)
        batches = next(prepared, None)
        if batches is None:
            break
        rate = optimizer.set_rate(state.done, settings)
        too_large = _launch(stepper, batches, state.step + 1, raises=hooks.on_out_of_memory is None)
        if too_large is not None and hooks.on_out_of_memory is not None:
            prepared = PreparedSteps(hooks.on_out_of_memory(state, batches, too_large), learner, ranks)
            continue
        examples = key(state.examples, batches.fingerprint) % 2**48
        step = NumberedStep(batches, state.step + 1, state.tokens + batches.num_tokens, examples, rate)
        state.stand_after(step)
        launched.append(step)
        is_last = state.is_over(settings) or (stepper.prepares_ahead and not prepared.make_next())
        if stepper.runs_ahead and not is_last and not hooks.is_due(state):
            state.seconds += time.monotonic() - began
            continue  # several steps are read at once, where the stepper lets the device run ahead
        read = stepper.read(may_take)  # takes the updates up to the first fault
        figures = read[-1]
        step, *not_begun = launched[len(read) - 1 :]
        launched = []
        state.seconds += time.monotonic() - began
        if faults and hooks.on_bad_step is not None:
            state.stand_after(step)
            prepared.put_back(each.prepared for each in not_begun)  # a device that runs ahead has not begun them
            made_anew = hooks.on_bad_step(state, BadStep(step, figures, faults.pop(), tuple(state.recent_losses)))
            if made_anew is not None:
                prepared = PreparedSteps(made_anew, learner, ranks)
            stepper.restart(state.recent_losses)
            continue
        hooks.on_step(state, StepResult(rate, figures.gradient_norm, batches.num_tokens, figures.coefficients))


def _launch(stepper: Stepper, step: PreparedStep, number: int, *, raises: bool) -> str | None:
    """The forward and backward passes of a step; returns the error's message if it does not fit into the memory.

    The error itself is dropped: its traceback keeps what the step has allocated.
    """
    try:
        stepper.launch(step.batches, step.counts, number)
    except torch.OutOfMemoryError as error:
        if raises:
            raise
        return str(error)
    return None
