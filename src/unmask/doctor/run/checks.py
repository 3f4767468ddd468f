"""`unmask doctor` on a run: the floors its losses have to pass, whether they did, and why not.

A pre-training run is judged by its figures, its weights and its store; a fine-tuning run by its figures and its model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from unmask.batch import pack
from unmask.doctor.findings import Finding, Level
from unmask.doctor.run.causes import (
    Record,
    clipped_norms,
    find_causes,
    gather_evidence,
    read_record,
    signs_of_divergence,
    too_high,
)
from unmask.doctor.run.floors import Row, check_floor, last_part, mean_of, recorded_floors, series
from unmask.errors import InputError, UserError
from unmask.info import describe
from unmask.io.json_files import read_object
from unmask.io.paths import MODEL, RECIPE, RESULTS
from unmask.io.writing import is_held
from unmask.models.hub.directory import load_encoder
from unmask.models.hub.files import read_config
from unmask.objectives.floors import SHOWN, UNIGRAM, Floor
from unmask.recipe.loading import read_recipe
from unmask.recipe.tree import FinetuneRecipe, PretrainRecipe
from unmask.training.run.environment import ENVIRONMENT, budget_changes, read_sessions
from unmask.training.run.log import METRICS

PLATEAU_ROWS = 20
"""With fewer rows, the last quarters are too few to distinguish a plateau from a slope."""
PLATEAU_FALL_NATS = 0.1
"""A loss that falls by less than this from one quarter of a run to the next is on a plateau."""
NEARLY_ALIKE = 0.999
"""The mean cosine of vectors from which on they have collapsed: sound masked language models stay below
0.98, diverged ones reach 0.9999."""

_ANOTHER_TRY = "try another seed, a lower optimizer.learning_rate, a longer warm-up, or more epochs"


def check_run(run: Path) -> list[Finding]:
    """Examines a run, finished or not.

    A pre-training run's store has to be where the recipe says, or its figures alone are judged.

    Raises:
        InputError: this is not a run's directory, or its figures are damaged.
        SettingsError: its recipe is damaged.
    """
    if not (run / RECIPE).is_file():
        raise InputError(f"{run}: not a run ({RECIPE} is missing): expected the --out of `unmask pretrain` or finetune")
    recipe, record = read_recipe(run / RECIPE), read_record(run)
    if isinstance(recipe, FinetuneRecipe):
        return [*_check_finetuning(record), *_changed_budget(run)]
    return [*_check_pretraining(record, recipe), *_changed_budget(run)]


def _check_pretraining(record: Record, recipe: PretrainRecipe) -> Iterator[Finding]:
    evidence, failure = None, None
    try:
        evidence = gather_evidence(record, recipe)
    except UserError as error:
        failure = error
    causes = find_causes(record, recipe, evidence)
    yield from causes
    yield from _checkpoints(record)
    yield from _progress(record, causes)
    yield from _check_model(record)
    if failure is not None:
        message, advice = f"only the figures were judged: {failure}", "run this where the paths in recipe.yaml hold"
        yield Finding("inputs-unreadable", "warning", message, advice)
    if evidence is not None and not evidence.is_held_out:
        message = f"nothing is held out (held_out={recipe.held_out}): the floors are those of the whole text"
        advice = "set held_out so that some documents are kept for evaluation"
        yield Finding("nothing-held-out", "note", message, advice)
    floors = recorded_floors(_results(record).get("floors", {})) if evidence is None else evidence.floors
    names = [cause.name for cause in causes]
    for floor in floors:
        if "other-vocabulary" in names and floor.is_needed:
            message = f"not judged against {floor.value:.3f}, that of {floor.what}: its entries are others"
            yield Finding(floor.name, "note", message)
        else:
            yield from check_floor(floor, record.rows, [name for name in names if name == "learning-rate-too-high"])
    evaluation = {name: value for row in record.evaluations for name, value in row.items() if value is not None}
    remarks = [Finding(*remark) for remark in recipe.objective.remarks_on(evaluation)]
    yield from remarks
    if record.training and not causes and not remarks:
        term = recipe.objective.main_term
        values = {floor.label: floor.value for floor in floors if floor.figure == f"loss/{term}"}
        yield Finding("no-cause", "good", "no usual cause of a failed run was found")
        if UNIGRAM in values:
            training, held_out = (series(record.rows, key) for key in (f"loss/{term}", f"eval/{term}_loss"))
            yield from more_tokens(training, held_out, values[UNIGRAM], values.get(SHOWN, values[UNIGRAM]))
        yield from _over_fitting(record.rows, f"loss/{term}", f"eval/{term}_loss", None)
    yield from clipping(record, recipe)
    yield from _throughput(record.training)


def _check_finetuning(record: Record) -> Iterator[Finding]:
    causes = []
    if signs := signs_of_divergence(record.training, "loss/task"):
        advice = "start again with a lower optimizer.learning_rate (2e-5 to 5e-5 for BERT-Base)"
        causes.append(too_high(signs, record.training, advice))
    rows, results = record.rows, _results(record)
    step = max((row["step"] for row in rows), default=0)
    # Of the model, which early stopping takes from before the last rows; a resumed run may be past it.
    is_measured = "dev" in results and results.get("step") == step
    if is_measured:
        step = results.get("early_stopping", {}).get("step", step)
        rows = [row for row in record.training if row["step"] <= step]
        rows += [row for row in record.evaluations if row["step"] < step]
        rows.append({"step": step, **{f"eval/{name}": value for name, value in results["dev"].items()}})
    causes += _constant_predictions(results) if is_measured else _at_chance(rows)
    yield from causes
    yield from _checkpoints(record)
    yield from _progress(record, causes)
    about_model = list(_check_model(record))
    yield from about_model
    is_readable = record.has_model and all(finding.name != "model-unreadable" for finding in about_model)
    names, chance = [cause.name for cause in causes], None
    if is_readable and (evenly := _loss_of_guessing(record.directory / MODEL)):
        even, chance = evenly
        advice = "train longer, or with another optimizer.learning_rate or seed"
        floor = Floor("task-uniform-floor", "loss/task", "uniform", even, chance, advice=advice)
        yield from check_floor(floor, rows, names)
    # The dev accuracy of always giving the most frequent label of the training file, as the run has written it.
    majority = results.get("floors", {}).get("eval/accuracy", {}).get("most frequent label of train")
    if "constant-predictions" not in names and majority is not None:
        what = "always saying the most frequent label"
        advice = "train longer, on more examples, or start from a model with more pre-training"
        floor = Floor("task-majority-floor", "eval/accuracy", "majority", what, majority, advice=advice)
        yield from check_floor(floor, rows, names)
    if not causes:
        message = "no usual cause of a failed run was found: the loss is stable"
        message += ", and on dev the model is not degenerate" if is_measured else ""
        yield Finding("no-cause", "good", message)
    yield from _over_fitting(rows, "loss/task", "eval/loss", chance)
    yield from _throughput(record.training)


def _loss_of_guessing(model: Path) -> tuple[str, float] | None:
    """What guessing evenly means for a model's labels, and its loss in nats; None where there is nothing to guess."""
    config = read_config(model)
    labels, kind = config.get("id2label"), config.get("problem_type")
    if kind == "regression" or not isinstance(labels, dict) or not labels:
        return None
    if kind == "multi_label_classification":
        return "guessing evenly about each label", math.log(2)
    return f"guessing evenly among the {len(labels)} labels", math.log(len(labels))


