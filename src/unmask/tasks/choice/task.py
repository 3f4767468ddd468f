"""Multiple choice: a softmax over the choices of an example, each scored from its own sequence (BERT, section 4.4).

A row is `[CLS] context [SEP] question choice [SEP]`: the question is beside the choice, as in RoBERTa (Liu et al. 2019,
section 5.3) and as the beginning of SWAG's second sentence is in BERT. For GPT-1 it ends the text before the delimiter
(Radford et al. 2018, section 3.3: document, question, delimiter, answer). A unit is the rows of one example, which has
two or more choices. A row that is too long loses the end of its context; a question and a choice are only cut where
`task.max_choice_length` is given, as RoBERTa does for RACE: here the end of the question first.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.batch import IGNORE_INDEX, Batch
from unmask.errors import InputError
from unmask.io.input_files import DataPath, files_of
from unmask.io.rows import Row
from unmask.models.encoder import Encoder
from unmask.tasks.auxiliary_lm import check_sees_no_next_token
from unmask.tasks.base import ExampleCounts, Prediction, Task
from unmask.tasks.choice.layouts import (
    DATA_SETS,
    ChoiceDataSet,
    ChoiceExample,
    ChoiceLayout,
    choose_choice_layout,
    read_choice,
)
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.kinds import TaskKind
from unmask.tasks.rows import naming, wrong_prediction
from unmask.tasks.sequence_module import SequenceModule, label_loss, new_task_head
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tokenization.opening import Tokenizer
from unmask.tokenization.tokenizer import EncodedInput, assemble

logger = logging.getLogger("unmask")

LONG_CHOICES = "with a question and a choice over task.max_choice_length: cut"

FEW_EXAMPLES = 20
"""In fewer examples the first choice may be wrong everywhere by chance."""


@dataclass(frozen=True)
class Choice(Task[ChoiceExample]):
    """The task.

    Attributes:
        settings: its name, lengths and dropout.
        layouts: the first that a row fits is used.
        columns: the user's settings for them.
    """

    settings: TaskSettings
    layouts: tuple[ChoiceLayout, ...]
    columns: ColumnSettings

    kind: ClassVar[TaskKind] = "choice"
    problem_type: ClassVar[None] = None
    per_token: ClassVar[bool] = False

    def fit_to(self, path: DataPath) -> Choice:
        """The task with the one layout that the file has."""
        return replace(self, layouts=(choose_choice_layout(self.layouts, next(self.load_rows(path))),))

    def load_rows(self, path: DataPath) -> Iterator[Row]:
        for file in files_of(path):
            yield from DATA_SETS.get(self.settings.name, ChoiceDataSet()).reader(file)

    def load(self, path: DataPath, counts: ExampleCounts, *, unlabelled: bool = False) -> Iterator[ChoiceExample]:
        """See `Task`; an example without a label is refused unless `unlabelled`."""
        for row in self.load_rows(path):
            example = read_choice(row, choose_choice_layout(self.layouts, row), needs_label=not unlabelled)
            yield self._counted_as_trained(example)

    def read(self, row: Row) -> ChoiceExample:
        return self._counted_as_trained(read_choice(row, choose_choice_layout(self.layouts, row), labelled=False))

    def _counted_as_trained(self, example: ChoiceExample) -> ChoiceExample:
        """Answers are counted as in the file that the model was trained on, whatever the layout of a row."""
        return replace(example, first=self.layouts[0].first_label)

    def encode(
        self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer, counts: ExampleCounts, num_segments: int = 2
    ) -> EncodedExamples:
        """See `Task`; a unit has the column `labels`, the number of the right choice."""
        contexts = tokenizer.encode_batch([example.context for example in examples], specials_in_text=True)
        ends_context, limit = _ends_with_extract(tokenizer), self.settings.max_choice_length
        apart = [example.question if ends_context or limit is not None else "" for example in examples]
        questions = tokenizer.encode_batch(apart, specials_in_text=True)
        continued = [
            f"{example.question} {choice}" if example.question and not ends_context else choice
            for example in examples
            for choice in example.choices
        ]
        choices = iter(tokenizer.encode_batch(continued, specials_in_text=True))
        behind_question = [choice for example in examples if example.question for choice in example.choices]
        num_empty = tokenizer.encode_batch(behind_question, specials_in_text=True).count([])
        kept: list[EncodedInput] = []
        for example, context, question in zip(examples, contexts, questions, strict=True):
            its = list(islice(choices, len(example.choices)))
            num_empty += 0 if example.question else its.count([])
            if not ends_context:  # the ids of a question begin those of the question with a choice
                pairs = [(choice[: len(question)], choice[len(question) :]) for choice in its]
            else:
                pairs = [(question, choice) for choice in its]
            over = [0 if limit is None else max(0, len(first) + len(second) - limit) for first, second in pairs]
            choice_rows = [self._row(example, context, *pair, tokenizer) for pair in pairs]
            counts.truncated += any(row.num_cut > its_over for row, its_over in zip(choice_rows, over, strict=True))
            counts.num_cut += max(row.num_cut for row in choice_rows)
            counts.note(LONG_CHOICES, any(over))
            kept += choice_rows
        counts.examples += len(examples)
        counts.note("choices without any token", num_empty)
        labels = [IGNORE_INDEX if example.label is None else example.label for example in examples]
        return EncodedExamples.from_lists(
            [row.input_ids for row in kept],
            [row.token_type_ids.count(0) if num_segments > 1 else len(row.input_ids) for row in kept],
            rows_of_units=[len(example.choices) for example in examples],
            unit_columns={"labels": np.array(labels, dtype=np.int64)},
        )

    def _row(
        self, example: ChoiceExample, context: list[int], question: list[int], choice: list[int], tokenizer: Tokenizer
    ) -> EncodedInput:
        """A row, with the end of the context cut off where it would be longer than `max_length`; question and choice
        are cut to `max_choice_length` before, and further where they alone are too long."""
        ends_context, limit = _ends_with_extract(tokenizer), self.settings.max_choice_length
        num_given = len(context) + len(question) + len(choice)

        def row_with(context: list[int]) -> EncodedInput:
            first, second = (context + question, choice) if ends_context else (context, question + choice)
            row = assemble(tokenizer.template, first, second, None)
            return replace(row, num_cut=num_given - len(first) - len(second))

        if limit is not None:
            question, choice = _shortened(question, choice, limit)
        row = row_with(context)
        excess = len(row.input_ids) - self.settings.max_length
        if excess <= 0:
            return row
        if not self.settings.truncation:
            raise InputError(
                f"{example.source}: {len(row.input_ids)} tokens, over task.max_length {self.settings.max_length}, and "
                "task.truncation is false: shorten the context, raise task.max_length, or allow truncation"
            )
        room = len(question) + len(choice) + len(context) - excess
        if limit is not None and 0 < room < len(question) + len(choice):
            question, choice = _shortened(question, choice, room)
            return row_with([])
        if excess > len(context):
            raise InputError(
                f"{example.source}: a choice and its question have {len(row.input_ids) - len(context)} tokens, special "
                f"ones included, and task.max_length is {self.settings.max_length}: only the context may be cut; "
                "shorten the choice, raise task.max_length, or let both be cut with task.max_choice_length"
            )
        return row_with(context[: len(context) - excess])

    def check(self, training: EncodedExamples, path: DataPath) -> None:
        """Warns if the right choice has the same number in every example: each choice is scored by itself, so a model
        can still learn, but accuracy says less."""
        places = np.unique(_labels_of(training))
        if len(places) == 1:
            number = places[0] + self.layouts[0].first_label
            logger.warning("%s: the right choice is number %d in every example: mix their order", path, number)
        elif places[0] == 1 and len(training) >= FEW_EXAMPLES:
            logger.warning(
                "%s: the first choice is never right: if choices are counted from 1, give %s",
                path,
                naming("first_choice", example="1"),
            )

    def module(self, encoder: Encoder, head: nn.Module | None = None) -> ChoiceModule:
        """See `Task`.

        Raises:
            SettingsError: next-token prediction is wanted of an encoder that is not causal or has no decoder for it.
        """
        lm_weight = self.settings.auxiliary_lm_weight
        check_sees_no_next_token(encoder, lm_weight)
        if head is None:
            head = new_task_head(self.head_kind, encoder, 1, self.settings)
        return ChoiceModule(encoder, head, label_loss, lm_weight)

    def decode(self, examples: Sequence[ChoiceExample], encoded: EncodedExamples, outputs: Tensor) -> list[Prediction]:
        """See `Task`; as `answer`."""
        return [answer(one, row[: len(one.choices)]) for one, row in zip(examples, outputs.float(), strict=True)]

    def score(self) -> ChoiceScore:
        return ChoiceScore()

    def floors(self, training: EncodedExamples, dev: EncodedExamples) -> dict[str, dict[str, float]]:
        most_frequent = np.bincount(_labels_of(training)).argmax()
        return {
            "accuracy": {
                "chance": float((1 / np.diff(dev.unit_bounds)).mean()),
                "most frequent position of train": float((_labels_of(dev) == most_frequent).mean()),
            }
        }

    def sample(self, example: ChoiceExample, prediction: Prediction) -> dict[str, Any]:
        choices = " ".join(f"({number}) {choice}" for number, choice in enumerate(example.choices, example.first))
        question = {"question": example.question} if example.question else {}
        return {
            "input": {"context": example.context, **question, "choices": choices},
            "label": None if example.label is None else str(example.first + example.label),
            "prediction": str(prediction["choice"]),
            "probability": prediction["probabilities"][prediction["choice"] - example.first],
        }


def _ends_with_extract(tokenizer: Tokenizer) -> bool:
    """Whether the token that represents a whole row is its last, as GPT-1's extract token is."""
    return assemble(tokenizer.template, [], [], None).input_ids[-1:] == [tokenizer.find_role("cls_token")]


