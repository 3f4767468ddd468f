"""From rows to questions with answers: which are learned and measured, and how those that do not fit are reported."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from unmask.errors import InputError
from unmask.io.input_files import DataPath
from unmask.io.rows import Row
from unmask.tasks.base import ExampleCounts
from unmask.tasks.qa.answer_places import find_answer
from unmask.tasks.qa.examples import (
    GivenAnswer,
    QaColumns,
    QaExample,
    choose_columns,
    given_answers,
    gold_texts,
    read_question,
    refuse_empty,
    says_impossible,
)
from unmask.tasks.qa.squad import QaDataSet
from unmask.tasks.rows import missing_column
from unmask.tasks.settings import TaskSettings

logger = logging.getLogger("unmask")

DROPPED_ANSWERS = "answers that are not in their passage: left out"
UNFOUND = "answers that are not in their passage: scored, but not part of the loss"
DROPPED_QUESTIONS = "questions of whose answers none is in the passage: left out"
WITHOUT_ANSWER = "documents whose first words do not hold the answer: left out"
SAME_ID = "questions with the id of another"

_LISTED = 5
"""How many misplaced answers are reported one by one."""


@dataclass(frozen=True)
class LabelledQuestions:
    """How labelled questions are read.

    Attributes:
        settings: of the task: `unanswerable`, None if it may be, and `drop_unfound_answers`.
        layouts: the sets of columns to look for.
        data_set: the kind of files.
    """

    settings: TaskSettings
    layouts: tuple[QaColumns, ...]
    data_set: QaDataSet

    def read(
        self, rows: Iterable[Row], path: DataPath, counts: ExampleCounts, *, training: bool, unlabelled: bool = False
    ) -> Iterator[QaExample]:
        """Streams labelled examples.

        Memory: for training about 100 bytes per question, to count repeated ids; otherwise constant from
        the first question on whose answer is known.

        Args:
            path: for messages.
            training: True refuses answers that are not in their passage, or leaves them out; False keeps their
                questions, which can still be scored, and notes them.
            unlabelled: True also yields questions without known answers, with `answers` None.

        Raises:
            InputError: a question, passage or answer is missing or empty, training answers are not in their passage,
                or no question is labelled; places are named.
        """
        unfound: list[str] = []
        ids: set[int] = set()  # hashes
        any_impossible = any_labelled = any_left = False
        waiting: list[QaExample] = []  # for the first label: a file without any is refused before a model reads it
        for row in rows:
            example, given = self._labelled(row, unlabelled)
            any_impossible |= says_impossible(row)
            if training and example.id is not None:
                counts.note(SAME_ID, hash(example.id) in ids)
                ids.add(hash(example.id))
            if given is None:
                any_left = True
                yield example
                continue
            if not given and self.settings.unanswerable is False:
                counts.note(WITHOUT_ANSWER)
                continue
            any_labelled |= bool(given)
            places = [find_answer(example.context, text, start) for text, start in given]
            answers = tuple((place.start, place.end) for place in places if place is not None)
            for place in places:
                if place is not None and place.repaired is not None:
                    counts.note(place.repaired)
            if not training:
                counts.note(UNFOUND, places.count(None))
                any_left = True
                waiting.append(replace(example, answers=answers if answers or not given else None))
                if any_labelled or any_impossible or unlabelled:
                    yield from waiting
                    waiting.clear()
                continue
            unfound += [
                f"{text!r} of {example.source}" for (text, _), place in zip(given, places, strict=True) if place is None
            ]
            if unfound and not self.settings.drop_unfound_answers:
                continue  # the rest is only read to report all of them
            counts.note(DROPPED_ANSWERS, places.count(None))
            if given and not answers:
                counts.note(DROPPED_QUESTIONS)
                continue
            any_left = True
            yield replace(example, answers=answers)
        self._report(unfound, path)
        if not (any_labelled or any_impossible or unlabelled):
            raise InputError(
                f"{path}: not a single question has an answer, or says with is_impossible that it has none: "
                "nothing to learn or to measure; a file without answers is for `unmask predict`"
            )
        if not any_left:
            raise InputError(f"{path}: no question is left, since none has its answer in its passage: fix the answers")

    def golds(self, rows: Iterable[Row]) -> Iterator[QaExample]:
        """Streams the examples without looking up their answers in the passage: `answers` is None."""
        for row in rows:
            yield self._labelled(row, unlabelled=False)[0]

    def _labelled(self, row: Row, unlabelled: bool) -> tuple[QaExample, list[GivenAnswer] | None]:
        """A question with its right answers, and the answers as given; None for these if an expected one is missing."""
        columns = choose_columns(self.layouts, row)
        example, given = read_question(row, columns), given_answers(row, columns)
        if given is None and not unlabelled:
            raise missing_column(row, [columns.answers], "answers", "answers")
        if given is None or (unlabelled and not given and self.settings.unanswerable is False):
            return example, None
        if given or self.settings.unanswerable is not False:
            refuse_empty(example)
        elif self.data_set.without_answer == "refuse":
            raise InputError(
                f"{row.source}: the question has no answer, and in {self.settings.name} every question has one: take "
                "it out, or name a task where passages may hold none (task.name=squad2, or task.unanswerable=true)"
            )
        return replace(example, gold_texts=gold_texts(row, given, self.data_set.aliases_only)), given

    def _report(self, unfound: list[str], path: DataPath) -> None:
        if not unfound:
            return
        listed = "; ".join(unfound[:_LISTED]) + (" ..." if len(unfound) > _LISTED else "")
        if self.settings.drop_unfound_answers:
            logger.warning("%s: %d answers are not in their passage and left out: %s", path, len(unfound), listed)
            return
        raise InputError(
            f"{path}: {len(unfound):,} {'answer is' if len(unfound) == 1 else 'answers are'} not in the passage, or "
            f"its place is not certain: {listed}. Expected a text that the passage holds, with answer_start the number "
            "of characters before it; fix them, or leave them out with task.drop_unfound_answers=true"
        )