def _checkpoints(record: Record) -> Iterator[Finding]:
    if record.damage is not None:
        level: Level = "warning" if record.has_model else "fault"
        advice = "its model is as it was; without a model, start again with --overwrite"
        yield Finding("checkpoints-unusable", level, str(record.damage), advice)
    if record.checkpoint is not None and record.checkpoint.damaged:
        message = "; ".join(record.checkpoint.damaged)
        advice = f"--resume would continue from step {record.checkpoint.step:,}, the newest that is sound"
        yield Finding("checkpoint-passed-over", "warning", message, advice)


def _progress(record: Record, causes: Sequence[Finding]) -> Iterator[Finding]:
    if not record.training:
        yield Finding("no-figures", "warning", f"{METRICS} has no training row: no step was logged", "see log.txt")
    if not record.has_model:
        done = describe(record.directory).get("progress", 0.0)
        if is_held(record.directory):
            yield Finding("under-way", "note", f"the run is under way, and has done {done:.0%} of its budget")
            return
        faults = [cause.name for cause in causes if cause.level == "fault"]
        advice = "its command with --resume continues it; the end of log.txt says why it stopped"
        if faults:
            advice = f"see the advice under {', '.join(faults)}: --resume alone fixes nothing"
        message = f"the run stopped at {done:.0%} of its budget and has made no model yet"
        yield Finding("unfinished-run", "warning", message, advice)