def _shortened(question: list[int], choice: list[int], length: int) -> tuple[list[int], list[int]]:
    """A question and a choice cut to a length together: the end of the question, then that of the choice."""
    return question[: max(0, length - len(choice))], choice[:length]


def answer(example: ChoiceExample, scores: Tensor) -> Prediction:
    """What is predicted from one score for each choice, (choices,): `choice`, the number of the highest, counted as in
    the example's file, and `probabilities` in the order of the choices."""
    return {"choice": example.first + int(scores.argmax()), "probabilities": torch.softmax(scores, -1).tolist()}


def _labels_of(labelled: EncodedExamples) -> NDArray[np.int64]:
    return labelled.unit_columns["labels"].astype(np.int64)


class ChoiceModule(SequenceModule):
    """An encoder with one score for each sequence, compared within a unit by a softmax.

    The head maps (sequences, hidden) to (sequences, 1). The term `lm` is over every choice's sequence, as in GPT-1 on
    RACE and Story Cloze.
    """

    @property
    def paddings(self) -> None:
        """None: the number of choices of each unit is needed."""
        return

    def of_units(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(units, most choices of any unit), minus infinity where a unit has fewer."""
        bounds = batch.columns["unit_bounds"]  # always there: a unit has at least two rows
        sizes = bounds.diff()
        units = torch.arange(len(sizes), device=bounds.device)
        unit_of_row = torch.repeat_interleave(units, sizes, output_size=batch.num_sequences)
        place = torch.arange(batch.num_sequences, device=bounds.device) - bounds[unit_of_row]
        padded: Tensor = outputs.new_full((len(sizes), int(sizes.max())), -math.inf)
        return padded.index_put((unit_of_row, place), outputs.squeeze(-1))


class ChoiceScore:
    """Accuracy over all examples and over each group; unlabelled examples are ignored."""

    lower_is_better: ClassVar[frozenset[str]] = frozenset()
    reliability: ClassVar[None] = None

    def __init__(self) -> None:
        self._right: Counter[str | None] = Counter()
        self._all: Counter[str | None] = Counter()
        self._predicted: Counter[int] = Counter()
        self._labels: Counter[int] = Counter()

    @property
    def num_examples(self) -> int:
        return self._all.total()

    def add(self, examples: Sequence[ChoiceExample], predictions: Sequence[Mapping[str, Any]]) -> None:
        """Counts labelled examples and what was chosen."""
        for example, prediction in zip(examples, predictions, strict=True):
            chosen = _chosen(example, prediction)
            if example.label is None:
                continue
            self._all[example.group] += 1
            self._right[example.group] += chosen == example.first + example.label
            self._predicted[chosen] += 1
            self._labels[example.label] += 1

    def metrics(self) -> dict[str, float]:
        """`accuracy`, and `accuracy_<group>` of each group, such as RACE-m and RACE-h."""
        groups = sorted(group for group in self._all if group is not None)
        return {
            "accuracy": self._right.total() / max(1, self.num_examples),
            **{f"accuracy_{group}": self._right[group] / self._all[group] for group in groups},
        }

    def degenerate(self) -> str | None:
        if len(self._predicted) != 1 or len(self._labels) < 2:
            return None
        return f"all {self.num_examples:,} predictions are choice {next(iter(self._predicted))}"


def _chosen(example: ChoiceExample, prediction: Mapping[str, Any]) -> int:
    chosen, last = prediction.get("choice"), example.first + len(example.choices) - 1
    if type(chosen) is not int or not example.first <= chosen <= last:
        expected = f"the number of a choice, {example.first} to {last}"
        raise wrong_prediction(example.source, "choice", chosen, expected)
    return chosen


def open_task(settings: TaskSettings, columns: ColumnSettings, lenient: bool = False) -> Choice:
    """See `unmask.tasks.table.open_task`."""
    published = DATA_SETS.get(settings.name, ChoiceDataSet()).layout
    layouts = [_with_columns(published, columns)]
    if lenient:
        layouts += [_counted(published, columns), _counted(ChoiceLayout(), columns)]
    return Choice(settings, tuple(dict.fromkeys(layouts)), columns)


def _with_columns(layout: ChoiceLayout, columns: ColumnSettings) -> ChoiceLayout:
    if columns.context is not None:
        layout = replace(layout, context=(columns.context,))
    if columns.question is not None:
        layout = replace(layout, question=columns.question, needs_question=True)
    if columns.choices is not None:
        choices = columns.choices if isinstance(columns.choices, str) else tuple(columns.choices)
        layout = replace(layout, choices=choices)
    layout = _counted(layout, columns)
    return replace(layout, label=columns.label) if "label" in columns.model_fields_set else layout


def _counted(layout: ChoiceLayout, columns: ColumnSettings) -> ChoiceLayout:
    return layout if columns.first_choice is None else replace(layout, first_label=columns.first_choice)
