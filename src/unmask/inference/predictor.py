"""Predictions of a fine-tuned model, one input after another, in constant memory and in the order of the inputs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.errors import ModelError, OutputError
from unmask.inference.abstaining import ALWAYS, Abstaining
from unmask.inference.answer_lines import Answered, answer_lines, beside_input
from unmask.inference.ensemble import check_members, read_chosen, read_members
from unmask.inference.example_sets import MOST_EXAMPLES, STREAMED, ExampleSet, counted_in, encode_sets, run_module
from unmask.inference.inputs import having_field, read_task_inputs, rows_in_memory
from unmask.inference.onnx_model import OnnxModule
from unmask.inference.opening import Opened, attach_tokenizer, freeze, open_model, refuse_options
from unmask.inference.task_options import NOTHING_SAID, Columns, Use, adjusted_task, as_columns, check_task_settings
from unmask.io.input_files import DataPath, as_files
from unmask.io.paths import HEAD_WEIGHTS, as_path, check_writable, is_onnx
from unmask.io.progress import Advance, Progress, not_shown
from unmask.io.rows import Row
from unmask.io.writing import refuse_inputs_inside, writing
from unmask.models.hub.uses import FINE_TUNED, check_segments
from unmask.models.hub.weight_names import fill_weights, own_names
from unmask.tasks.base import Example, ExampleCounts, Prediction, Task, TaskModule
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.qa.examples import QaExample
from unmask.tasks.recorded import recorded_task
from unmask.tasks.table import recall_task
from unmask.tokenization.opening import Tokenizer
from unmask.training.device import Compute

logger = logging.getLogger("unmask")


@dataclass(frozen=True)
class Predictor:
    """A fine-tuned model, or an ensemble, ready to answer.

    Attributes:
        task: what it was trained for.
        module: encoder and head, in eval mode, on the device.
        tokenizer: of the model.
        compute: device and precision.
        others: the other members of an ensemble. One that has the very same `tokenizer` reads what the first one does;
            any other reads the examples in its own tokens.
        trained_length: the longest sequence that the model has seen; None: as long as it has positions.
        ignores_segments: True: every token is segment 0, as `transformers` reads a model that it has fine-tuned with a
            tokenizer that gives none.
    """

    task: Task[Any]
    module: TaskModule
    tokenizer: Tokenizer
    compute: Compute
    others: tuple[Predictor, ...] = ()
    trained_length: int | None = None
    ignores_segments: bool = False

    def __repr__(self) -> str:
        return f"Predictor(task={self.task.settings.name!r}, tokenizer={self.tokenizer}, others={len(self.others)})"

    @property
    def num_segments(self) -> int:
        """How many segments its inputs have."""
        known = self.module.encoder.settings.type_vocab_size
        return min(known, 1) if self.ignores_segments else known

    def reads_other_tokens_than(self, other: Predictor) -> bool:
        """Whether the same example is not the same ids and segments to both."""
        return (self.tokenizer.fingerprint(), self.num_segments) != (other.tokenizer.fingerprint(), other.num_segments)

    def predict_rows(self, rows: Iterable[Row], advance: Advance = not_shown) -> Iterator[dict[str, Any]]:
        """Predictions for rows that hold the texts the model reads; see `predict`.

        Args:
            advance: called after each batch, with its number of inputs, in fractions.
        """
        counts = ExampleCounts()
        examples = self.task.read_all(rows)
        most = STREAMED if self.compute.device.type == "cpu" else MOST_EXAMPLES
        for part in self.sets(examples, counts, most=most):
            yield from self.answer(part, counted_in(len(part.examples), advance))
        counts.log("inputs")

    def encode(self, examples: Sequence[Example], counts: ExampleCounts) -> EncodedExamples:
        """What the model reads of some examples of its task; see `Task.encode`."""
        return self.task.encode(examples, self.tokenizer, counts, self.num_segments)

    def sets(
        self, examples: Iterable[Example], counts: ExampleCounts, name: str = "inputs", most: int = MOST_EXAMPLES
    ) -> Iterator[ExampleSet]:
        """The same of a stream, set by set; see `encode_sets`."""
        device = self.compute.device
        return encode_sets(self.task, examples, self.tokenizer, counts, self.num_segments, name, device, most)

    def answer(self, part: ExampleSet, advance: Advance = not_shown) -> list[dict[str, Any]]:
        """For each example of a set that was encoded with `tokenizer`, what `predict` yields."""
        predictions = self.task.decode(part.examples, part.encoded, self.outputs(part, advance))
        pairs = zip(part.examples, predictions, strict=True)
        return [beside_input(example.fields, self.task.id_column, prediction) for example, prediction in pairs]

    def decide(self, part: ExampleSet, advance: Advance = not_shown) -> list[Prediction]:
        """For each example of such a set, what its score needs of a prediction; see `Task.decide`."""
        return self.task.decide(part.examples, part.encoded, self.outputs(part, advance))

    @torch.inference_mode()
    def outputs(self, part: ExampleSet, advance: Advance = not_shown) -> Tensor:
        """See `run_module`, of a set that was encoded with `tokenizer`; an ensemble's are combined as its task
        says."""
        advance = counted_in(1 / (1 + len(self.others)), advance)
        outputs = [run_module(self.task, self.module, part.encoded, self.compute, advance=advance)]
        for member in self.others:
            read = part.encoded
            if member.tokenizer is not self.tokenizer:
                read = member.encode(part.examples, ExampleCounts())
            outputs.append(run_module(member.task, member.module, read, member.compute, advance=advance))
        return self.task.combine(outputs) if self.others else outputs[0]

    def with_options(
        self, columns: Columns = NOTHING_SAID, settings: Mapping[str, Any] | None = None, use: Use = "predict"
    ) -> Predictor:
        """The same model with a user's options for its task; see `unmask.inference.task_options`.

        Args:
            columns: the columns of texts and labels, in place of what the model remembers.
            settings: of the task by name, such as `{"max_length": 256}`, in place of those that the model remembers.
            use: what the model is used for.

        Raises:
            SettingsError: a column or setting is unknown, does not apply here, or is out of range.
        """
        check_task_settings(settings or {}, use)
        num_positions = self.module.encoder.settings.num_positions
        task = adjusted_task(self.task, columns, settings or {}, num_positions)
        if self.trained_length is not None and task.settings.max_length > max(
            self.trained_length, self.task.settings.max_length
        ):
            logger.warning(
                "task.max_length is %s, and the model has seen no sequence over %s: its positions beyond are untrained",
                task.settings.max_length,
                self.trained_length,
            )
        return replace(
            self, task=task, others=tuple(member.with_options(columns, settings, use) for member in self.others)
        )


def load_predictor(
    model: str | Path | Predictor, task: str | None = None, *, device: str | None = None, precision: str | None = None
) -> Predictor:
    """Loads a fine-tuned model.

    Args:
        model: the directory of a model (one that `transformers` fine-tuned, too), of the run that made it, or of an
            ensemble; a loaded one is returned as it is.
        task: a task's name, if it is not the one that the model was trained on.
        device: `auto` (None), `cpu` or `cuda`; a loaded model has its own.
        precision: `fp32` (None) or `bf16`; likewise.

    Raises:
        ModelError: there is no such model, it has no head, or it does not load.
        SettingsError: no such task, device or precision, or one of them for a loaded model.
    """
    if isinstance(model, Predictor):
        refuse_options(model, task=task, device=device, precision=precision)
        return model
    place = as_path(model)
    members = read_members(place)
    if any(map(is_onnx, members or ())):
        device = "cpu"
    if members is not None:
        check_members(members)
    opened = [open_model(each, FINE_TUNED, device=device, precision=precision) for each in members or [place]]
    first, *others = (predictor_of(each, task) for each in opened)
    if members is None:
        return first
    its_task = first.task.together([first.task, *(its.task for its in others)], read_chosen(place))
    for number, (member, its) in enumerate(zip(members[1:], others, strict=True)):
        if not its.reads_other_tokens_than(first):
            attach_tokenizer(its.module.encoder, first.tokenizer, member)
            others[number] = replace(its, tokenizer=first.tokenizer)
    return replace(first, task=its_task, others=tuple(others))


def predictor_of(opened: Opened, task: str | None = None) -> Predictor:
    """The same of a fine-tuned model that is open; `task` as for `load_predictor`."""
    directory, loaded, tokenizer, compute = opened.directory, opened.loaded, opened.tokenizer, opened.compute
    try:
        recalled = recall_task(loaded, task)
    except ModelError as error:
        raise ModelError(f"{directory}/{error}") from error
    module: Any = recalled.module(loaded.encoder, loaded.head)
    is_foreign = not recorded_task(loaded.config)
    ignores_segments = is_foreign and not tokenizer.reads_words and not tokenizer.gives_segments
    if is_foreign and not ignores_segments:
        check_segments(loaded.encoder.settings, directory)
    if is_onnx(directory):
        module = OnnxModule(module, directory)
    else:
        if loaded.head_weights is not None:
            fill_weights([module.head], own_names(module.head), loaded.head_weights, directory / HEAD_WEIGHTS, ())
        module = module.to(compute.device).eval()
        compute = freeze(module, compute)  # the head may be the task's own
    return Predictor(
        recalled, module, tokenizer, compute, trained_length=loaded.trained_length, ignores_segments=ignores_segments
    )


def predict(
    model: str | Path | Predictor,
    rows: Iterable[Mapping[str, Any] | str],
    *,
    columns: Columns = NOTHING_SAID,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
    precision: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Predicts what a model was fine-tuned for: labels, values, answers, choices or tags.

    Args:
        model: a model's directory, that of the run that made it, or a `Predictor` from `unmask.load_predictor`.
        rows: inputs, read as they are needed: with the columns that the model was trained on, or the usual ones of its
            task (`text`; `text_a` and `text_b`; `question` and `context`; `context` and `choices`; `tokens`); whatever
            else they hold is kept. A string is a `text`.
        columns: of the inputs, where they are others, such as `{"text": "review"}`.
        settings: of the task by name, such as `{"max_length": 256}`, in place of those that the model remembers.
        device, precision: as for `load_predictor`.

    Yields:
        For each input, in order, `{"input": {...}, ...}` with what the task decodes, such as `label`, `score` and
        `probabilities`, and its `id` where it has one. They are computed as they are read, once: `list(...)` keeps
        them.

    Raises:
        UserError: the model does not load, a column or setting does not apply here, or an input lacks its text or is
            too long for a model that does not cut.
    """
    inputs = rows_in_memory(rows)
    predictor = load_predictor(model, device=device, precision=precision).with_options(columns, settings)
    return predictor.predict_rows(_with_id(inputs, columns))