def _changed_budget(run: Path) -> Iterator[Finding]:
    for change in budget_changes(read_sessions(run / ENVIRONMENT)):
        message = f"the budget was changed {change}: a run with this budget from the start would have ended differently"
        yield Finding("budget-changed", "note", message, f"{run / RECIPE} with another --out makes such a run")


def _results(record: Record) -> dict[str, Any]:
    """A run's `results.json`; empty if it has none."""
    path = record.directory / RESULTS
    return read_object(path) if path.is_file() else {}


def _check_model(record: Record) -> Iterator[Finding]:
    """A finding if the run's model cannot be loaded, or if it gives nearly the same vector, the mean of the last hidden
    states, to 64 sequences of 8 entries drawn at random: these have as little in common as sequences can have."""
    if not record.has_model:
        return
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        try:
            encoder = load_encoder(record.directory / MODEL, pooler=False).encoder.eval()
        except UserError as error:
            yield Finding("model-unreadable", "fault", str(error), "start again with --overwrite, or restore a copy")
            return
        if encoder.reads_words:
            return
        ids = torch.from_numpy(np.random.default_rng(0).integers(encoder.settings.vocab_size, size=(64, 8)))
        vectors = encoder(pack(ids.tolist())).unflatten(0, ids.shape).mean(1)  # (sequences, hidden)
        cosines = normalize(vectors) @ normalize(vectors).T
        mean = float((cosines.sum() - len(ids)) / (len(ids) * (len(ids) - 1)))
    if mean > NEARLY_ALIKE:
        message = (
            f"sequences of random entries get nearly the same vector (mean cosine {mean:.4f}): the model has collapsed"
        )
        advice = "train longer; if the loss does not fall, start again with a lower optimizer.learning_rate"
        yield Finding("collapsed-vectors", "warning", message, advice)


def more_tokens(
    training: Sequence[tuple[int, float | None]],
    held_out: Sequence[tuple[int, float | None]],
    unigram: float,
    no_context: float,
) -> Iterator[Finding]:
    """A finding if a loss over the vocabulary ends little below what is possible without context, or above.

    It mentions a plateau only if one can be recognised: between the two floors, with enough rows and hardly a slope.

    Args:
        training: the losses of training rows.
        held_out: those that the floors are for; without any, the floors are for the training rows.
        unigram: the loss of knowing frequencies alone, in nats.
        no_context: the loss of knowing the token shown at each target as well.
    """
    newest = last_part(training)
    before, last = mean_of(last_part(training[: -len(newest)])), mean_of(newest)
    end = held_out[-1][1] if held_out else last
    if before is None or last is None or end is None or end < no_context - 0.5:
        return
    message = f"the held-out loss is {end:.2f}" if held_out else f"the loss of the last rows is {end:.2f}"
    advice = "train on more tokens"
    if end > unigram + PLATEAU_FALL_NATS:
        message += (
            f", above the {unigram:.2f} of knowing how frequent each entry is: the run ended before it learnt that"
        )
    else:
        side = f"only {no_context - end:.2f} below" if end < no_context else "not below"
        message += f", {side} the {no_context:.2f} that is possible without any context"
        if len(training) >= PLATEAU_ROWS and before - last < PLATEAU_FALL_NATS:
            message += f"; in training it hardly falls ({last:.2f}, and {before:.2f} in the rows before)"
            advice += ": BERT-Mini on Wikipedia stays on this plateau for more than 20 million"
    yield Finding("more-tokens", "note", message, advice)


