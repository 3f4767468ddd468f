"""Predictions of a fine-tuned model, one input after another, in constant memory and in the order of the inputs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from unmask.errors import InputError, ModelError
from unmask.input_files import open_input, read_utf8_lines, split_suffixes
from unmask.models.hub import load_classifier
from unmask.paths import model_directory
from unmask.tasks.base import ExampleCounts
from unmask.tasks.classification import Classification, ClassificationModule
from unmask.tasks.examples import Row, choose_columns, read_example, read_jsonl, read_rows
from unmask.tasks.table import recall_task
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer
from unmask.training.device import Compute, choose_compute

logger = logging.getLogger("unmask")

WINDOW = 4096
"""Inputs that are read, sorted by length, and put back in order at a time."""
BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}
"""Tokens in a batch, by the type of device; more are no faster, and take more memory."""


@dataclass(frozen=True)
class Predictor:
    """A fine-tuned model, ready to answer.

    Attributes:
        task: what it was trained for.
        module: encoder and classifier, in eval mode, on the device.
        tokenizer: of the model.
        compute: device and precision.
    """

    task: Classification
    module: ClassificationModule
    tokenizer: TextTokenizer
    compute: Compute

    @torch.inference_mode()
    def __call__(self, rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
        """Predictions of rows that hold the model's texts; see `predict`."""
        counts = ExampleCounts()
        iterator = iter(rows)
        while window := list(islice(iterator, WINDOW)):
            yield from self._predict_window(window, counts)
        if counts.truncated:
            logger.warning(
                "%s of %s inputs were longer than %s tokens and were cut",
                f"{counts.truncated:,}",
                f"{counts.examples:,}",
                self.task.max_length,
            )

    def _predict_window(self, rows: list[Row], counts: ExampleCounts) -> list[dict[str, Any]]:
        layouts = self.task.layouts
        examples = [read_example(row, choose_columns(layouts, row), labelled=False) for row in rows]
        encoded = self.task.encode(examples, self.tokenizer, counts, self.module.encoder.settings.type_vocab_size)
        predictions: list[dict[str, Any]] = [{}] * len(rows)
        for indices, batch in encoded.batches_by_length(BATCH_TOKENS[self.compute.device.type]):
            with self.compute.autocast():
                logits = self.module.logits(batch.to(self.compute.device))
            for index, prediction in zip(indices.tolist(), self.task.decode(logits), strict=True):
                predictions[index] = prediction
        id_name = layouts[0].id or "id"
        return [
            {**({"id": row.fields[id_name]} if id_name in row.fields else {}), "input": dict(row.fields), **prediction}
            for row, prediction in zip(rows, predictions, strict=True)
        ]


def load_predictor(
    model: str | Path, task: str | None = None, *, device: str = "auto", precision: str = "fp32"
) -> Predictor:
    """Loads a fine-tuned model.

    Args:
        model: a model's directory, or that of the run that made it; one that `transformers` fine-tuned will do.
        task: a task's name where it is another one than the model was trained on.
        device: `auto`, `cpu` or `cuda`.
        precision: `fp32`, `bf16` or `auto`.

    Raises:
        ModelError: there is no such model, it has no classifier, or it does not load.
        SettingsError: no such task or device.
    """
    directory = model_directory(model)
    compute = choose_compute(device, precision)
    loaded = load_classifier(directory)
    assert loaded.classifier is not None
    assert loaded.labels is not None
    assert loaded.config is not None
    if len(loaded.labels) < 2 or loaded.problem_type not in (None, "single_label_classification"):
        raise ModelError(
            f"{directory}: a model for {loaded.problem_type or 'regression'} with {len(loaded.labels)} output(s): "
            "expected one that chooses among labels"
        )
    tokenizer = load_tokenizer(directory)
    if tokenizer.vocab_size > loaded.encoder.settings.vocab_size:
        raise ModelError(f"{directory}: the tokenizer has more entries than the model: they do not belong together")
    recalled = recall_task(loaded.config, loaded.labels, loaded.encoder.settings.max_position_embeddings, task)
    module = ClassificationModule(loaded.encoder, loaded.classifier).to(compute.device).eval()
    return Predictor(recalled, module, tokenizer, compute)