def predict_file(
    model: str | Path | Predictor,
    path: str | DataPath,
    *,
    columns: Columns = NOTHING_SAID,
    settings: Mapping[str, Any] | None = None,
    abstaining: Abstaining = ALWAYS,
    format: str | None = None,
    advance: Advance = not_shown,
    answered: Answered | None = None,
) -> Iterator[dict[str, Any]]:
    """`predict` for the inputs of a file or of standard input (`-`); errors name the line.

    Args:
        columns, settings: see `Predictor.with_options`.
        abstaining: what is done with predictions that the model is not sure of.
        format: see `unmask.inference.inputs.read_inputs`.
        advance: as for `Predictor.predict_rows`.
        answered: counts the inputs as their answers are taken, unless `abstaining` keeps some only.

    Raises:
        InputError: see `read_inputs`; or plain texts were given to a model for pairs.
        SettingsError: see `with_options`, `Abstaining.check` and `read_inputs`.
    """
    predictor = load_predictor(model).with_options(columns, settings)
    abstaining.check(predictor.task)
    rows = _rows(predictor, path, columns, format)
    if answered is None or abstaining.most_uncertain is not None:
        return abstaining(predictor.predict_rows(rows, advance), predictor.task)
    return answered.answering(abstaining(predictor.predict_rows(answered.reading(rows), advance), predictor.task))


