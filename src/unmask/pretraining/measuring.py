"""What a pre-training run is measured on, and whether there is anything to measure and to learn from."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from unmask.batch import Batch
from unmask.errors import SettingsError
from unmask.io.paths import GENERATOR
from unmask.objectives.base import Objective, ObjectiveModule
from unmask.objectives.floors import Floor
from unmask.objectives.settings import CAUSAL_SHARE
from unmask.pretraining.inputs import PretrainingInputs
from unmask.pretraining.plateau import Plateau
from unmask.recipe.tree import PretrainRecipe
from unmask.tasks.minimal_pairs.comparing import encode_pairs, score_pairs, warn_of_alike
from unmask.tasks.minimal_pairs.scorers import new_scorer
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
    totals: Counter[str] = Counter()
    for batch in (batch for step in run.steps.first_steps(most) for batch in step.batches):
        totals.update(objective.counts(objective.prepare(batch)))
        if all(totals.values()):
            return
    if not totals[term] and settings.first_rates.get(CAUSAL_SHARE) != 1:  # else all are read from left to right first
        raise SettingsError(f"nothing would be learnt: not one sequence of the first {most} steps {none_has}")
    for name in sorted(name for name, count in totals.items() if not count and name != term):
        logger.warning(
            f"loss/{name}: not one sequence of the first {most} steps has a target of it, so that nothing is learnt "
            "from it there, and it is in no figures; give text with longer documents, or leave it out of the recipe"
        )


def evaluator(
    settings: PretrainRecipe, run: PretrainingInputs, floors: Sequence[Floor], compute: Compute
) -> Callable[[], dict[str, float]] | None:
    """A function that measures the run's module: on held-out text, on minimal pairs, or both; None where there is
    neither. A held-out loss that stays at its floor is reported once.

    Raises:
        SettingsError: there are pairs, and the model cannot say how likely a sentence is.
        InputError: a sentence of the pairs is too long or too short.
    """
    if not run.held_out and not run.pairs:
        return None
    pairs_accuracy = _of_pairs(run, compute) if run.pairs else None
    plateau = Plateau(floors, settings.objective.main_term)

    def evaluate() -> dict[str, float]:
        figures = measure(run.objective, run.module, run.held_out, compute)
        plateau.look(figures, run.steps.progress)
        if pairs_accuracy is not None:
            figures["pairs_accuracy"] = pairs_accuracy()
        return figures

    return evaluate


@torch.no_grad()
def measure(
    objective: Objective, module: ObjectiveModule, batches: Sequence[Batch], compute: Compute
) -> dict[str, float]:
    """The means of the module's scores on prepared batches, and the perplexity if it has a loss over the vocabulary.
    What no target of them counts for has no mean, and is left out.

    The batches are the same at every evaluation of a run. In a run with phases they are as long as those of the last
    phase from the beginning, so that the whole curve is on one scale.
    """
    totals: dict[str, float] = {}
    counts: dict[str, int] = {}
    for batch in batches:
        with compute.autocast():
            scores = module.scores(batch.to(compute.device))
        for name, (total, count) in scores.items():
            totals[name] = totals.get(name, 0.0) + float(total)
            counts[name] = counts.get(name, 0) + count
    metrics = {name: totals[name] / counts[name] for name in totals if counts[name]}
    for main in objective.vocabulary_terms[:1]:
        if f"{main}_loss" in metrics:  # e^710 overflows
            metrics[f"{main}_perplexity"] = math.exp(min(metrics[f"{main}_loss"], 700.0))
    return metrics


def _of_pairs(run: PretrainingInputs, compute: Compute) -> Callable[[], float]:
    """A function that measures the model that is trained, or ELECTRA's generator, on the minimal pairs."""
    saved = run.module.saved()
    kept = saved.get(GENERATOR, saved[""])
    longest = kept.encoder.settings.num_positions
    scorer = new_scorer(kept.encoder, kept.heads, kept.causal_lm, run.tokenizer, compute, longest)
    if scorer is None:
        raise SettingsError("eval.pairs: this model cannot say how likely a sentence is: leave it out")
    # one that is too long, or too short, does not end a run in the middle
    encoded = encode_pairs(scorer, [pair for paradigm in run.pairs for pair in paradigm.pairs])
    warn_of_alike(encoded, run.pairs, scorer)
    return lambda: score_pairs(scorer, run.pairs, encoded).figures()["metrics"]["accuracy"] / 100