def _over_fitting(rows: Sequence[Row], training_key: str, held_out_key: str, chance: float | None) -> Iterator[Finding]:
    """A held-out loss far above the training loss that has risen, or is worse than `chance`."""
    training, held_out = mean_of(last_part(series(rows, training_key))), series(rows, held_out_key)
    figures = [(value, step) for step, value in held_out if value is not None]
    if training is None or not figures or held_out[-1][1] is None:
        return
    (best, step), end = min(figures), held_out[-1][1]
    if end > training + 0.3 and (end > best + 0.1 or (chance is not None and end > chance)):
        message = f"the held-out loss ends at {end:.2f} while the training loss is {training:.2f}"
        if end > best:
            message += f"; its lowest was {best:.2f} at step {step:,}"
            advice = "stop earlier, or give more data and take fewer passes over it"
        else:
            message += f": no better than guessing, which gives {chance:.2f}"
            advice = "give more data, or look whether train and dev are of one kind"
        yield Finding("over-fitting", "warning", message, advice)


def clipping(record: Record, recipe: PretrainRecipe) -> Iterator[Finding]:
    limit = recipe.train.max_grad_norm
    over = len(clipped_norms(record.training, limit))
    if record.training and over > 0.9 * len(record.training):
        median = np.median([row["gradient_norm"] for row in record.training if row["gradient_norm"] is not None])
        message = (
            f"gradients were over train.max_grad_norm={limit} in {over} of {len(record.training)} rows, in the median "
            f"{median:.2g}"
        )
        advice = (
            f"usual for small models{recipe.objective.why_large_gradients}; where the loss spikes as well, "
            "lower the learning rate"
        )
        yield Finding("always-clipped", "note", message, advice)


def _throughput(training: Sequence[Row]) -> Iterator[Finding]:
    rates = [row["tokens_per_s"] for row in training if row.get("tokens_per_s")]
    if len(rates) < 10:
        return
    median = np.median(rates)
    slow = sum(rate < median / 2 for rate in rates)
    if slow > 0.1 * len(rates):
        message = f"{slow} of {len(rates)} rows ran at less than half of the median speed ({median:,.0f} tokens/s)"
        advice = "other work on the machine, or a slow disk under the store"
        yield Finding("uneven-speed", "note", message, advice)


def _constant_predictions(results: Mapping[str, Any]) -> Iterator[Finding]:
    if fault := results.get("degenerate"):
        message = f"on dev {fault}: the model gives every example the same answer"
        yield Finding("constant-predictions", "fault", message, f"a degenerate run: {_ANOTHER_TRY}")


def _at_chance(rows: Sequence[Row]) -> Iterator[Finding]:
    """A finding if Matthews' correlation is exactly 0, of a run whose predictions are not known yet."""
    correlations, accuracies = series(rows, "eval/matthews_correlation"), series(rows, "eval/accuracy")
    if correlations and correlations[-1][1] == 0 and not (accuracies and accuracies[-1][1] == 1):
        since = next(step for step, value in correlations if value == 0)
        message = (
            f"at step {correlations[-1][0]:,} the predictions are no better than chance (Matthews' correlation is "
            f"exactly 0; first at step {since:,})"
        )
        yield Finding("no-better-than-chance", "warning", message, f"if it stays so, {_ANOTHER_TRY}")
