"""Steps that are not to be taken: what is wrong with them, and what is kept of them for inspection.

    RUN/divergence/step-00001234/
        batches.safetensors     what the step was computed from: `<micro-batch>.<column>`
        figures.json            what was wrong, the losses, the gradient's norm, the rate, the losses before

The rule of a spike: the loss is over `train.spike_factor` times the median of the losses of the last 100 steps taken
that had targets of the same loss terms, if there are at least 20 of them: with one term more the loss is a larger sum,
and no spike. The few large losses that are to be detected do not move a median. A median of 0 says nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.io.progress import counted
from unmask.io.writing import write_json, writing_directory
from unmask.models.hub.files import write_tensors
from unmask.training.settings import TrainSettings
from unmask.training.stepping.protocol import StepFigures
from unmask.training.steps import NumberedStep

WINDOW = 100
"""Steps against whose losses a spike is judged."""
FEWEST = 20
"""Steps that must have been taken before anything counts as a spike."""

BATCHES, FIGURES = "batches.safetensors", "figures.json"


@dataclass(frozen=True)
class BadStep:
    """A step whose update has not been taken.

    Attributes:
        fault: what is wrong with it, in words.
        recent_losses: of the steps before with targets of the same terms, the newest last.
    """

    step: NumberedStep
    figures: StepFigures
    fault: str
    recent_losses: Sequence[float]

    @property
    def loss(self) -> float:
        return self.figures.loss(self.step.prepared.counts)

    @property
    def terms(self) -> dict[str, float]:
        """The mean of each loss term, unweighted."""
        return self.figures.means(self.step.prepared.counts)


def terms_with_targets(counts: Mapping[str, int]) -> str:
    """The names of a step's loss terms that have targets, as one word, such as `lm+mlm`.

    Args:
        counts: the targets of each term in the whole step.
    """
    return "+".join(sorted(name for name, number in counts.items() if number))


def divergence_fault(
    step: int, loss: float, gradient_norm: float, recent_losses: Sequence[float], spike_factor: float | None
) -> str | None:
    """What is wrong with a step, in words; None where nothing is.

    Args:
        gradient_norm: before clipping.
        recent_losses: of the steps taken before with targets of the same terms, at most `WINDOW`.
        spike_factor: a loss over this times their median is a spike; None: none is.
    """
    if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
        return f"the loss or its gradient is not finite at step {step:,}: the run has diverged"
    if spike_factor is None or len(recent_losses) < FEWEST:
        return None
    median = statistics.median(recent_losses)
    if median == 0 or loss <= spike_factor * median:
        return None
    return (
        f"the loss at step {step:,} is {loss:.4g}, over {spike_factor:g} times (train.spike_factor) {median:.4g}, the "
        f"median of the last {len(recent_losses)} steps with the same loss terms"
    )


def advise(settings: TrainSettings, step: int, roll_backs: int, has_checkpoint: bool) -> str:
    """What to do about a step that ends the run.

    Args:
        step: its number.
        roll_backs: how often the run has gone back to a checkpoint.
    """
    again = "Start it again with a lower optimizer.learning_rate or a longer warm-up (schedule.*)"
    if settings.on_divergence == "stop" and has_checkpoint:
        past = "continue past this step with --resume and train.on_divergence=roll_back"
        interval = " and a train.save_every" if settings.save_every is None else ""
        return f"{again}, or {past}{interval}; its earlier checkpoints are kept"
    if roll_backs:
        times = f"{counted(roll_backs, 'time')}, as often as train.max_roll_backs allows"
        return f"The run has rolled back {times}. {again}; its earlier checkpoints are kept"
    nothing = f"There is no checkpoint to roll back to yet. {again}"
    if step == 1:
        return nothing
    how = "" if settings.on_divergence == "roll_back" else " and train.on_divergence=roll_back"
    return f"{nothing}, or with a train.save_every under {step:,}{how}"


class RecentLosses:
    """The losses of the last `WINDOW` steps taken with targets of the same terms, on the device: it judges spikes by
    the rule of `divergence_fault`, so that nothing waits for it."""

    def __init__(self, device: torch.device) -> None:
        self._losses = torch.full((WINDOW,), torch.inf, dtype=torch.float64, device=device)
        self._num_taken = torch.zeros(1, dtype=torch.int64, device=device)
        self._nothing = self._losses.clone(), self._num_taken.clone()
        self._terms = ""
        self._kept: dict[str, tuple[Tensor, Tensor]] = {}

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """The losses for the terms that it has been turned to, and how many there have been."""
        return self._losses, self._num_taken

    def restart(self, recent_losses: Mapping[str, Sequence[float]]) -> None:
        """Replaces all losses by others, by the terms with targets, the newest last."""
        self._kept = {}
        for terms, losses in recent_losses.items():
            kept, number = self._nothing[0].clone(), torch.full_like(self._num_taken, len(losses))
            kept[: len(losses)] = torch.tensor(losses, dtype=torch.float64)
            self._kept[terms] = kept, number
        self._take_up(self._terms)

    def turn_to(self, terms: str) -> None:
        """Has the steps launched from here on judged by those with targets of these terms. `tensors` keep their place
        in memory, since CUDA graphs read and write them."""
        if terms != self._terms:
            self._kept[self._terms] = self._losses.clone(), self._num_taken.clone()
            self._take_up(terms)

    def _take_up(self, terms: str) -> None:
        self._terms = terms
        for tensor, kept in zip(self.tensors, self._kept.get(terms, self._nothing), strict=True):
            tensor.copy_(kept)

    def is_spike(self, loss: Tensor, factor: float) -> Tensor:
        """() bool, whether a loss is over `factor` times their median, where there are enough of them."""
        number = self._num_taken.clamp(max=WINDOW)
        ascending = self._losses.sort().values  # unused places, which are infinite, come last
        median = (ascending[(number - 1).clamp(min=0) // 2] + ascending[(number // 2).clamp(max=WINDOW - 1)]) / 2
        return ((loss > factor * median) & (median != 0) & (number >= FEWEST)).squeeze()

    def add(self, loss: Tensor, halted: Tensor) -> None:
        """Takes in a loss in place of the oldest, unless the run is halted."""
        place = self._num_taken % WINDOW
        value = torch.where(halted > 0, self._losses[place], loss)
        self._losses.index_copy_(0, place, value)
        self._num_taken += (halted == 0).long()


def keep_bad_step(directory: Path, bad: BadStep, num_before: int) -> Path:
    """Writes a step's batches and figures for inspection.

    Args:
        directory: where the run keeps all its bad steps.
        num_before: how often the run has rolled back before, perhaps at the same step.

    Returns:
        The directory with both.

    Raises:
        OutputError: the disk is full, or the place cannot be written.
    """
    step, batches = bad.step, bad.step.prepared.batches
    target = directory / (f"step-{step.number:08d}" + (f"-again-{num_before}" if num_before else ""))
    tensors = {
        f"{number}.{name}": tensor.clone(memory_format=torch.contiguous_format)  # none may share memory in a file
        for number, batch in enumerate(batches)
        for name, tensor in batch.tensors().items()
    }
    figures: dict[str, Any] = {
        "step": step.number,
        "fault": bad.fault,
        "loss": _finite(bad.loss),
        **{f"loss/{name}": _finite(mean) for name, mean in bad.terms.items()},
        "counts": {name: step.prepared.counts[name] for name in bad.figures.sums},
        "learning_rate": step.learning_rate,
        "gradient_norm": _finite(bad.figures.gradient_norm),
        "micro_batches": len(batches),
        "recent_losses": list(bad.recent_losses),
    }
    with writing_directory(target, overwrite=True) as unfinished:
        write_tensors(unfinished / BATCHES, tensors)
        write_json(unfinished / FIGURES, figures)
    return target


def _finite(value: float) -> float | None:
    """As in `metrics.jsonl`, what is not finite is null."""
    return value if math.isfinite(value) else None
