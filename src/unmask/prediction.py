"""Predictions of a fine-tuned model, one input after another, in constant memory and in the order of the inputs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from unmask.ensemble import EnsembleModule, check_members, read_members, read_null_threshold
from unmask.errors import InputError, ModelError
from unmask.inference import Window, predict_window, window_size, windows
from unmask.input_files import open_input, read_utf8_lines, split_suffixes
from unmask.models.hub import load_finetuned
from unmask.paths import model_directory
from unmask.tasks.base import Example, ExampleCounts, Task, TaskModule
from unmask.tasks.classification import Classification
from unmask.tasks.multi_label import MultiLabelClassification
from unmask.tasks.qa import QaTask
from unmask.tasks.regression import Regression
from unmask.tasks.rows import Row, read_jsonl, read_rows
from unmask.tasks.table import recall_task
from unmask.tasks.tag_schemes import split_tag
from unmask.tasks.tagging import Tagging
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer
from unmask.training.device import Compute, choose_compute

logger = logging.getLogger("unmask")


@dataclass(frozen=True)
class Predictor:
    """A fine-tuned model, or an ensemble, ready to answer.

    Attributes:
        task: what it was trained for.
        module: encoder and head, in eval mode, on the device.
        tokenizer: of the model.
        compute: device and precision.
    """

    task: Task[Any]
    module: TaskModule
    tokenizer: TextTokenizer
    compute: Compute

    @property
    def num_segments(self) -> int:
        """Segments that the encoder tells apart."""
        return self.module.encoder.settings.type_vocab_size

    def __call__(self, rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
        """Predictions of rows that hold the model's texts; see `predict`."""
        counts = ExampleCounts()
        for window in windows(self.task.read_all(rows), window_size(self.task)):
            yield from self._predict_examples(window, counts)
        if counts.anything_mended:
            logger.warning("inputs: %s", counts.summary())

    def _predict_examples(self, examples: Sequence[Example], counts: ExampleCounts) -> Iterator[dict[str, Any]]:
        id_name = self.task.id_column
        encoded = self.task.encode(examples, self.tokenizer, counts, self.num_segments)
        predictions = predict_window(self.task, self.module, Window(examples, encoded), self.compute)
        for example, prediction in zip(examples, predictions, strict=True):
            kept = {"id": example.fields[id_name]} if id_name in example.fields else {}
            yield {**kept, "input": dict(example.fields), **prediction}


def load_predictor(
    model: str | Path, task: str | None = None, *, device: str = "auto", precision: str = "fp32"
) -> Predictor:
    """Loads a fine-tuned model.

    Args:
        model: a model's directory, or that of the run that made it; one that `transformers` fine-tuned will do, and so
            will the directory of an ensemble.
        task: a task's name where it is another one than the model was trained on.
        device: `auto`, `cpu` or `cuda`.
        precision: `fp32`, `bf16` or `auto`.

    Raises:
        ModelError: there is no such model, it has no head, or it does not load.
        SettingsError: no such task or device.
    """
    compute = choose_compute(device, precision)
    members = read_members(Path(model))
    if members is None:
        return _load_one(model_directory(model), task, compute)
    check_members(members)
    loaded = [_load_one(member, task, compute) for member in members]
    its_task = _task_of_all([predictor.task for predictor in loaded], read_null_threshold(Path(model)))
    module = EnsembleModule(its_task, [predictor.module for predictor in loaded]).eval()
    return Predictor(its_task, module, loaded[0].tokenizer, compute)


def _task_of_all(tasks: Sequence[Task[Any]], together: float | None) -> Task[Any]:
    """The members' task; for question answering with the threshold that was chosen for all `together`, or, where none
    was, the sum of theirs, since the scores of spans add up."""
    first = tasks[0]
    if not isinstance(first, QaTask):
        return first
    thresholds = [task.null_threshold for task in tasks if isinstance(task, QaTask)]
    if together is not None and None not in thresholds:  # recalled for another data set, they have none
        return replace(first, null_threshold=together)
    return replace(first, null_threshold=sum(threshold or 0.0 for threshold in thresholds))


def _load_one(directory: Path, task: str | None, compute: Compute) -> Predictor:
    loaded = load_finetuned(directory)
    try:
        recalled = recall_task(loaded, task)
    except ModelError as error:
        raise ModelError(f"{directory}/{error}") from error
    tokenizer = load_tokenizer(directory)
    if tokenizer.vocab_size > loaded.encoder.settings.vocab_size:
        raise ModelError(f"{directory}: the tokenizer has more entries than the model: they do not belong together")
    module: Any = recalled.module(loaded.encoder, loaded.head)
    if loaded.head_weights is not None:
        module.head.load_state_dict(loaded.head_weights)
    return Predictor(recalled, module.to(compute.device).eval(), tokenizer, compute)


