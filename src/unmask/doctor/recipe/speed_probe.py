"""A short measured probe: a few real optimizer steps of a recipe, timed after warm-up.

Warm-up consists of steps with growing numbers of sequences, in which threads start, kernels are chosen and the
optimizer's moments are created.

The loop, the objective, the optimizer and the batches are the run's own. If a whole step would take too long, fewer
sequences are used; the time of a step is then put together from theirs and the optimizer's, which no batch changes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import nn

from unmask.batch import Batch
from unmask.objectives.base import Objective
from unmask.packing.loader import LoadedStep, Position
from unmask.recipe.tree import PretrainRecipe
from unmask.training.device import Compute
from unmask.training.eager import EagerStepper
from unmask.training.loop import Hooks, train
from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer, build_optimizer
from unmask.training.state import StepResult, TrainState
from unmask.training.steps import Learner

FEWEST_STEPS = 4
"""The number of measured steps that there should be time for."""
MOST_STEPS = 200


@dataclass(frozen=True)
class SpeedProbe:
    """What was measured.

    Args:
        sequences: in a step of the probe.
        tokens: in a step of the probe, the median.
        steps_s: the seconds of each measured step, the optimizer included.
        optimizer_s: the median seconds of the optimizer alone.
    """

    sequences: int
    tokens: float
    steps_s: tuple[float, ...]
    optimizer_s: float

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)

    @property
    def spread(self) -> float:
        """The range of the steps' times, the slowest and fastest tenth left out, as a share of the median."""
        ordered = sorted(self.steps_s)
        tenth = len(ordered) // 10
        return (ordered[-1 - tenth] - ordered[tenth]) / self.step_s

    def seconds_for(self, tokens: float) -> float:
        """How long a step over `tokens` tokens takes."""
        return self.optimizer_s + (self.step_s - self.optimizer_s) * tokens / self.tokens


def probe_speed(
    settings: PretrainRecipe,
    module: nn.Module,
    objective: Objective,
    batches: Callable[[int], Iterator[Batch]],
    compute: Compute,
    *,
    limit_s: float,
    most_sequences: int,
    advance: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> SpeedProbe:
    """Trains `module` for a moment.

    Args:
        module: on the device; its weights change.
        batches: gives endless unprepared batches of a given number of sequences.
        limit_s: about how long the probe may take; two steps of two sequences are always finished.
        most_sequences: in a micro-batch: as in the recipe, or fewer if memory has no room for them.
        advance: called after each step.
        clock: monotonic seconds.
    """
    began = clock()
    timer = _Timer(build_optimizer(module, settings.optimizer), compute, advance, clock)
    sequences = min(most_sequences, 2)
    timer.run(settings, module, objective, batches(sequences), 1)
    if timer.steps_s[-1] < limit_s / 4:
        timer.run(settings, module, objective, batches(sequences), 1)
    while sequences < most_sequences:  # as many as leave time for some steps, one warm-up step per size
        left_s = limit_s - (clock() - began)
        fitting = int(sequences * left_s / ((FEWEST_STEPS + 1) * timer.steps_s[-1]))
        if fitting <= sequences * 3 // 2:
            break
        sequences = min(most_sequences, fitting, sequences * 8)
        timer.run(settings, module, objective, batches(sequences), 1)
    timer.forget()
    timer.run(settings, module, objective, batches(sequences), MOST_STEPS, until=began + limit_s)
    return SpeedProbe(
        sequences, statistics.median(timer.tokens), tuple(timer.steps_s), statistics.median(timer.optimizer_s)
    )


@dataclass
class _Timer:
    """Times whole steps, and the optimizer's part of them."""

    optimizer: torch.optim.Optimizer
    compute: Compute
    advance: Callable[[], None]
    clock: Callable[[], float]
    steps_s: list[float] = field(default_factory=list)
    optimizer_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer.register_step_pre_hook(self._begin)
        self.optimizer.register_step_post_hook(self._end)

    def forget(self) -> None:
        self.steps_s, self.optimizer_s, self.tokens = [], [], []

    def run(
        self,
        settings: PretrainRecipe,
        module: nn.Module,
        objective: Objective,
        batches: Iterator[Batch],
        num_steps: int,
        until: float = float("inf"),
    ) -> None:
        """Trains for `num_steps` steps, or until a time; at least one step.

        The first batch is made before the clock starts, since a whole block of documents may be planned for it.
        """
        batches = chain([next(batches)], batches)
        self._step_began = self._now()
        train(
            Learner(module, objective.counts, objective.prepare),
            self._steps(batches, num_steps, until),
            ScheduledOptimizer(self.optimizer, Schedule(settings.schedule)),
            EagerStepper(module, self.optimizer, settings.train.max_grad_norm, self.compute),
            settings.train.model_copy(update={"steps": None, "tokens": None, "epochs": None, "minutes": 1e9}),
            TrainState(),
            Hooks(self._on_step),
        )

    def _steps(self, batches: Iterator[Batch], num_steps: int, until: float) -> Iterator[LoadedStep]:
        for _ in range(num_steps):
            yield LoadedStep([next(batches)], Position(), 0.0)
            if self.clock() >= until:
                return

    def _on_step(self, state: TrainState, result: StepResult) -> None:
        now = self._now()
        self.steps_s.append(now - self._step_began)
        self.tokens.append(result.tokens)
        self.advance()
        self._step_began = now

    def _begin(self, *_: Any) -> None:
        self._optimizer_began = self._now()

    def _end(self, *_: Any) -> None:
        self.optimizer_s.append(self._now() - self._optimizer_began)

    def _now(self) -> float:
        if self.compute.device.type == "cuda":
            torch.cuda.synchronize(self.compute.device)
        return self.clock()
