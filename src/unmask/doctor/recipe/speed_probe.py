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
from dataclasses import dataclass
from itertools import chain

import torch

from unmask.batch import Batch, StepBatches
from unmask.doctor.recipe.estimates import each_stage
from unmask.doctor.recipe.material import Material
from unmask.io.progress import Progress
from unmask.models.trained import TrainedModule
from unmask.packing.loader import Position
from unmask.training.device import Compute, keep_freed_memory
from unmask.training.loop import Hooks, train
from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer, build_optimizer
from unmask.training.recompute import recompute_blocks
from unmask.training.state import StepResult, TrainState
from unmask.training.stepping.eager import EagerStepper
from unmask.training.steps import Learner

FEWEST_STEPS = 4
"""The number of measured steps that there should be time for."""
MOST_STEPS = 200

MEMORY_FOR_PROBE = 0.6
"""Share of the free memory that a probe may take."""


@dataclass(frozen=True)
class SpeedProbe:
    """What was measured."""

    sequences: int  # in a step of the probe
    tokens: float  # in a step of the probe, the median
    steps_s: tuple[float, ...]  # the seconds of each measured step, the optimizer included
    optimizer_s: float  # the median seconds of the optimizer alone

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)

    @property
    def spread(self) -> float:
        """The range of the steps' times, the slowest and fastest tenth left out, as a share of the median."""
        ordered = sorted(self.steps_s)
        tenth = len(ordered) // 10
        return (ordered[-1 - tenth] - ordered[tenth]) / self.step_s

    @property
    def steadiness(self) -> str:
        """How far the steps' times are apart, in words."""
        if len(self.steps_s) == 1:
            return "one step could be measured, so its spread is not known"
        return f"the middle four fifths of {len(self.steps_s)} measured steps differ by {self.spread:.0%} of the median"

    def seconds_for(self, tokens: float) -> float:
        """How long a step over `tokens` tokens takes."""
        return self.optimizer_s + (self.step_s - self.optimizer_s) * tokens / self.tokens


def measure_speed(
    material: Material,
    compute: Compute,
    limit_s: float,
    most_sequences: int,
    clock: Callable[[], float] = time.perf_counter,
) -> SpeedProbe:
    """Trains what a recipe trains for a moment, and shows progress; see `measure_module`."""
    module = compute.place(material.module())
    if material.settings.train.recompute:
        recompute_blocks(module)
    return measure_module(module, material, compute, limit_s, most_sequences, clock, "measuring speed")


def measure_module(
    module: TrainedModule,
    material: Material,
    compute: Compute,
    limit_s: float,
    most_sequences: int,
    clock: Callable[[], float],
    doing: str,
) -> SpeedProbe:
    """Trains `module` for a moment.

    Args:
        module: on the device; its weights change. It need not be the recipe's.
        limit_s: about how long its steps may take, planning left out; two steps of two sequences are always finished.
        most_sequences: in a micro-batch: as in the recipe, or fewer if they do not fit into memory.
        doing: said beside the progress bar.
    """
    if compute.device.type == "cpu":
        keep_freed_memory()  # as a run does
    for _ in each_stage(module):
        pass  # the last one takes longest
    with Progress(doing, unit="steps") as progress:
        timer = _Timer(material, module, compute, progress.advance, clock)
        sequences = min(most_sequences, 2)
        timer.run(sequences, 1)
        if timer.steps_s[-1] < limit_s / 4:
            timer.run(sequences, 1)
        while sequences < most_sequences:  # as many as leave time for some steps, one warm-up step per size
            left_s = limit_s - sum(timer.steps_s)
            fitting = int(sequences * left_s / ((FEWEST_STEPS + 1) * timer.steps_s[-1]))
            if fitting <= sequences * 3 // 2:
                break
            sequences = min(most_sequences, fitting, sequences * 8)
            timer.run(sequences, 1)
        warm_up = len(timer.steps_s)
        timer.run(sequences, MOST_STEPS, limit_s)
    tokens, optimizer_s = timer.tokens[warm_up:], timer.optimizer_s[warm_up:]
    return SpeedProbe(
        sequences, statistics.median(tokens), tuple(timer.steps_s[warm_up:]), statistics.median(optimizer_s)
    )


class _Timer:
    """Times whole steps, and the optimizer's part of them."""

    def __init__(
        self,
        material: Material,
        module: TrainedModule,
        compute: Compute,
        advance: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.steps_s: list[float] = []
        self.optimizer_s: list[float] = []
        self.tokens: list[int] = []
        self._compute, self._advance, self._clock = compute, advance, clock
        self._batches, settings, objective = material.batches, material.settings, material.objective
        optimizer = build_optimizer(module, settings.optimizer)
        optimizer.register_step_pre_hook(lambda *_: setattr(self, "_optimizer_began", self._now()))
        optimizer.register_step_post_hook(lambda *_: self.optimizer_s.append(self._now() - self._optimizer_began))
        self._learner = Learner(module, objective.counts, objective.prepare)
        self._optimizer = ScheduledOptimizer(optimizer, Schedule(settings.schedule))
        self._stepper = EagerStepper(module, optimizer, settings.train.max_grad_norm, compute)
        endless = {"steps": None, "tokens": None, "epochs": None, "minutes": 1e9}
        self._settings = settings.train.model_copy(update=endless)
        self._began = self._optimizer_began = 0.0

    def run(self, sequences: int, num_steps: int, limit_s: float = float("inf")) -> None:
        """Trains for `num_steps` steps, or until all steps so far have taken `limit_s`; at least one step.

        The first batch is made before the clock starts, since a whole block of documents may be planned for it.
        """
        batches = self._batches(sequences)
        steps = self._steps(chain([next(batches)], batches), num_steps, limit_s)
        self._began = self._now()
        train(self._learner, steps, self._optimizer, self._stepper, self._settings, TrainState(), Hooks(self._on_step))

    def _steps(self, batches: Iterator[Batch], num_steps: int, limit_s: float) -> Iterator[StepBatches[Position]]:
        for _ in range(num_steps):
            yield StepBatches([next(batches)], Position(), 0.0)
            if sum(self.steps_s) >= limit_s:
                return

    def _on_step(self, state: TrainState, result: StepResult) -> None:
        now = self._now()
        self.steps_s.append(now - self._began)
        self.tokens.append(result.tokens)
        self._advance()
        self._began = now

    def _now(self) -> float:
        if self._compute.device.type == "cuda":
            torch.cuda.synchronize(self._compute.device)
        return self._clock()
