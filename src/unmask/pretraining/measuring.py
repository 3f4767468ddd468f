"""What a pre-training run is measured on, and whether there is anything to measure and to learn from."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from unmask.batch import Batch
from unmask.config import build_settings, merge, parse_overrides
from unmask.errors import SettingsError
from unmask.io.paths import GENERATOR
from unmask.models.settings import ModelSettings
from unmask.objectives.base import Objective, ObjectiveModule
from unmask.objectives.floors import SHOWN, UNIGRAM, Floor
from unmask.objectives.settings import CAUSAL_SHARE
from unmask.packing.settings import PAIRED
from unmask.pretraining.inputs import PretrainingInputs
from unmask.recipe.tree import PretrainRecipe
from unmask.tasks.minimal_pairs.comparing import compare_pairs
from unmask.tasks.minimal_pairs.scorers import SentenceScorer, new_scorer
from unmask.training.device import Compute
from unmask.training.run.checkpoint import Checkpoint
from unmask.training.run.log import METRICS, read_metrics
from unmask.training.settings import TrainSettings

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
    settings: PretrainRecipe, run: PretrainingInputs, directory: Path, floors: Sequence[Floor], compute: Compute
) -> Callable[[], dict[str, float]] | None:
    """A function that measures the run's module: on held-out text, on minimal pairs, or both; None where there is
    neither. A held-out loss that is at its floor is reported once, also of a run that is resumed.

    Args:
        directory: of the run.

    Raises:
        SettingsError: there are pairs, and the model cannot say how likely a sentence is.
        InputError: a sentence of the pairs is too long or too short.
    """
    if not run.held_out and not run.pairs:
        return None
    scorer = _scorer(run, compute) if run.pairs else None
    plateau = Plateau(floors, run.objective.vocabulary_terms, plateau_advice(settings))
    if run.checkpoint is not None and (directory / METRICS).is_file():
        plateau.recall(read_metrics(directory / METRICS), run.checkpoint, settings.train)

    def evaluate() -> dict[str, float]:
        figures = measure(run.objective, run.module, run.held_out, compute)
        plateau.look(figures, run.steps.progress)
        if scorer is not None:
            figures["pairs_accuracy"] = compare_pairs(scorer, run.pairs)["metrics"]["accuracy"] / 100
        return figures

    return evaluate


@torch.no_grad()
def measure(
    objective: Objective, module: ObjectiveModule, batches: Sequence[Batch], compute: Compute
) -> dict[str, float]:
    """The means of the module's scores on prepared batches, and perplexities. What no target of them counts for has no
    mean, and is left out.

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
    for name in objective.perplexities:
        if name in metrics:  # e^710 overflows
            metrics[f"{name.removesuffix('_loss')}_perplexity"] = math.exp(min(metrics[name], 700.0))
    return metrics


def _scorer(run: PretrainingInputs, compute: Compute) -> SentenceScorer:
    """What says how likely a sentence is: the model that is trained, or ELECTRA's generator."""
    saved = run.module.saved()
    kept = saved.get(GENERATOR, saved[""])
    scorer = new_scorer(kept.encoder, kept.parts, run.tokenizer, compute, kept.encoder.settings.num_positions)
    if scorer is None:
        raise SettingsError("eval.pairs: this model cannot say how likely a sentence is: leave it out")
    sentences = [text for paradigm in run.pairs for pair in paradigm.pairs for text in (pair.good, pair.bad)]
    scorer.encode(sentences)  # one that is too long, or too short, does not end a run in the middle
    return scorer


_CLOSE_NATS = 0.05
_LONG_SHARE = 0.1


