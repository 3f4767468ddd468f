"""Why a run went wrong: a vocabulary that does not fit, repeated text, a learning rate that is too high.

Each is inferred from what the run, its model and its store show, not from a setting alone, and states the figures that
it rests on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from unmask.doctor.findings import Finding
from unmask.doctor.floors import Row, last_part, mean_of, series
from unmask.doctor.run.evidence import Evidence, Record
from unmask.doctor.store.checks import check_duplicates
from unmask.doctor.store.statistics import find_duplicates
from unmask.objectives.floors import UNIGRAM
from unmask.recipe.tree import PretrainRecipe

CLEAR_NATS = 0.5
"""A difference between mean losses over many steps that is not due to chance."""
GROWN = 6.0
"""Weights are too large at this many times their initial size: in sound runs of 150 to 5,000 steps they stay below 3,
at a hundred times the learning rate they reach 15 to 100."""


def main_loss(recipe: PretrainRecipe) -> str:
    """The loss over the vocabulary, as it stands in `metrics.jsonl`."""
    return f"loss/{recipe.objective.main_term}"


def find_causes(record: Record, evidence: Evidence | None) -> list[Finding]:
    """The causes that can be seen; the first is the likeliest.

    Args:
        evidence: None if the store or the model cannot be opened; only the figures are judged then.
    """
    vocabulary = None if evidence is None else other_vocabulary(evidence)
    if vocabulary is not None:
        return [vocabulary]  # that makes the loss rise too
    causes = [] if evidence is None else repeated_text(evidence)
    too_high = learning_rate_too_high(record, evidence)
    return causes if too_high is None else [*causes, too_high]


def other_vocabulary(evidence: Evidence) -> Finding | None:
    """The store's ids mean other entries than the model's."""
    told = _differing_model(evidence) or _differing_start(evidence)
    if told is None:
        return None
    advice = "prepare the store again with the tokenizer of the model, or train from the beginning on this store"
    return Finding("other-vocabulary", "fault", told, advice)


def _differing_model(evidence: Evidence) -> str | None:
    store, tokenizer, model = evidence.store, evidence.tokenizer, evidence.model_tokenizer
    if model is None or model.token_strings == tokenizer.token_strings:
        return None
    pairs = zip(model.token_strings, tokenizer.token_strings, strict=False)
    differing = sum(ours != theirs for ours, theirs in pairs) + abs(model.vocab_size - tokenizer.vocab_size)
    return (
        f"{differing:,} of the {tokenizer.vocab_size:,} entries of {store.directory} are others than those of the "
        f"run's model (fingerprints {tokenizer.fingerprint()[:12]} and {model.fingerprint()[:12]})"
    )


def _differing_start(evidence: Evidence) -> str | None:
    """A run that goes on from a model without a tokenizer, which was no better than guessing evenly."""
    loss, even = evidence.start_loss, math.log(evidence.tokenizer.vocab_size)
    if loss is None or loss < even - 0.05:
        return None
    return (
        f"{evidence.record.recipe.init_from} has no tokenizer beside it, and before the first step its loss was "
        f"{loss:.2f}, where guessing evenly among the entries of {evidence.store.directory} gives {even:.2f}: it "
        "learnt other ids, or nothing"
    )


def repeated_text(evidence: Evidence) -> list[Finding]:
    """Documents that the store holds several times."""
    found = check_duplicates(find_duplicates(evidence.store), evidence.store.manifest.get("mixture", {}))
    return [found] if found.level in ("fault", "warning") else []


def learning_rate_too_high(record: Record, evidence: Evidence | None) -> Finding | None:
    """A loss that is not finite or has risen for good; or weights that have grown far too large, with a loss that ends
    no better than knowing frequencies. By itself that says little: a short run learns little."""
    key = main_loss(record.recipe)
    signs = [sign for sign in (_not_finite(record.training), _rise(record.training, key)) if sign is not None]
    growth, floors = (None, []) if evidence is None else (evidence.growth, evidence.floors)
    end = mean_of(last_part(series(record.training, key)))
    unpassed = [f for f in floors if (f.figure, f.label) == (key, UNIGRAM) and not f.is_passed_by(end)]
    if growth is not None and growth > GROWN and (signs or unpassed):
        signs.append(f"weights have grown to {growth:.0f} times their initial size")
        signs += [f"with {end:.2f} the loss is no better than {floor.what}" for floor in unpassed if end is not None]
    if not signs:
        return None
    limit = record.recipe.train.max_grad_norm
    norms = [row["gradient_norm"] for row in record.training if row["gradient_norm"] is not None]
    over = 0 if limit is None else sum(norm > limit for norm in norms)
    if over:
        signs.append(f"gradients were over the clipping norm in {over:,} of {len(record.training):,} rows")
    return _too_high(
        signs,
        record.training,
        "start again with a tenth of optimizer.learning_rate (1e-4 for BERT-Base, up to 2e-3 for the smallest), or a "
        "longer warm-up",
    )


def _too_high(signs: list[str], training: Sequence[Row], advice: str) -> Finding:
    peak = max(row["learning_rate"] for row in training)
    told = f"{'; '.join(signs)}; the learning rate reached {peak:.2g}"
    return Finding("learning-rate-too-high", "fault", told, advice)


def _not_finite(training: Sequence[Row]) -> str | None:
    figures = ("loss", "gradient_norm")  # rows of steps without targets have no loss
    steps = [row["step"] for row in training if any(name in row and row[name] is None for name in figures)]
    return f"the loss or its gradient is not finite at step {steps[0]:,}" if steps else None


def unstable(training: Sequence[Row]) -> Finding | None:
    """A fine-tuning loss that is not finite or has risen for good."""
    signs = [sign for sign in (_not_finite(training), _rise(training, "loss/task")) if sign is not None]
    advice = "start again with a lower optimizer.learning_rate (2e-5 to 5e-5 for BERT-Base)"
    return _too_high(signs, training, advice) if signs else None


def _rise(training: Sequence[Row], key: str) -> str | None:
    """What to say if a loss ends clearly higher than its mean over an earlier eighth of the run."""
    losses = series(training, key)
    values = [value for _, value in losses if value is not None]
    if len(values) < 4 or len(values) < len(losses):
        return None
    *before, end = [float(part.mean()) for part in np.array_split(values, min(8, len(values)))]
    if end < min(before) + _clear_difference(values):
        return None
    return f"the loss rose from {min(before):.2f} to {end:.2f} and stayed there"


def _clear_difference(values: Sequence[float]) -> float:
    """How far a row has to be from others to mean something: rows of a few sequences jump by more than half a nat."""
    jumps = np.abs(np.diff(values))
    return max(CLEAR_NATS, 4 * float(np.median(jumps))) if len(jumps) else CLEAR_NATS
