"""What a pre-training run is measured on, and whether there is anything to measure and to learn from."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import torch

from unmask.batch import Batch
from unmask.errors import SettingsError
from unmask.objectives.base import Objective, ObjectiveModule
from unmask.pretraining.inputs import PretrainingInputs
from unmask.recipe.tree import PretrainRecipe
from unmask.training.device import Compute

logger = logging.getLogger("unmask")

_STEPS_CHECKED = 10
"""Steps at a run's beginning of which one must have a target."""


def check_targets(settings: PretrainRecipe, run: PretrainingInputs) -> None:
    """Refuses, by a `SettingsError`, a run whose main loss has no target in the first steps, or in all that is held
    out; warns of a further term without targets."""
    objective, term = run.objective, settings.objective.main_term

    def has_target(batch: Batch) -> bool:
        return objective.counts(batch)[term] > 0

    none_has = f"has a target of loss/{term}; {settings.objective.why_no_targets}"
    if run.held_out and not any(map(has_target, run.held_out)):
        number = sum(batch.num_sequences for batch in run.held_out)
        raise SettingsError(
            f"nothing would be measured: not one of the {number:,} held-out sequences {none_has}; if the training text "
            "has targets, change held_out"
        )
    if run.checkpoint is not None:
        return
    most = min(_STEPS_CHECKED, settings.train.steps or _STEPS_CHECKED)
    missing: set[str] | None = None
    for batch in (batch for step in run.steps.first_steps(most) for batch in step.batches):
        without = {name for name, count in objective.counts(objective.prepare(batch)).items() if not count}
        missing = without if missing is None else missing & without
        if not missing:
            return
    if missing is None or term in missing:
        raise SettingsError(f"nothing would be learnt: not one sequence of the first {most} steps {none_has}")
    for name in sorted(missing):
        logger.warning(
            f"loss/{name}: not one sequence of the first {most} steps has a target of it, so that nothing is learnt "
            "from it there, and it is in no figures; give text with longer documents, or leave it out of the recipe"
        )


def evaluator(
    objective: Objective, module: ObjectiveModule, batches: Sequence[Batch], compute: Compute
) -> Callable[[], dict[str, float]]:
    """A function that measures the module on prepared batches: the means of its scores, and perplexities. What no
    target of them counts for has no mean, and is left out.

    The batches are the same at every evaluation of a run. In a run with phases they are as long as those of the last
    phase from the beginning, so that the whole curve is on one scale.
    """

    @torch.no_grad()
    def evaluate() -> dict[str, float]:
        totals: dict[str, float] = {}
        counts: dict[str, int] = {}
        for batch in batches:
            with compute.autocast():
                scores = module.scores(batch.to(compute.device))
            for name, (total, count) in scores.items():
                totals[name] = totals.get(name, 0.0) + float(total)
                counts[name] = counts.get(name, 0) + count
        metrics = {name: totals[name] / counts[name] for name in totals if counts[name]}
        for name in objective.perplexities:
            if name in metrics:  # e^710 overflows
                metrics[f"{name.removesuffix('_loss')}_perplexity"] = math.exp(min(metrics[name], 700.0))
        return metrics

    return evaluate
