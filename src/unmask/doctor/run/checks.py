"""`unmask doctor` on a run: the floors its losses have to pass, whether they did, and why not.

A pre-training run is judged by its figures, its weights and its store; a fine-tuning run by its figures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from unmask.doctor.findings import Finding
from unmask.doctor.floors import Row, check_floor, last_part, mean_of, recorded_floors, series
from unmask.doctor.run.evidence import Record, gather_evidence, read_record
from unmask.doctor.run.faults import find_causes, main_loss, unstable
from unmask.errors import InputError, UserError
from unmask.info import describe, read_recipe
from unmask.io.paths import MODEL
from unmask.models.hub.files import CONFIG
from unmask.objectives.floors import SHOWN, UNIGRAM, Floor
from unmask.recipe.tree import FinetuneRecipe, PretrainRecipe
from unmask.training.run.directory import RECIPE
from unmask.training.run.log import METRICS, is_of_training, read_metrics

PLATEAU_ROWS = 20
"""With fewer rows, the last quarters are too few to tell a plateau from a slope."""
PLATEAU_FALL_NATS = 0.1
"""A loss that falls by less than this from one quarter of a run to the next is on a plateau."""


def check_run(run: Path) -> list[Finding]:
    """Examines a run, finished or not.

    A pre-training run's store has to be where the recipe says, or its figures alone are judged.

    Raises:
        InputError: this is not a run's directory, or its figures are damaged.
        SettingsError: its recipe is damaged.
    """
    if not (run / RECIPE).is_file():
        raise InputError(f"{run}: not a run ({RECIPE} is missing): expected the --out of `unmask pretrain` or finetune")
    recipe = read_recipe(run / RECIPE)
    return list(check_finetuning(run, recipe) if isinstance(recipe, FinetuneRecipe) else check_pretraining(run, recipe))


def check_pretraining(run: Path, recipe: PretrainRecipe) -> Iterator[Finding]:
    """What `check_run` finds in a run of `unmask pretrain`."""
    record = read_record(run, recipe)
    evidence, failure = None, None
    try:
        evidence = gather_evidence(record)
    except UserError as error:
        failure = error
    causes = find_causes(record, evidence)
    yield from causes
    yield from _progress(run, record.training, record.has_model, causes)
    if record.damage is not None:
        advice = "its model is as it was; without a model, start again with --overwrite"
        yield Finding("checkpoints-damaged", "fault", record.damage, advice)
    if failure is not None:
        yield Finding(
            "inputs-unreadable",
            "warning",
            f"only the figures were judged: {failure}",
            "run this where the paths in recipe.yaml hold",
        )
    if evidence is not None and not evidence.is_held_out:
        yield Finding(
            "nothing-held-out",
            "note",
            f"held_out={recipe.held_out} keeps less than two documents: the floors are those of training text",
            "set held_out so that some documents are kept for evaluation",
        )
    floors = recorded_floors(_recorded(run)) if evidence is None else evidence.floors
    names = [cause.name for cause in causes]
    for floor in floors:
        if "other-vocabulary" in names and floor.is_needed:
            message = f"not judged against {floor.value:.3f}, that of {floor.what}: its entries are others"
            yield Finding(floor.name, "note", message)
        else:
            yield from _judged(floor, record.rows, sorted({"learning-rate-too-high"}.intersection(names)))
    evaluation = {name: value for row in record.evaluations for name, value in row.items() if value is not None}
    remarks = [Finding(*remark) for remark in recipe.objective.remarks_on(evaluation)]
    yield from remarks
    if record.training and not causes and not remarks:
        key = main_loss(recipe)
        yield Finding("no-cause", "good", "none of the usual causes of a failed run shows")
        yield from _budget(record, floors)
        yield from _over_fitting(record.rows, key, f"eval/{key.removeprefix('loss/')}_loss", None)
    yield from _clipping(record)
    yield from _throughput(record.training)


def _progress(run: Path, training: Sequence[Row], has_model: bool, causes: Sequence[Finding]) -> Iterator[Finding]:
    if not training:
        yield Finding("no-figures", "warning", f"{METRICS} has no training row: no step was logged", "see log.txt")
    if not has_model:
        done = describe(run).get("progress", 0.0)
        faults = [cause.name for cause in causes if cause.level == "fault"]
        advice = "its command with --resume goes on; the end of log.txt says why it stopped"
        if faults:
            advice = f"what to do is told under {', '.join(faults)}: --resume alone mends nothing"
        yield Finding(
            "unfinished-run",
            "warning",
            f"the run stopped at {done:.0%} of its budget and has made no model yet",
            advice,
        )


def _budget(record: Record, floors: Sequence[Floor]) -> Iterator[Finding]:
    """A run whose loss ends no lower than without context: above that, or on the plateau there."""
    key = main_loss(record.recipe)
    values = {floor.label: floor.value for floor in floors if floor.figure == key}
    if UNIGRAM in values:
        yield from more_tokens(series(record.training, key), values[UNIGRAM], values.get(SHOWN, values[UNIGRAM]))


def more_tokens(losses: Sequence[tuple[int, float | None]], unigram: float, no_context: float) -> Iterator[Finding]:
    """A finding if a loss over the vocabulary ends at, or above, what is possible without context.

    It mentions a plateau only if one can be recognised: between the two floors, with enough rows and hardly a slope.

    Args:
        losses: of training, by step.
        unigram: the loss of knowing frequencies alone, in nats.
        no_context: the loss of knowing the token shown at each target as well.
    """
    newest = last_part(losses)
    before, end = mean_of(last_part(losses[: -len(newest)])), mean_of(newest)
    if before is None or end is None or end < no_context - 0.5:
        return
    told, advice = f"the loss of the last rows is {end:.2f}", "train on more tokens"
    if end > unigram + PLATEAU_FALL_NATS:
        told += (
            f", and knowing how frequent each entry is comes to {unigram:.2f}: the run ended before it had learnt that"
        )
    else:
        told += f"; {no_context:.2f} is had without any context, so little of it is used, or none"
        if len(losses) >= PLATEAU_ROWS and before - end < PLATEAU_FALL_NATS:
            told += f", and it hardly falls ({before:.2f} in the rows before)"
            advice += ": BERT-Mini on Wikipedia stays on this plateau for more than 20 million"
    yield Finding("more-tokens", "note", told, advice)


def _over_fitting(rows: Sequence[Row], training_key: str, held_out_key: str, chance: float | None) -> Iterator[Finding]:
    """A held-out loss far above the training loss that has risen, or is worse than `chance`."""
    training, held_out = series(rows, training_key), series(rows, held_out_key)
    shown = mean_of(last_part(training))
    figures = [(value, step) for step, value in held_out if value is not None]
    if shown is None or not figures or held_out[-1][1] is None:
        return
    (best, step), end = min(figures), held_out[-1][1]
    if end > shown + 0.3 and (end > best + 0.1 or (chance is not None and end > chance)):
        yield Finding(
            "over-fitting",
            "warning",
            f"the held-out loss ends at {end:.2f} while the training loss is {shown:.2f}; its lowest was {best:.2f} at "
            f"step {step:,}",
            "stop earlier, or give more data and take fewer passes over it",
        )


def _clipping(record: Record) -> Iterator[Finding]:
    limit = record.recipe.train.max_grad_norm
    norms = [row["gradient_norm"] for row in record.training if row["gradient_norm"] is not None]
    over = sum(norm > limit for norm in norms) if limit is not None else 0
    if norms and over > 0.9 * len(record.training):
        yield Finding(
            "always-clipped",
            "note",
            f"gradients were over train.max_grad_norm={limit} in {over} of {len(record.training)} rows, in the median "
            f"{np.median(norms):.2g}",
            f"usual for small models{record.recipe.objective.why_large_gradients}; where the loss spikes as well, "
            "lower the learning rate",
        )


def _throughput(training: Sequence[Row]) -> Iterator[Finding]:
    rates = [row["tokens_per_s"] for row in training if row.get("tokens_per_s")]
    slow = sum(rate < np.median(rates) / 2 for rate in rates)
    if len(rates) >= 10 and slow > 0.1 * len(rates):
        yield Finding(
            "uneven-speed",
            "note",
            f"{slow} of {len(rates)} rows ran at less than half of the median speed ({np.median(rates):,.0f} tokens/s)",
            "other work on the machine, or a slow disk under the store",
        )


def check_finetuning(run: Path, recipe: FinetuneRecipe) -> Iterator[Finding]:
    """What `check_run` finds in a run of `unmask finetune`."""
    rows: list[Row] = list(read_metrics(run / METRICS)) if (run / METRICS).is_file() else []
    training = [row for row in rows if is_of_training(row)]
    has_model = (run / MODEL / CONFIG).is_file()
    causes = [cause for cause in (unstable(training), _constant_predictions(rows)) if cause is not None]
    yield from causes
    yield from _progress(run, training, has_model, causes)
    names = [cause.name for cause in causes]
    chance = None
    if has_model and (labels := describe(run / MODEL).get("labels")):
        chance = math.log(len(labels))
        even = f"guessing evenly among the {len(labels)} labels"
        advice = "train longer, or with another optimizer.learning_rate or seed"
        floor = Floor("task-uniform-floor", "loss/task", "uniform", even, chance, advice=advice)
        yield from _judged(floor, rows, names)
    if "constant-predictions" not in names and (majority := _majority(run)) is not None:
        what = "always saying the most frequent label"
        advice = "train longer, on more examples, or start from a model with more pre-training"
        accuracy = Floor("task-majority-floor", "eval/accuracy", "majority", what, majority, advice=advice)
        yield from _judged(accuracy, rows, names)
    if not causes:
        yield Finding("no-cause", "good", "the loss is stable, and the predictions are not all the same")
    yield from _over_fitting(rows, "loss/task", "eval/loss", chance)
    yield from _throughput(training)


def _constant_predictions(rows: Sequence[Row]) -> Finding | None:
    """A finding if every prediction is the same: Matthews' correlation is then exactly 0."""
    correlations = series(rows, "eval/matthews_correlation")
    accuracies = series(rows, "eval/accuracy")
    if not correlations or correlations[-1][1] != 0 or (accuracies and accuracies[-1][1] == 1):
        return None
    since = next(step for step, value in correlations if value == 0)
    return Finding(
        "constant-predictions",
        "fault",
        f"at step {correlations[-1][0]:,} every dev example gets the same label (Matthews' correlation is exactly 0; "
        f"first at step {since:,})",
        "a degenerate run: try another seed, a lower optimizer.learning_rate, a longer warm-up, or more epochs",
    )


def _majority(run: Path) -> float | None:
    """The dev accuracy of always saying the most frequent label of the training file, as the run wrote it down."""
    return _recorded(run).get("eval/accuracy", {}).get("most frequent label")


def _recorded(run: Path) -> dict[str, dict[str, float]]:
    """The floors in a run's `results.json`; empty if it is missing, or not as a run writes it."""
    path = run / "results.json"
    if not path.is_file():
        return {}
    try:
        floors = json.loads(path.read_bytes())["floors"]
        return {key: {name: float(value) for name, value in named.items()} for key, named in floors.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _judged(floor: Floor, rows: Sequence[Row], causes: Sequence[str]) -> Iterator[Finding]:
    if (finding := check_floor(floor, rows, causes)) is not None:
        yield finding