class Plateau:
    """Reports, once, that a held-out loss has stayed at what is had without context for a tenth of the budget.

    Args:
        floors: of the run.
        terms: the loss terms over the vocabulary; the first is looked at.
        advice: settings for another run, as `plateau_advice` gives them.
    """

    def __init__(self, floors: Sequence[Floor], terms: Sequence[str], advice: Sequence[str]) -> None:
        self._advice = " ".join([*advice, "and" if advice else "", "a lower optimizer.learning_rate"])
        values = {floor.label: floor for floor in floors if floor.is_loss and floor.term == terms[0]}
        self._floor = values.get(SHOWN, values.get(UNIGRAM))
        self._since: float | None = None
        self._is_reported = False

    def recall(self, rows: Sequence[Mapping[str, Any]], checkpoint: Checkpoint, train: TrainSettings) -> None:
        """Looks again, in silence, at the evaluations up to a checkpoint, among the rows of `metrics.jsonl`.

        A step counts as much of the budget as the mean one before the checkpoint.
        """
        progress = train.share_done(checkpoint.done)
        for row in rows:
            figures = {name.removeprefix("eval/"): value for name, value in row.items() if name.startswith("eval/")}
            if figures and 0 < row["step"] <= checkpoint.step:
                self._is_new(figures, progress * row["step"] / checkpoint.step)

    def _is_new(self, figures: Mapping[str, float], progress: float) -> bool:
        """Whether the loss has stayed at its floor for long, and that was not so before."""
        floor = self._floor
        value = None if floor is None else figures.get(f"{floor.term}_loss")
        if floor is None or value is None or abs(value - floor.value) > _CLOSE_NATS:
            self._since = None
            return False
        self._since = progress if self._since is None else self._since
        is_new = progress - self._since >= _LONG_SHARE and not self._is_reported
        self._is_reported |= is_new
        return is_new

    def look(self, figures: Mapping[str, float], progress: float) -> None:
        """Looks at an evaluation, after a share of the budget."""
        floor = self._floor
        if self._is_new(figures, progress) and floor is not None and self._since is not None:
            logger.warning(
                "for %.0f %% of the run, loss/%s on held-out text has stayed within %s of %.3f, the loss of %s: no "
                "context is learnt yet. What shortened this on small models (docs/guides/pretraining-systems.md) and "
                "this recipe lacks, of which each may need those before it: %s",
                100 * (progress - self._since),
                floor.term,
                _CLOSE_NATS,
                floor.value,
                floor.what,
                self._advice,
            )


_SHORT = 32
"""Tokens: masked words are learnt from their neighbours sooner where there are few others."""


def plateau_advice(settings: PretrainRecipe) -> list[str]:
    """What shortened a plateau on small models and a recipe neither has nor refuses: `key=value` words, of which each
    may need those before it."""
    objective, packing, is_new = settings.objective, settings.packing, settings.init_from is None
    is_paired = packing.format in PAIRED
    train, length = settings.train, packing.max_length
    is_masked_bert = is_new and objective.name == "masked_lm" and settings.model.architecture != "modernbert"
    is_long = not settings.phases and train.minutes is None and length >= 4 * _SHORT
    as_many_tokens = train.batch_size * length // _SHORT
    model = settings.model
    has_output_bias = not isinstance(model, ModelSettings) or (  # ELMo's softmax has one
        model.family.has("masked_lm_head") and model.decoder_bias is not False
    )
    is_open = {
        f"phases=[{{until: .5, max_length: {_SHORT}, batch_size: {as_many_tokens}}}, {{until: 1}}]": (
            is_masked_bert and is_long
        ),
        "objective.sentence_objective=none": objective.pair_objective != "none",
        "packing.short_sequence_prob=0": is_paired and "short_sequence_prob" in packing.model_fields_set,
        "packing.format=full_sentences": is_paired,
        "model.architecture=modernbert": is_new and settings.model.architecture != "modernbert",
        "objective.discriminator_after=.4": getattr(objective, "discriminator_after", None) == 0,
        "objective.causal_share=.5": getattr(objective, "causal_share", None) == 0,
        "objective.output_bias=log_frequency": is_new and has_output_bias and objective.output_bias == "zero",
        "optimizer.name=muon": settings.optimizer.name == "adamw",
        "schedule.name=wsd": settings.schedule.name != "wsd",
    }
    values, advice = {**settings.as_written(), "packing": packing.model_dump(exclude_unset=True)}, []
    for word in (word for word, is_wanted in is_open.items() if is_wanted):
        changed = merge(values, parse_overrides([word]))
        with suppress(SettingsError):
            build_settings(PretrainRecipe, changed, "advice")
            values = changed
            advice.append(word)
    return advice