def predict(
    model: str | Path | Predictor, rows: Iterable[Mapping[str, Any]], *, device: str = "auto", precision: str = "fp32"
) -> Iterator[dict[str, Any]]:
    """Predicts what a model was fine-tuned for: labels, values, answers, choices or tags.

    Args:
        model: a model's directory, that of the run that made it, or a loaded `Predictor`.
        rows: inputs, read as they are needed: with the columns that the model was trained on, or the usual ones of its
            task (`text`; `text_a` and `text_b`; `question` and `context`; `context` and `choices`; `tokens`); whatever
            else they hold is kept.
        device: `auto`, `cpu` or `cuda`.
        precision: `fp32`, `bf16` or `auto`.

    Yields:
        For each input, in order, `{"input": {...}, ...}` with what the task decodes, such as `label`, `score` and
        `probabilities`, and its `id` where it has one.

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
    task = predictor.task

    def is_published(line: str) -> bool:
        return _fits_published_txt(task, line)

    return predictor(_fitting(read_inputs(path, task.load_rows, is_published), task))


def _fits_published_txt(task: Task[Any], line: str) -> bool:
    """Whether a `.txt` that begins with a line is one that the task's data set publishes."""
    if isinstance(task, TextTask):
        if task.files.txt_format == ".jsonl":
            return line.startswith("{")
        names = line.split("\t")
        fits = any(set(columns.texts) <= set(names) for columns in task.files.layouts)
        return task.files.txt_format is not None and len(names) > 1 and fits
    if isinstance(task, Tagging) and task.data_set is not None:
        words = line.split()
        has_columns = len(words) == 2 or (len(words) > 2 and "\t" in line)
        return line.startswith(("-DOCSTART-", "##")) or (has_columns and split_tag(words[-1]) is not None)
    return False


def _fitting(rows: Iterator[Row], task: Task[Any]) -> Iterator[Row]:
    """The rows; a plain text is refused where the task reads something else."""
    wanted: tuple[str, ...] | None = WANTED.get(task.kind)
    if isinstance(task, TextTask) and task.is_pair:
        wanted = task.files.columns.texts
    for row in rows:
        if isinstance(row, PlainText) and wanted is not None:
            names = " and ".join(wanted)
            raise InputError(
                f"{row.source}: a plain text, but this model reads {names if task.kind in WANTED else 'pairs'}: "
                f"expected JSON lines, .tsv or .csv with {names}"
            )
        yield row


TextTask = Classification | MultiLabelClassification | Regression
"""Tasks of one text or two."""
WANTED = {"qa": ("question", "context"), "choice": ("context", "choices")}
"""What is read by tasks that no plain text is enough for."""


@dataclass(frozen=True)
class PlainText(Row):
    """A line that is a text and nothing else; its one field is `text`."""


def read_inputs(
    path: str | Path,
    load_rows: Callable[[Path], Iterator[Row]] = read_rows,
    is_published_txt: Callable[[str], bool] | None = None,
) -> Iterator[Row]:
    """Streams the inputs of a file.

    Args:
        path: `.txt` with one text a line (unless it is published so), plain, `.gz` or `.zst`, or what `load_rows`
            reads; `-` is standard input: JSON lines if its first line that is not blank begins with `{`, else one text
            a line.
        load_rows: a task's own reader; else tables and JSON lines.
        is_published_txt: tells of a `.txt` by its first line that is not blank whether `load_rows` reads it.

    Raises:
        InputError: the file is missing, of another kind, damaged, empty, not UTF-8, or a row does not fit.
    """
    if str(path) == "-":
        yield from _not_empty(_read_stream(read_utf8_lines(sys.stdin.buffer, "standard input")), "standard input")
    elif split_suffixes(Path(path))[0] == ".txt" and not (is_published_txt and is_published_txt(_first_line(path))):
        with open_input(Path(path)) as file:
            yield from _not_empty(_read_texts(read_utf8_lines(file, path), str(path)), str(path))
    else:
        yield from load_rows(Path(path))


def _first_line(path: str | Path) -> str:
    with open_input(Path(path)) as file:
        lines = (line.rstrip("\r\n") for _, line in read_utf8_lines(file, path))
        return next((line for line in lines if line.strip()), "")


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
