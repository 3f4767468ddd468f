"""Measuring a fine-tuned model on labelled examples."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.inference.example_sets import counted_in
from unmask.inference.predictor import Predictor, load_predictor
from unmask.inference.task_options import NOTHING_SAID, Columns
from unmask.io.input_files import DataPath, as_files
from unmask.io.progress import Progress
from unmask.tasks.base import ExampleCounts, Score, Task, chosen_last, positive_label, share_with_interval
from unmask.tasks.text.metrics import LabelSetScore, warn_of_unmeasured

logger = logging.getLogger("unmask")


def evaluate(
    model: str | Path | Predictor,
    data: str | DataPath,
    task: str | None = None,
    columns: Columns = NOTHING_SAID,
    *,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
    precision: str | None = None,
) -> dict[str, Any]:
    """Measures a fine-tuned model, or an ensemble, on a file of labelled examples, in constant memory.

    The file is read twice, first to check it and to count its examples; standard input is read once.

    Args:
        model: the directory of a model, of the run that made it or of an ensemble, or a `Predictor` from
            `unmask.load_predictor`.
        data: `.tsv`, `.csv`, `.jsonl`, `.json` or `.parquet`, or a data set's published layout.
        task: the task or data set whose layout the file has; None takes the one that the model was trained on. A
            `Predictor` has its own.
        columns: of the examples, where they are not those that the model remembers, such as `{"label": "gold"}`; see
            `unmask.tasks.settings.ColumnSettings`.
        settings: of the task by name, such as `{"max_length": 256}`, in place of those that the model remembers.
        device: `auto` (None), `cpu` or `cuda`; a loaded model has its own.
        precision: `fp32` (None) or `bf16`; likewise.

    Returns:
        `{"task": name, "n": examples, "metrics": {name: value}}`, and `positive_label` where the metric `f1` is that of
        the second of two labels; `expected_calibration_error` of labels, in 0..1, over 15 ranges of certainty;
        `accuracy_interval` of labels and choices: the `low` and the `high` end of Wilson's, of 95 %, for other examples
        of the same source.

    Raises:
        UserError: the model does not load, or the file cannot be read or has a label that the model does not know, or a
            column or setting does not apply here.
    """
    data = as_files(data)
    loaded = load_predictor(model, task, device=device, precision=precision)
    predictor = loaded.with_options(columns, settings, "evaluate")
    total = None
    if data.can_be_read_again:
        with Progress("looking through the examples", unit="examples") as progress:
            total = sum(1 for _ in progress.counting(predictor.task.load(data, ExampleCounts())))
    counts = ExampleCounts()
    score = score_file(predictor, data, counts, total)
    counts.log(data)
    warn_of_figures(score, data)
    return named_figures(predictor.task, score)


def score_file(predictor: Predictor, data: DataPath, counts: ExampleCounts, total: int | None = None) -> Score[Any]:
    """The score of a model's answers to the examples of a file; raises InputError if the task cannot read it.

    Args:
        counts: updated.
        total: how many examples it has, if known.
    """
    score, examples = predictor.task.score(), predictor.task.load(data, counts)
    with Progress("evaluating", total, unit="examples") as progress:
        for part in predictor.sets(examples, counts, str(data)):
            score.add(part.examples, predictor.decide(part, counted_in(len(part.examples), progress.advance)))
    return score


def warn_of_figures(score: Score[Any], data: object) -> None:
    """Warns of what makes figures misleading: the same answer to every example, or labels that no example has."""
    warn_if_degenerate(score, str(data))
    if isinstance(score, LabelSetScore):
        warn_of_unmeasured(score.label_counts, data)


def warn_if_degenerate(score: Score[Any], name: str) -> None:
    """Warns if every prediction is the same: such a model distinguishes nothing, whatever its figures say."""
    fault = score.degenerate()
    if fault is not None:
        logger.warning("%s: %s: the model gives every example the same answer", name, fault)


def accuracy_interval(task: Task[Any], metrics: Mapping[str, float], number: int) -> dict[str, dict[str, float]]:
    """`accuracy_interval`, where the task has an accuracy over `number` examples."""
    if not number or task.per_token or "accuracy" not in metrics:
        return {}
    _, low, high = share_with_interval(round(number * metrics["accuracy"]), number).tolist()
    return {"accuracy_interval": {"low": low, "high": high}}


def named_figures(task: Task[Any], score: Score[Any]) -> dict[str, Any]:
    """What `evaluate` returns."""
    metrics, number = chosen_last(score.metrics()), score.num_examples
    figures: dict[str, Any] = {"task": task.settings.name, "n": number, "metrics": metrics}
    figures |= accuracy_interval(task, metrics, number)
    if score.reliability is not None and score.reliability.num_decisions:
        figures["expected_calibration_error"] = score.reliability.error
    positive = positive_label(task)
    return figures if positive is None else {**figures, "positive_label": positive}