def _rows(predictor: Predictor, path: str | DataPath, columns: Columns, format: str | None) -> Iterator[Row]:
    return _with_id(read_task_inputs(path, predictor.task, format), columns)


def _with_id(rows: Iterator[Row], columns: Columns) -> Iterator[Row]:
    column = as_columns(columns).id
    return rows if column is None else having_field(rows, column)


def write_predictions(
    model: str | Path | Predictor,
    path: str | DataPath,
    out: str | Path,
    *,
    columns: Columns = NOTHING_SAID,
    settings: Mapping[str, Any] | None = None,
    abstaining: Abstaining = ALWAYS,
    format: str | None = None,
    overwrite: bool = False,
    device: str | None = None,
    precision: str | None = None,
) -> Path:
    """`predict_file` into a file, which appears only when everything is answered.

    Inputs are read twice, first to check and to count them; standard input is read once.

    Args:
        out: `.jsonl`, one object per line; `.csv`, a row per input (`unmask.inference.answer_lines`); or `.json`, one
            object `{id: answer}`, as SQuAD's scorers read the answers to questions.
        overwrite: True replaces an existing file.
        columns, settings, abstaining, format: as for `predict_file`.
        device, precision: as for `load_predictor`.

    Returns:
        `out`.

    Raises:
        UserError: as `predict_file`; or `out` has another suffix or exists, or `{id: answer}` is requested and an input
            is not a question or has no id of its own.
    """
    out = Path(out)
    if out.suffix not in (".jsonl", ".csv", ".json"):
        raise OutputError(
            f"{out}: expected a name that ends in .jsonl (an object a line) or .csv, or for answers to questions in "
            ".json ({id: answer})"
        )
    check_writable(out, overwrite)
    refuse_inputs_inside(out, as_files(path).paths)
    predictor = load_predictor(model, device=device, precision=precision)
    if out.suffix == ".json" and predictor.task.kind != "qa":
        raise OutputError(
            f"{out}: .json is {{id: answer}}, for answers to questions, and the model's task is "
            f"{predictor.task.settings.name}: name the file .jsonl"
        )
    predictor = predictor.with_options(columns, settings)
    abstaining.check(predictor.task)
    total, decided = None, abstaining.for_table if out.suffix == ".csv" else abstaining
    if as_files(path).can_be_read_again:
        total = _survey(predictor, _rows(predictor, path, columns, format), out.suffix)
    with Progress("predicting", total, unit="inputs") as progress, writing(out, overwrite) as file:
        answers = predictor.predict_rows(_rows(predictor, path, columns, format), progress.advance)
        for line in answer_lines(decided(answers, predictor.task), out.suffix):
            # A lone surrogate, in a field that no model reads, is written as its JSON escape.
            file.write(f"{line}\n".encode("utf-8", "backslashreplace"))
    return out


def _survey(predictor: Predictor, rows: Iterator[Row], suffix: str) -> int:
    """How many inputs there are; one that the model cannot take, or whose answer could not be written, is refused now,
    not after hours of predicting."""
    task, counts = predictor.task, ExampleCounts()

    def unanswered() -> Iterator[dict[str, Any]]:
        for part in predictor.sets(task.read_all(rows), counts):
            for example in part.examples:
                unknown = {"id": example.id, "answer": ""} if isinstance(example, QaExample) else {}
                yield beside_input(example.fields, task.id_column, unknown)
            progress.advance(len(part.examples))

    with Progress("looking through the inputs", unit="inputs") as progress:
        for _ in answer_lines(unanswered(), suffix):
            pass
    return counts.examples
