"""Our side of the training parts of `run.py`: steps taken by the loop of `unmask pretrain`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Any

from gpu.cases import (
    WARM_STEPS,
    Case,
    Taken,
    build_module,
    encoder_sizes,
    live_loader,
    make_batches,
    make_objective,
    timed_rounds,
)
from gpu.work import peak_memory, step_flops, wait

if TYPE_CHECKING:
    from unmask.batch import Batch, StepBatches
    from unmask.training.state import StepResult, TrainState


LONGEST_OF_GLUE = 128
LOG_EVERY = 50
"""Steps that a run takes before it waits for the device."""


class OurSteps:
    """The one place where the benchmark uses the loop: a run without logging, evaluations and checkpoints.

    Attributes:
        notes: log messages about how it computes.
        loss, gradient_norm: of the steps last taken, the mean loss and the newest norm.
    """

    def __init__(self, case: Case, objective: Any) -> None:
        from unmask.training.device import choose_compute
        from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer, build_optimizer
        from unmask.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
        from unmask.training.state import TrainState
        from unmask.training.stepping.choosing import choose_stepper
        from unmask.training.stepping.eager import EagerStepper

        self.objective = objective
        self.compute = choose_compute(case.device, "bf16")
        self.device = self.compute.device
        self.module = self.compute.place(build_module(case)).train()
        optimizer = build_optimizer(self.module, OptimizerSettings())
        self.optimizer = ScheduledOptimizer(optimizer, Schedule(ScheduleSettings(name="constant")))
        self.state = TrainState()
        settings = TrainSettings(steps=1)
        longest = LONGEST_OF_GLUE if case.rows == "glue" else case.length
        eager = EagerStepper(self.module, optimizer, settings.max_grad_norm, self.compute)
        self.stepper, how = choose_stepper(eager, settings, longest, compiles=True)
        self.notes = (self.compute.describe(), how)
        self.loss = self.gradient_norm = 0.0

    def take(self, steps: Iterator[StepBatches[Any]], number: int, prepare: Callable[[Batch], Batch]) -> int:
        """Takes a number of steps, waits for the device once, and returns their tokens."""
        from unmask.training.loop import Hooks, train
        from unmask.training.settings import TrainSettings
        from unmask.training.steps import Learner

        tokens_before = self.state.tokens
        train(
            Learner(self.module, self.objective.counts, prepare),
            steps,
            self.optimizer,
            self.stepper,
            TrainSettings(steps=self.state.step + number),
            self.state,
            Hooks(self._note, is_due=_at_the_end_only),
        )
        wait(self.device)
        return self.state.tokens - tokens_before

    @property
    def num_graphs(self) -> int:
        """How many shapes of batches have been captured; 0 if steps are computed as they come."""
        return getattr(self.stepper, "num_graphs", 0)

    def _note(self, state: TrainState, result: StepResult) -> None:
        means = state.take_means()
        self.loss = sum(result.coefficients[name] * mean for name, mean in means.items())
        self.gradient_norm = result.gradient_norm


def _at_the_end_only(state: TrainState) -> bool:
    return False


def _as_it_is(batch: Batch) -> Batch:
    return batch


def train_ours(case: Case, measures_loader: bool = False) -> Taken:
    """Steps on batches masked beforehand and, if asked, on batches that the loader makes as they are needed."""
    from unmask.batch import StepBatches
    from unmask.packing.loader import Position

    objective = make_objective(case)
    prepared = [objective.prepare(batch) for batch in make_batches(case)]
    ours = OurSteps(case, objective)
    losses = {"fp32": plain_loss(ours, prepared[0])} if not case.dropout_prob else {}
    steps = (StepBatches([batch], Position(), epochs=0.0) for batch in cycle(prepared))
    ours.take(steps, 1, _as_it_is)
    if losses:
        losses["bf16"] = ours.loss
    norm = ours.gradient_norm
    ours.take(steps, WARM_STEPS + len(prepared), _as_it_is)
    compiled, captured = graphs_compiled(), ours.num_graphs
    seconds = timed_rounds(case, lambda number: ours.take(steps, number, _as_it_is))
    tokens = sum(batch.num_tokens for batch in prepared) / len(prepared)
    loader_share = None
    if measures_loader:
        loader_share = share_of_loader(case, ours, sorted(seconds)[len(seconds) // 2] / tokens)
    generator = getattr(ours.module, "generator", None)
    of_generator = None if generator is None else generator.settings
    flops = [step_flops(case.objective, encoder_sizes(case), of_generator, batch) for batch in prepared]
    return Taken(
        seconds,
        tokens,
        flops=sum(flops) / len(flops),
        memory=None if losses else peak_memory(ours.device),
        losses=losses,
        gradient_norm=norm if losses else None,
        recompilations=graphs_compiled() - compiled,
        new_captures=ours.num_graphs - captured,
        loader_share=loader_share,
        notes=ours.notes,
    )


def first_step_ours(case: Case, started: float) -> float:
    """Seconds from the start of the process to the end of its first step, on a batch from the loader."""
    objective = make_objective(case)
    OurSteps(case, objective).take(live_loader(case).steps(), 1, objective.prepare)
    return time.time() - started


def plain_loss(ours: OurSteps, batch: Batch) -> float:
    """The loss of the plain module, in fp32, without dropout."""
    import torch

    counts = ours.objective.counts(batch)
    ours.module.eval()
    with torch.no_grad():
        terms = ours.module(batch.to(ours.device))
    ours.module.train()
    return float(sum(term.coefficient * term.total / max(1, counts[term.name]) for term in terms))


def share_of_loader(case: Case, ours: OurSteps, seconds_a_token: float) -> float:
    """The share of a step that is lost when batches come from the loader as they are needed, not from a list.

    Args:
        seconds_a_token: seconds per token with batches from a list.
    """
    steps, prepare = live_loader(case).steps(), ours.objective.prepare
    ours.take(steps, 2 * WARM_STEPS, prepare)
    at_once = max(8, min(LOG_EVERY, round(case.seconds / (seconds_a_token * case.tokens))))
    tokens, began = 0, time.perf_counter()
    while time.perf_counter() - began < case.seconds:
        tokens += ours.take(steps, at_once, prepare)
    return 1 - seconds_a_token / ((time.perf_counter() - began) / tokens)


def graphs_compiled() -> int:
    """How many graphs `torch.compile` has made in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
