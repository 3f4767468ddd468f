"""From rows to questions about a passage, with the answers that it holds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.errors import InputError
from unmask.io.json_files import shown
from unmask.io.rows import Row, find_field
from unmask.tasks.rows import checked_text, choose_layout, naming
from unmask.tasks.settings import ColumnSettings

Answer = tuple[int, int]
"""Where an answer begins and ends in its passage, in characters."""


@dataclass(frozen=True)
class QaExample:
    """A question about a passage.

    Attributes:
        id: None if it has none.
        question: may be empty for prediction.
        context: the passage, likewise.
        answers: those in the passage, of which the first is learned; empty if the passage holds none; None if
            that is not known.
        gold_texts: every right answer as given, whether or not it is in the passage; empty if there is no answer; None
            if that is not known.
        fields: the whole row.
        source: where it is.
    """

    id: str | None
    question: str
    context: str
    answers: tuple[Answer, ...] | None
    gold_texts: tuple[str, ...] | None
    fields: Mapping[str, Any]
    source: str

    @property
    def texts(self) -> tuple[str, ...]:
        """See `Example`."""
        return (self.question, self.context)


@dataclass(frozen=True)
class QaColumns:
    """Names of the columns of a file."""

    question: str = "question"
    context: str = "context"
    answers: str = "answers"
    id: str = "id"

    @classmethod
    def named(cls, columns: ColumnSettings) -> QaColumns:
        """The user's names, and the usual ones for the rest."""
        given = columns.model_dump(include={"question", "context", "answers", "id"}, exclude_none=True)
        return cls(**given)


_PYTHON = re.compile(r"""\s*(\{\s*'|\[\s*\{\s*'|\[\s*'.*'\s*\]\s*$|(array|\w*Array)\()""", re.DOTALL)
"""A dictionary, a list or an array as Python prints it."""

GivenAnswer = tuple[str, int | None]
"""A text, and its offset or None."""


def choose_columns(layouts: Sequence[QaColumns], row: Row) -> QaColumns:
    """The first layout whose question and passage the row has.

    Raises:
        InputError: none fits; names the missing columns and those there are.
    """
    return choose_layout(
        layouts, row, lambda columns: (columns.question, columns.context), naming("question", "context")
    )


def read_question(row: Row, columns: QaColumns) -> QaExample:
    """A question without its answers.

    Raises:
        InputError: the question, the passage or the id is of the wrong type.
    """
    identity = find_field(row.fields, columns.id)
    if isinstance(identity, bool) or not isinstance(identity, str | int | None):
        raise InputError(f"{row.source}: {columns.id} is {shown(identity)}: expected a text or a number")
    return QaExample(
        id=None if identity is None else str(identity),
        question=checked_text(row[columns.question], columns.question, row.source),
        context=checked_text(row[columns.context], columns.context, row.source),
        answers=None,
        gold_texts=None,
        fields=row.fields,
        source=row.source,
    )


def refuse_empty(example: QaExample) -> None:
    """Raises InputError if the question or the passage of a labelled example is empty."""
    for what, text in (("question", example.question), ("passage", example.context)):
        if not text or text.isspace():
            raise InputError(f"{example.source}: the {what} is empty: fill it in, or take the row out")


def given_answers(row: Row, columns: QaColumns) -> list[GivenAnswer] | None:
    """The answers as given in a row, not yet looked up in the passage.

    The forms are `{"text": [...], "answer_start": [...]}` as in Hugging Face's data sets,
    `[{"text": ..., "answer_start": ...}]` as in SQuAD's files, or plain texts, of which the first takes the offset in
    the column `answer_start`, if any. In a table the first two forms are written as JSON.

    Returns:
        An empty list if there is no answer, None if the row does not have the column.

    Raises:
        InputError: they are of another form, contradict `is_impossible`, or an answer is empty.
    """
    if columns.answers not in row:
        return [] if says_impossible(row) else None
    value = row[columns.answers]
    if isinstance(value, str) and _PYTHON.match(value) and value not in str(row[columns.context]):
        raise InputError(
            f"{row.source}: {columns.answers} is {value[:60]!r}, as Python prints it: expected JSON in the cell of a "
            'table, such as {"text": ["..."], "answer_start": [0]} (json.dumps writes it), or the text of one answer'
        )
    answers = _answers_in(row, columns.answers, _unpacked(value))
    if answers and says_impossible(row):
        raise InputError(
            f"{row.source}: is_impossible is true, and yet the question has the answer {answers[0][0]!r}: "
            "take one of them out"
        )
    for text, _ in answers:
        if not text or text.isspace():
            raise InputError(
                f"{row.source}: an answer of {columns.answers} is empty: expected a text, or an empty list where the "
                "passage holds no answer"
            )
    return answers


def gold_texts(row: Row, given: Sequence[GivenAnswer], aliases_only: bool = False) -> tuple[str, ...]:
    """Every right answer, without repetitions: the given ones, then TriviaQA's `aliases` (`aliases_only`: these alone,
    where there are any); other columns of that name are ignored."""
    aliases = row.fields.get("aliases")
    texts = [text for text, _ in given]
    if isinstance(aliases, list) and all(isinstance(text, str) for text in aliases):
        texts = [*(() if aliases_only and aliases else texts), *aliases]
    return tuple(dict.fromkeys(texts))


def says_impossible(row: Row) -> bool:
    """Whether a row says that its passage holds no answer."""
    value = row.fields.get("is_impossible")
    return value is True or (isinstance(value, str) and value.lower() in ("true", "1"))


def _unpacked(value: Any) -> Any:
    """The list or object that a table cell holds as JSON, else the value itself: an answer may begin with a bracket."""
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return value
    try:
        held = json.loads(value)
    except (ValueError, RecursionError):
        return value
    is_object = isinstance(held, dict) and "text" in held
    is_list = isinstance(held, list) and all(isinstance(each, str | dict) for each in held)
    return held if is_object or is_list else value


def _answers_in(row: Row, name: str, value: Any) -> list[GivenAnswer]:
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [(checked_text(value, name, row.source), _offset(row, row.fields.get("answer_start")))]
    if isinstance(value, Mapping):
        texts, starts = value.get("text"), value.get("answer_start")
        if isinstance(texts, str):
            texts, starts = [texts], [starts]
        starts = [None] * len(texts) if starts is None and isinstance(texts, list) else starts
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise InputError(
                f"{row.source}: {name} is {shown(value)}: expected as many entries of answer_start as of text"
            )
        pairs = list(zip(texts, starts, strict=True))
    elif isinstance(value, list):
        pairs = [
            (each.get("text"), each.get("answer_start")) if isinstance(each, Mapping) else (each, None)
            for each in value
        ]
    else:
        pairs = [(value, None)]
    for text, _ in pairs:
        if not isinstance(text, str):
            raise InputError(
                f'{row.source}: {name} is {shown(value)}: expected {{"text": [...], "answer_start": [...]}}, or a text'
            )
    return [(checked_text(text, name, row.source), _offset(row, start)) for text, start in pairs]


def _offset(row: Row, value: Any) -> int | None:
    if value is None or value == "":
        return None
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d+\s*", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(
            f"{row.source}: answer_start is {shown(value)}: expected the number of characters before the answer"
        )
    return value