def predict(
    model: str | Path | Predictor, rows: Iterable[Mapping[str, Any]], *, device: str = "auto", precision: str = "fp32"
) -> Iterator[dict[str, Any]]:
    """Predicts the labels of texts.

    Args:
        model: a model's directory, that of the run that made it, or a loaded `Predictor`.
        rows: inputs, read as they are needed: with the columns that the model was trained on, or with `text`, or with
            `text_a` and `text_b`; whatever else they hold is kept.
        device: `auto`, `cpu` or `cuda`.
        precision: `fp32`, `bf16` or `auto`.

    Yields:
        For each input, in order, `{"input": {...}, "label", "score", "probabilities": {label: p}}`, and its `id` where
        it has one.

    Raises:
        UserError: the model does not load, or an input lacks its text or is too long for a model that cuts nothing.
    """
    predictor = model if isinstance(model, Predictor) else load_predictor(model, device=device, precision=precision)
    numbered = (Row(row, f"input {number}") for number, row in enumerate(rows, start=1))
    return predictor(numbered)


def predict_file(
    model: str | Path | Predictor, path: str | Path, *, device: str = "auto", precision: str = "fp32"
) -> Iterator[dict[str, Any]]:
    """`predict` for the inputs of a file or of standard input (`-`); errors name the line.

    Raises:
        InputError: see `read_inputs`; or plain texts were given to a model for pairs.
    """
    predictor = model if isinstance(model, Predictor) else load_predictor(model, device=device, precision=precision)
    rows = read_inputs(path)
    if not predictor.task.is_pair:
        return predictor(rows)
    return predictor(_refuse_plain_texts(rows, predictor))


def _refuse_plain_texts(rows: Iterator[Row], predictor: Predictor) -> Iterator[Row]:
    names = predictor.task.layouts[0].texts
    for row in rows:
        if isinstance(row, PlainText):
            raise InputError(
                f"{row.source}: a plain text, but this model reads pairs: expected .tsv or .csv with the columns "
                f'{names[0]} and {names[1]}, or JSON lines such as {{"text_a": "...", "text_b": "..."}}'
            )
        yield row


@dataclass(frozen=True)
class PlainText(Row):
    """A line that is a text and nothing else; its one field is `text`."""


def read_inputs(path: str | Path) -> Iterator[Row]:
    """Streams the inputs of a file.

    Args:
        path: `.tsv` or `.csv` with a header, `.jsonl`, or `.txt` with one text a line, each plain, `.gz` or `.zst`;
            `-` is standard input: JSON lines if its first line that is not blank begins with `{`, else one text a line.

    Raises:
        InputError: the file is missing, of another kind, damaged, empty, not UTF-8, or a row does not fit.
    """
    if str(path) == "-":
        yield from _not_empty(_read_stream(read_utf8_lines(sys.stdin.buffer, "standard input")), "standard input")
    elif split_suffixes(Path(path))[0] == ".txt":
        with open_input(Path(path)) as file:
            yield from _not_empty(_read_texts(read_utf8_lines(file, path), str(path)), str(path))
    else:
        yield from read_rows(Path(path))


def _read_texts(lines: Iterable[tuple[int, str]], name: str) -> Iterator[Row]:
    for number, line in lines:
        yield PlainText({"text": line.rstrip("\r\n")}, f"{name}:{number}")


def _read_stream(lines: Iterator[tuple[int, str]]) -> Iterator[Row]:
    blank: list[tuple[int, str]] = []
    for number, line in lines:
        if not line.isspace():
            read = read_jsonl if line.lstrip().startswith("{") else _read_texts
            yield from read(chain([] if read is read_jsonl else blank, [(number, line)], lines), "standard input")
            return
        blank.append((number, line))


def _not_empty(rows: Iterator[Row], name: str) -> Iterator[Row]:
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise InputError(f"{name}: there is nothing in it: expected inputs")
