"""Why a pre-training run went wrong: a vocabulary that does not fit, repeated text, a learning rate that is too high.

Each cause is inferred from what the run, its model and its store show, not from a setting alone, and states the figures
that it rests on. The store is opened as the run opens it, so that text, masks and labels are those that it saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unmask.doctor.findings import Finding
from unmask.doctor.run.floors import Row, last_part, mean_of, series
from unmask.doctor.store.checks import check_duplicates
from unmask.doctor.store.statistics import find_duplicates
from unmask.errors import CheckpointError, ModelError
from unmask.io.paths import CHECKPOINTS, MODEL
from unmask.models.hub.files import CONFIG, read_safetensors
from unmask.objectives.floors import UNIGRAM, Floor
from unmask.objectives.table import new_objective
from unmask.pretraining.inputs import prepare_held_out
from unmask.pretraining.start import Start, open_start
from unmask.pretraining.steps import count_targets
from unmask.recipe.tree import PretrainRecipe
from unmask.store.store import TokenStore
from unmask.tokenization.opening import Tokenizer, has_tokenizer, open_tokenizer
from unmask.training.run.checkpoint import WEIGHTS, Checkpoint, find_checkpoint
from unmask.training.run.log import METRICS, is_of_training, read_metrics
from unmask.training.run.resuming import compare_inputs

CLEAR_NATS = 0.5
"""A difference between mean losses over many steps that is not due to chance."""
GROWN = 6.0
"""Weights are too large at this many times their initial size: in sound runs of 150 to 5,000 steps they stay below 3,
at a hundred times the learning rate they reach 15 to 100."""


@dataclass(frozen=True)
class Record:
    """What a run has written about itself."""

    directory: Path
    training: list[Row]  # rows of `metrics.jsonl`
    evaluations: list[Row]
    checkpoint: Checkpoint | None = None  # the newest intact one
    damage: CheckpointError | None = None  # what is wrong with the checkpoints if none can be used

    @property
    def rows(self) -> list[Row]:
        return [*self.training, *self.evaluations]

    @property
    def has_model(self) -> bool:
        return (self.directory / MODEL / CONFIG).is_file()


def read_record(directory: Path) -> Record:
    """Reads what needs neither store nor model; a run that never logged has no rows.

    Raises:
        InputError: `metrics.jsonl` is damaged.
    """
    rows: list[Row] = list(read_metrics(directory / METRICS)) if (directory / METRICS).is_file() else []
    training = [row for row in rows if is_of_training(row)]
    evaluations = [row for row in rows if not is_of_training(row)]
    try:
        return Record(directory, training, evaluations, find_checkpoint(directory / CHECKPOINTS))
    except CheckpointError as error:
        return Record(directory, training, evaluations, damage=error)


@dataclass(frozen=True)
class Evidence:
    """The inputs of a run, opened."""

    store: TokenStore
    tokenizer: Tokenizer  # the store's
    model_tokenizer: Tokenizer | None  # that of the run's model; None if it has none
    is_held_out: bool  # whether the floors are of held-out targets, as in `results.json`; else of the whole store
    floors: list[Floor]
    growth: float | None  # how many times as large as initial ones the weights are; None if that is not known


def gather_evidence(record: Record, recipe: PretrainRecipe) -> Evidence:
    """Opens the store, makes the evaluated batches again and reads the weights.

    Raises:
        UserError: the store is not where the recipe says, is damaged, or holds other text than when the run was begun.
    """
    store = TokenStore(Path(recipe.store) if recipe.store is not None else record.directory / "store")
    tokenizer = open_tokenizer(store.tokenizer_directory)
    model = record.directory / MODEL
    model_tokenizer = open_tokenizer(model) if has_tokenizer(model) else None
    if model_tokenizer is None or model_tokenizer.token_strings == tokenizer.token_strings:  # else that is the cause
        compare_inputs(record.directory, {"store": store.fingerprint()}, {"store": store.directory})
    objective = new_objective(recipe.objective, tokenizer.vocabulary)
    start = open_start(recipe)
    held_out = prepare_held_out(start, store, tokenizer, objective)
    evaluation = {name: value for row in record.evaluations for name, value in row.items() if value is not None}
    return Evidence(
        store,
        tokenizer,
        model_tokenizer,
        bool(held_out),
        objective.floors(count_targets(store, tokenizer), held_out, evaluation),
        _growth(record, start, tokenizer),
    )


def _growth(record: Record, start: Start, tokenizer: Tokenizer) -> float | None:
    """The median over the weight matrices of their root mean square relative to that of initial ones; None if they
    cannot be read."""
    sizes = start.sizes or start.recipe.model.resolve(tokenizer.vocab_size, tokenizer.pad_id)
    initial = getattr(sizes, "initializer_range", None)
    path = record.directory / MODEL / "model.safetensors"
    if record.checkpoint is not None and not path.is_file():
        path = record.checkpoint.directory / WEIGHTS
    if initial is None or not path.is_file():
        return None
    try:
        weights = read_safetensors(path)
    except ModelError:
        return None
    scales = [float(weight.float().pow(2).mean().sqrt()) for weight in weights.values() if weight.dim() == 2]
    return float(np.median(scales) / initial)


def find_causes(record: Record, recipe: PretrainRecipe, evidence: Evidence | None) -> list[Finding]:
    """The causes that can be seen; the first is the likeliest.

    Args:
        evidence: None if the store or the model cannot be opened; only the figures are judged then.
    """
    causes = []
    if evidence is not None:
        if (difference := _other_model(evidence)) is not None:
            advice = (
                "prepare the store again with the tokenizer of the model, or train from the beginning on this store"
            )
            return [Finding("other-vocabulary", "fault", difference, advice)]  # that makes the loss rise too
        repeated = check_duplicates(find_duplicates(evidence.store), evidence.store.manifest.get("mixture", {}))
        causes += [repeated] if repeated.level in ("fault", "warning") else []
    too_high = _learning_rate_too_high(record, recipe, evidence)
    return causes if too_high is None else [*causes, too_high]


def _other_model(evidence: Evidence) -> str | None:
    """How the store's entries differ from those of the run's model."""
    tokenizer, model = evidence.tokenizer, evidence.model_tokenizer
    if model is None or model.token_strings == tokenizer.token_strings:
        return None
    pairs = zip(model.token_strings, tokenizer.token_strings, strict=False)
    differing = sum(ours != theirs for ours, theirs in pairs) + abs(model.vocab_size - tokenizer.vocab_size)
    return (
        f"{differing:,} of the {tokenizer.vocab_size:,} entries of {evidence.store.directory} differ from those of the "
        f"run's model (fingerprints {tokenizer.fingerprint()[:12]} and {model.fingerprint()[:12]})"
    )


def _learning_rate_too_high(record: Record, recipe: PretrainRecipe, evidence: Evidence | None) -> Finding | None:
    """A loss that is not finite or has risen for good; or weights that have grown far too large, with a loss that ends
    no better than knowing frequencies. By itself that says little: a short run learns little."""
    key = f"loss/{recipe.objective.main_term}"
    signs = signs_of_divergence(record.training, key)
    growth, floors = (None, []) if evidence is None else (evidence.growth, evidence.floors)
    held_out = series(record.evaluations, f"eval/{recipe.objective.main_term}_loss")
    end = held_out[-1][1] if held_out else mean_of(last_part(series(record.training, key)))  # as the floors are for
    unpassed = [f for f in floors if (f.figure, f.label) == (key, UNIGRAM) and not f.is_passed_by(end)]
    if growth is not None and growth > GROWN and (signs or unpassed):
        signs.append(f"weights have grown to {growth:.0f} times their initial size")
        signs += [f"with {end:.2f} the loss is no better than {floor.what}" for floor in unpassed if end is not None]
    if not signs:
        return None
    over = len(clipped_norms(record.training, recipe.train.max_grad_norm))
    if over:
        signs.append(f"gradients were over the clipping norm in {over:,} of {len(record.training):,} rows")
    advice = (
        "start again with a tenth of optimizer.learning_rate (1e-4 for BERT-Base, up to 2e-3 for the smallest), or a "
        "longer warm-up"
    )
    return too_high(signs, record.training, advice)


def too_high(signs: Sequence[str], training: Sequence[Row], advice: str) -> Finding:
    peak = max(row["learning_rate"] for row in training)
    message = f"{'; '.join(signs)}; the learning rate reached {peak:.2g}"
    return Finding("learning-rate-too-high", "fault", message, advice)


def clipped_norms(training: Sequence[Row], limit: float | None) -> list[float]:
    """The gradient norms of the rows that were clipped."""
    norms = [row["gradient_norm"] for row in training]
    return [norm for norm in norms if None not in (norm, limit) and norm > limit]


def signs_of_divergence(training: Sequence[Row], key: str) -> list[str]:
    """A loss or gradient that is not finite, and a loss that ends clearly higher than its mean over an earlier eighth
    of the run; empty for a sound run.

    Args:
        key: of the loss over the vocabulary or of the task, in the rows.
    """
    signs = []
    figures = ("loss", "gradient_norm")  # rows of steps without targets have no loss
    steps = [row["step"] for row in training if any(name in row and row[name] is None for name in figures)]
    if steps:
        signs.append(f"the loss or its gradient is not finite at step {steps[0]:,}")
    losses = series(training, key)
    values = [value for _, value in losses if value is not None]
    if 4 <= len(values) == len(losses):
        *before, end = [float(part.mean()) for part in np.array_split(values, min(8, len(values)))]
        # Rows of a few sequences jump by more than half a nat.
        if end >= min(before) + max(CLEAR_NATS, 4 * float(np.median(np.abs(np.diff(values))))):
            signs.append(f"the loss rose from {min(before):.2f} to {end:.2f} and stayed there")
    return signs
