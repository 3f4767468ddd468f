"""Extractive question answering: where in a passage an answer begins and ends (BERT, sections 4.2 and 4.3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from unmask.batch import IGNORE_INDEX
from unmask.errors import InputError, SettingsError
from unmask.io.input_files import DataPath, files_of
from unmask.io.rows import Row
from unmask.models.encoder import Encoder
from unmask.models.heads.answerability import AnswerabilityHead
from unmask.models.heads.heads import Classifier, DeepClassifier
from unmask.tasks.base import ExampleCounts, Prediction, Score, Task
from unmask.tasks.cutting import SpannedText, fit_tokenizer
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.kinds import TaskKind
from unmask.tasks.qa.decoding import decode_answers
from unmask.tasks.qa.examples import QaColumns, QaExample, choose_columns, given_answers, read_question
from unmask.tasks.qa.metrics import QaScore, compare
from unmask.tasks.qa.module import QaModule
from unmask.tasks.qa.reading import LabelledQuestions
from unmask.tasks.qa.squad import DATA_SETS, PLAIN, QaDataSet
from unmask.tasks.qa.windows import encode_questions, holds_answer
from unmask.tasks.sequence_module import new_task_head
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tokenization.opening import Tokenizer

_SHOWN_AROUND = 100
"""How many characters of a passage a sample shows on either side of the answer."""


@dataclass(frozen=True)
class QaTask(Task[QaExample]):
    """The task.

    Attributes:
        settings: its name, lengths and thresholds; `unanswerable` is None until a file was seen.
        layouts: the sets of columns to look for; the first that a row has is used.
        columns: the user's settings for them.
        data_set: how its files are laid out and measured.
    """

    settings: TaskSettings
    layouts: tuple[QaColumns, ...]
    columns: ColumnSettings
    data_set: QaDataSet

    kind: ClassVar[TaskKind] = "qa"
    problem_type: ClassVar[None] = None
    per_token: ClassVar[bool] = True

    def fit_to(self, path: DataPath) -> QaTask:
        """The task with the columns that the file has, and whether it holds a question without an answer.

        Raises:
            SettingsError: answerability is to be learned of a task whose questions all have an answer.
            InputError: or from a file in which they do.
        """
        rows = self.load_rows(path)
        fitted = replace(self, layouts=(choose_columns(self.layouts, next(rows)),))
        rows.close()  # type: ignore[attr-defined]  # a generator
        learns_it, may_have_none = self.settings.answerability, self.settings.unanswerable
        if learns_it and may_have_none is False:
            raise SettingsError(
                "task.answerability learns which questions have no answer, and task.unanswerable is false, as for "
                "squad1, korquad1, triviaqa and mrqa: leave it out"
            )
        if may_have_none is not None and not learns_it:
            return fitted
        every = self.load_rows(path)
        has_unanswered = any(given_answers(row, choose_columns(fitted.layouts, row)) == [] for row in every)
        if learns_it and not has_unanswered:
            raise InputError(
                f"{path}: every question has an answer, and task.answerability learns which have none: leave it out, "
                "or give a training file with such questions"
            )
        return fitted.with_settings(unanswerable=has_unanswered)

    def load_rows(self, path: DataPath) -> Iterator[Row]:
        for file in files_of(path):
            yield from self.data_set.reader(file)

    def load(self, path: DataPath, counts: ExampleCounts, *, unlabelled: bool = False) -> Iterator[QaExample]:
        """See `Task`; answers that are not in their passage are kept, since measuring needs only texts."""
        return self._labelled().read(self.load_rows(path), path, counts, training=False, unlabelled=unlabelled)

    def load_training(self, path: DataPath, counts: ExampleCounts) -> Iterator[QaExample]:
        """See `Task`. Training needs the place of an answer: answers that are not in their passage are refused (all in
        one error, at the end of the file), or left out and counted if the settings say so."""
        return self._labelled().read(self.load_rows(path), path, counts, training=True)

    def load_golds(self, path: DataPath) -> Iterator[QaExample]:
        """The questions of a file with their right answers as given, whether or not they are in the passage."""
        return self._labelled().golds(self.load_rows(path))

    def _labelled(self) -> LabelledQuestions:
        return LabelledQuestions(self.settings, self.layouts, self.data_set)

    def read(self, row: Row) -> QaExample:
        return read_question(row, choose_columns(self.layouts, row))

    def encode(
        self, examples: Sequence[QaExample], tokenizer: Tokenizer, counts: ExampleCounts, num_segments: int = 2
    ) -> EncodedExamples:
        """See `Task` and `unmask.tasks.qa.windows.encode_questions`; a unit is a window.

        Raises:
            SettingsError: a question leaves no room for its passage.
        """
        return encode_questions(examples, tokenizer, self.settings, counts, num_segments)

    def fit_tokenizer(self, tokenizer: Tokenizer, examples: Sequence[QaExample], path: DataPath) -> Tokenizer:
        """See `unmask.tasks.cutting`."""
        texts = list(self.spans(examples))
        return fit_tokenizer(tokenizer, texts, "answers", path, is_cut=self.settings.cut_pieces)

    def spans(self, examples: Iterable[QaExample]) -> Iterator[SpannedText]:
        """The answers of labelled examples that are learnt: the first of each."""
        for example in examples:
            if example.answers:
                yield SpannedText(example.context, example.answers[:1], example.source)

    def check(self, training: EncodedExamples, path: DataPath) -> None:
        """See `Task`: at least one window must hold an answer."""
        if not holds_answer(training).any():
            raise InputError(
                f"{path}: not a single window of a passage holds an answer: there is nothing to learn; give questions "
                "with answers, or a longer task.max_length"
            )

    def module(self, encoder: Encoder, head: nn.Module | None = None) -> QaModule:
        if head is None:
            head = new_task_head(self.head_kind, encoder, 2, self.settings)
        if self.settings.answerability and isinstance(head, Classifier | DeepClassifier):
            head = AnswerabilityHead(head, encoder.settings)
        return QaModule(encoder, head)

    def decode(self, examples: Sequence[QaExample], encoded: EncodedExamples, outputs: Tensor) -> list[Prediction]:
        """See `Task` and `unmask.tasks.qa.decoding.decode_answers`."""
        return decode_answers(examples, encoded, outputs.float().numpy(), self.settings)

    def combine(self, outputs: Sequence[Tensor]) -> Tensor:
        """See `Task`: the sum of the logits."""
        return torch.stack(list(outputs)).sum(0)

    def score(self) -> QaScore:
        return QaScore(self.data_set.normalisation, self.settings.unanswerable)

    def tuned(self, score: Score[QaExample]) -> QaTask:
        """The task with the threshold that gives the highest F1; unchanged if the user set one, or if the task has no
        questions without an answer."""
        if not self.settings.unanswerable or self.settings.null_threshold is not None:
            return self
        assert isinstance(score, QaScore)
        return self.with_settings(null_threshold=score.best_null_threshold())

    def together(self, tasks: Sequence[Task[QaExample]], chosen: Mapping[str, Any]) -> QaTask:
        """See `Task`: with the sum of the members' thresholds, since the scores of spans add up, if none was chosen."""
        thresholds = [task.settings.null_threshold for task in tasks]
        if chosen and None not in thresholds:  # they have none if loaded for another data set
            return self.with_settings(**chosen)
        return self.with_settings(null_threshold=sum(threshold or 0.0 for threshold in thresholds))

    def floors(self, training: EncodedExamples, dev: EncodedExamples) -> dict[str, dict[str, float]]:
        """See `Task`: never answering, if questions may have no answer; else a random span of an example's rows."""
        firsts = np.unique(dev.examples, return_index=True)[1]  # units
        if self.settings.unanswerable:
            # An answer whose place is unknown still counts as an answer.
            answered = holds_answer(dev) | (dev.unit_columns["start_positions"] == IGNORE_INDEX)
            share = {"never answering": 100 * float((~np.logical_or.reduceat(answered, firsts)).mean())}
            return {"best_f1": share, "exact": share, "f1": share}
        tokens = np.add.reduceat(dev.lengths, firsts)
        width = np.minimum(tokens, self.settings.max_answer_length)
        spans = tokens * width - width * (width - 1) // 2
        return {"exact_match": {"a random span": 100 * float((1 / spans).mean())}}

    def sample(self, example: QaExample, prediction: Prediction) -> dict[str, Any]:
        """See `Task`; the label is the right answer that was given, else the first, and the passage what stands
        around it."""
        golds, given, normalisation = example.gold_texts, prediction["answer"], self.data_set.normalisation
        found = [gold for gold in golds or () if compare(given, (gold,), normalisation)[0]]
        label = "(no answer)" if golds is None else next(iter((*found, *golds)), "(no answer)")
        passage = _around(example.context, given if golds is None else label)
        best = prediction["n_best"][0]["probability"] if prediction["n_best"] else None
        return {
            "input": {"question": example.question, "context": passage},
            "label": None if golds is None else label,
            "prediction": given or "(no answer)",
            "probability": best if given else prediction["no_answer_probability"],
            "correct": None if golds is None else bool(compare(given, golds, normalisation)[0]),
        }

    def remembered(self) -> dict[str, Any]:
        bilstm = {"bilstm_size": self.settings.bilstm_size} if self.settings.encoder_top == "bilstm" else {}
        return super().remembered() | bilstm


def open_task(settings: TaskSettings, columns: ColumnSettings, lenient: bool = False) -> QaTask:
    """See `unmask.tasks.table.open_task`."""
    data_set = DATA_SETS.get(settings.name, PLAIN)
    if settings.unanswerable is None:
        settings = settings.model_copy(update={"unanswerable": data_set.unanswerable})
    layouts = [QaColumns.named(columns), *([QaColumns()] if lenient or data_set is not PLAIN else [])]
    return QaTask(settings, tuple(dict.fromkeys(layouts)), columns, data_set)


def _around(passage: str, answer: str) -> str:
    """The part of a passage around an answer; its beginning where the answer is not there."""
    place = max(0, passage.find(answer))
    first, end = max(0, place - _SHOWN_AROUND), place + len(answer) + _SHOWN_AROUND
    return f"{'…' if first else ''}{passage[first:end]}{'…' if end < len(passage) else ''}"
