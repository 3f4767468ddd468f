"""Measuring: a fine-tuned model on labelled examples, or a file of predictions without a model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from unmask.errors import InputError
from unmask.input_files import open_input, read_utf8_lines
from unmask.prediction import BATCH_TOKENS, WINDOW, load_predictor
from unmask.progress import Progress
from unmask.tasks.base import ExampleCounts
from unmask.tasks.classification import ClassificationModule, find_labels
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.examples import Example, Row, read_jsonl
from unmask.tasks.metrics import Confusion
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import check_name, open_task
from unmask.training.device import Compute

logger = logging.getLogger("unmask")


def evaluate(
    model: str | Path, data: str | Path, task: str | None = None, *, device: str = "auto", precision: str = "fp32"
) -> dict[str, Any]:
    """Measures a fine-tuned model on a file of labelled examples, in constant memory.

    Args:
        model: a model's directory, or that of the run that made it.
        data: `.tsv`, `.csv` or `.jsonl`, plain, `.gz` or `.zst`.
        task: the task or data set whose columns the file has; None takes the one that the model was trained on.
        device: `auto`, `cpu` or `cuda`.
        precision: `fp32`, `bf16` or `auto`.

    Returns:
        `{"task": name, "n": examples, "metrics": {name: value}}`.

    Raises:
        UserError: the model does not load, or the file cannot be read, or has a label that the model does not know.
    """
    predictor = load_predictor(model, task, device=device, precision=precision)
    counts, segments = ExampleCounts(), predictor.module.encoder.settings.type_vocab_size

    def windows(progress: Progress) -> Iterator[EncodedExamples]:
        examples = predictor.task.load(Path(data), counts)
        while window := list(islice(examples, WINDOW)):
            yield predictor.task.encode(window, predictor.tokenizer, counts, segments)
            progress.advance(len(window))

    with Progress("evaluating", unit="examples") as progress:
        _, score = measure(predictor.module, windows(progress), predictor.task.score(), predictor.compute)
    told = logging.WARNING if counts.truncated or counts.unlabelled or counts.empty else logging.INFO
    logger.log(told, "%s: %s", data, counts.summary())
    tell_constant(score, predictor.task.labels, str(data))
    return _figures(predictor.task.name, score)


@torch.no_grad()
def measure(
    module: ClassificationModule, windows: Iterable[EncodedExamples], score: Confusion, compute: Compute
) -> tuple[float, Confusion]:
    """Runs a module, in eval mode, over labelled examples.

    Args:
        windows: the examples, some at a time.
        score: is added to.

    Returns:
        The mean loss, and the score.
    """
    total = 0.0
    for window in windows:
        for _, batch in window.batches_by_length(BATCH_TOKENS[compute.device.type]):
            with compute.autocast():
                logits = module.logits(batch.to(compute.device)).float()
            labels = batch.columns["labels"]
            total += float(functional.cross_entropy(logits, labels.to(compute.device), reduction="sum"))
            score.add(labels.numpy(), logits.argmax(-1).cpu().numpy())
    return total / max(1, score.num_examples), score


def tell_constant(score: Confusion, labels: Sequence[str], name: str) -> None:
    """Warns where every prediction is the same: such a model tells nothing apart, whatever its accuracy says."""
    if score.only_prediction is not None:
        logger.warning(
            "%s: all %s predictions are %r, and not all labels are: the model tells nothing apart",
            name,
            f"{score.num_examples:,}",
            labels[score.only_prediction],
        )


def evaluate_predictions(
    predictions: str | Path,
    data: str | Path,
    task: str | None = None,
    columns: ColumnSettings = ColumnSettings(),  # noqa: B008  immutable
) -> dict[str, Any]:
    """Scores a file of predictions, as `predict` writes them, without a model.

    Args:
        predictions: JSON lines with a `label`, in the order of the examples.
        data: the labelled examples; those without an agreed label are left out, and so are their predictions.
        task: the id of the data set; None is `classification`.
        columns: of the examples, where they are not those of the data set.

    Returns:
        What `evaluate` returns.

    Raises:
        InputError: a file cannot be read, or they are not of the same examples; file and line are named.
    """
    task = task or "classification"
    check_name(task)
    classification = open_task(TaskSettings.model_validate({"name": task}), columns)
    if not classification.labels:
        predicted = _labels_of_predictions(predictions)
        true = find_labels(classification, Path(data))
        in_order = predicted if set(true) <= set(predicted) else tuple(sorted({*true, *predicted}))
        classification = replace(classification, labels=in_order)
    ids = {label: index for index, label in enumerate(classification.labels)}
    score = classification.score()
    examples = classification.load_all(Path(data))
    for example, prediction in zip_longest(examples, _read_predictions(predictions)):
        _check_match(example, prediction, predictions, data)
        if example.label is None:
            continue
        for label, source in ((example.label, example.source), (_label_of(prediction), prediction.source)):
            if label not in ids:
                raise InputError(f"{source}: the label {label!r} is none of {', '.join(ids)}: mend it")
        score.add(np.array([ids[example.label]]), np.array([ids[_label_of(prediction)]]))
    return _figures(task, score)


def _figures(task: str, score: Confusion) -> dict[str, Any]:
    return {"task": task, "n": score.num_examples, "metrics": score.metrics()}


def _read_predictions(path: str | Path) -> Iterator[Row]:
    with open_input(Path(path)) as file:
        yield from read_jsonl(read_utf8_lines(file, path), str(path))


def _labels_of_predictions(path: str | Path) -> tuple[str, ...]:
    """The labels that the predictions know, in the order of their probabilities where they have any, else sorted."""
    rows = _read_predictions(path)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{path}: there is nothing in it: expected one prediction a line")
    if isinstance(probabilities := first.fields.get("probabilities"), Mapping):
        return tuple(probabilities)
    return tuple(sorted({_label_of(row) for row in chain([first], rows)}))


def _label_of(prediction: Row) -> str:
    label = prediction.fields.get("label")
    if not isinstance(label, str):
        raise InputError(f'{prediction.source}: no "label" that is a string: expected a line of `unmask predict`')
    return label


def _check_match(example: Example | None, prediction: Row | None, predictions: str | Path, data: str | Path) -> None:
    if example is None or prediction is None:
        more, fewer = (data, predictions) if prediction is None else (predictions, data)
        raise InputError(f"{more} has more rows than {fewer}: expected one prediction for each example, in their order")
    shown = prediction.fields.get("input")
    if not isinstance(shown, Mapping):
        return
    for name, value in example.fields.items():
        if shown.get(name, value) != value:
            raise InputError(
                f"{prediction.source}: {name} is {str(shown[name])[:40]!r}, "
                f"and at {example.source} it is {str(value)[:40]!r}: "
                "expected the predictions of these examples, in their order"
            )
