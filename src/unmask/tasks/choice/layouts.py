"""The layouts of multiple-choice files, and how their rows become examples.

Published: SWAG (Zellers et al. 2018), RACE (Lai et al. 2017), the Story Cloze Test (Mostafazadeh et al. 2016), CODAH
(Chen et al. 2019). Any other file names its columns: a context, perhaps a question, choices and the right one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.errors import ColumnError, InputError
from unmask.io.input_files import DataPath, InputFiles, as_files
from unmask.io.json_files import shown
from unmask.io.rows import Row
from unmask.io.tables import read_rows
from unmask.tasks.rows import checked_text, choose_layout, missing_column, naming


@dataclass(frozen=True)
class ChoiceExample:
    """A context with its choices.

    Attributes:
        context: the text that each choice continues; may be empty.
        question: comes before each choice; empty where there is none.
        choices: at least two, none of them empty.
        label: the number of the right choice, from 0; None if it is not known.
        group: a subset for which accuracy is also reported separately, such as RACE's level; None if there is none.
        fields: the whole row.
        source: where it is, as `path:line`.
        first: the number that means the first choice in its prediction.
    """

    context: str
    question: str
    choices: tuple[str, ...]
    label: int | None
    group: str | None
    fields: Mapping[str, Any]
    source: str
    first: int = 0

    @property
    def texts(self) -> tuple[str, ...]:
        """See `Example`."""
        return (self.context, self.question, *self.choices)


@dataclass(frozen=True)
class ChoiceLayout:
    """The columns of a file.

    Attributes:
        context: columns that are joined by spaces.
        choices: one column with a list of texts (a JSON list where cells hold text only), or the columns that hold one
            choice each.
        label: the column of the right choice: its number, or its text.
        question: the column of the text before each choice.
        needs_question: False if a row may lack that column.
        first_label: the number that means the first choice.
        letters: True if A may name the first choice, B for the second ...
        group: the column of `ChoiceExample.group`.
    """

    context: tuple[str, ...] = ("context",)
    choices: str | tuple[str, ...] = "choices"
    label: str = "label"
    question: str | None = "question"
    needs_question: bool = False
    first_label: int = 0
    letters: bool = True
    group: str | None = None

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that a row must have to fit."""
        choices = (self.choices,) if isinstance(self.choices, str) else self.choices
        question = (self.question,) if self.question is not None and self.needs_question else ()
        return (*self.context, *question, *choices)


def choose_choice_layout(layouts: Sequence[ChoiceLayout], row: Row) -> ChoiceLayout:
    """The first layout that the row fits; raises InputError if it fits none."""
    advice = (
        f"{naming('context', 'choices')}, where choices is the column of a list, or, where each choice has a column of "
        "its own, [choice_a,choice_b]"
    )
    return choose_layout(layouts, row, lambda layout: layout.needed, advice)


def read_choice(row: Row, layout: ChoiceLayout, *, labelled: bool = True, needs_label: bool = True) -> ChoiceExample:
    """Reads a row as an example.

    Args:
        row: has the columns that the layout needs.
        labelled: False does not look for a label.
        needs_label: False accepts a row without the column of the label; one that is there has to be filled in.

    Raises:
        InputError: a text is not a string, there are fewer than two choices, one is empty, or the label is missing, out
            of range, none of the choices, or fits two of them.
    """
    choices = _read_choices(row, layout)
    question = layout.question if layout.question is not None and layout.question in row else None
    group = row[layout.group] if layout.group is not None and layout.group in row else None
    return ChoiceExample(
        context=" ".join(checked_text(row[name], name, row.source) for name in layout.context),
        question="" if question is None else checked_text(row[question], question, row.source),
        choices=choices,
        label=_read_label(row, layout, choices, needs_label) if labelled else None,
        group=None if group is None else str(group),
        fields=row.fields,
        source=row.source,
        first=layout.first_label,
    )


def _read_choices(row: Row, layout: ChoiceLayout) -> tuple[str, ...]:
    if isinstance(layout.choices, str):
        values = _choices_in(row, layout.choices)
        names = [f"{layout.choices}[{number}]" for number in range(len(values))]
    else:
        names = list(layout.choices)
        values = [row[name] for name in names]
    if len(values) < 2:
        found = f"{len(values)} choice(s) in {layout.choices if isinstance(layout.choices, str) else ', '.join(names)}"
        raise InputError(f"{row.source}: {found}: expected at least two")
    choices = tuple(checked_text(value, name, row.source) for name, value in zip(names, values, strict=True))
    for name, choice in zip(names, choices, strict=True):
        if not choice.strip():
            raise InputError(f"{row.source}: the choice {name} is empty: fill it in, or take it out")
    return choices


def _choices_in(row: Row, name: str) -> list[Any]:
    value = row[name]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ColumnError(
                f'{row.source}: {name} is {value[:60]!r}: expected a JSON list of texts, such as ["a", "b"].',
                "Where each choice has a column of its own, name them: "
                f"{naming('choices', example='[choice_a,choice_b]')}",
            ) from error
    if not isinstance(value, list):
        raise InputError(f"{row.source}: {name} is {shown(value)}: expected a list of texts")
    return value


def _read_label(row: Row, layout: ChoiceLayout, choices: tuple[str, ...], needed: bool) -> int | None:
    """A number counts the choices from `first_label`; a string is the text of a choice, such a number, or a
    letter, A for the first choice."""
    if layout.label not in row:
        if needed:
            raise missing_column(row, [layout.label], "label", "label")
        return None
    value = row[layout.label]
    if value is None or value == "":
        raise InputError(f"{row.source}: the column {layout.label!r} is empty: fill it in, or take the row out")
    number = _number(value)
    by_number = None if number is None else number - layout.first_label
    by_text = [place for place, choice in enumerate(choices) if choice == value]
    if len(by_text) > 1 or (by_text and by_number is not None and by_text != [by_number]):
        raise InputError(
            f"{row.source}: the column {layout.label!r} holds {shown(value)}, which fits more than one of the choices "
            f"({shown(list(choices))}), as a text or as a number: give the right one's number from "
            f"{layout.first_label}, as a JSON number where the choices are numbers themselves"
        )
    if by_text:
        return by_text[0]
    if layout.letters and isinstance(value, str) and re.fullmatch("[A-Za-z]", value):
        by_number = ord(value.upper()) - ord("A")
    if by_number is None or not 0 <= by_number < len(choices):
        last = layout.first_label + len(choices) - 1
        raise InputError(
            f"{row.source}: the column {layout.label!r} holds {shown(value)}: expected the right choice's number, "
            f"{layout.first_label} to {last}, or its very text"
            + (
                f"; where choices are counted from 1, give {naming('first_choice', example='1')}"
                if by_number == len(choices) and not layout.first_label
                else ""
            )
        )
    return by_number


def _number(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if re.fullmatch("-?[0-9]{1,9}", value) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        return None
    return int(value)


# ---- Published data sets


CODAH_COLUMNS = ("category", "context", "choice_0", "choice_1", "choice_2", "choice_3", "label")
"""The columns of CODAH's `.tsv`, which has no header."""


def read_codah(path: DataPath) -> Iterator[Row]:
    """Rows of CODAH's `.tsv`: `category`, `context`, `choices`, `label`; rows of other files are unchanged.

    Raises:
        InputError: see `read_rows`.
    """
    for row in read_rows(path, header=CODAH_COLUMNS):
        if tuple(row.fields) == CODAH_COLUMNS:
            category, context, *choices, label = row.fields.values()
            number = int(label) if label in ("0", "1", "2", "3") else label  # not matched with the choices' texts
            row = Row({"category": category, "context": context, "choices": choices, "label": number}, row.source)
        yield row


LEVELS = ("middle", "high")
"""The levels of RACE, with which its ids and folders begin."""


def read_race(path: DataPath) -> Iterator[Row]:
    """One row a question of RACE: `id`, `level`, `context`, `question`, `choices`, `label`.

    Args:
        path: the folder of a split, with `middle/*.txt` and `high/*.txt` (or one of the two), a file from there, or one
            that `read_rows` reads. A `.txt` is one JSON object: an article with its questions. Rows of other files are
            such objects too, or one question each, with the published field names or those above.

    Raises:
        InputError: a file cannot be read, there is no file, no article has a question, or an article's lists do not
            match.
    """
    empty = True
    for row in _race_objects(path):
        empty &= row.fields.get("questions") == []
        if "questions" in row.fields:
            yield from _questions_of_article(row)
        elif "article" in row.fields or "options" in row.fields:
            yield _question(row.fields, row)
        else:
            yield row
    if empty:
        raise InputError(f"{path}: there is not a single question in it: expected articles with questions")


def _race_objects(path: DataPath) -> Iterator[Row]:
    given = as_files(path)
    if not given.path.is_dir() and given.suffixes[0] != ".txt":
        yield from read_rows(path)
        return
    files = sorted(given.path.rglob("*.txt")) if given.path.is_dir() else [given.path]
    if not files:
        raise InputError(f"{path}: no .txt file in this folder: expected RACE's middle/*.txt and high/*.txt")
    for file in files:
        text = "".join(line for _, line in InputFiles((file,), given.settings).lines())
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{file}: not JSON ({error}): expected one object, an article of RACE") from error
        if not isinstance(fields, dict):
            raise InputError(f"{file}: expected a JSON object, an article of RACE; found {shown(fields)}")
        yield Row({"level": _level(file.parent.name), **fields}, f"{file}:1")


def _questions_of_article(row: Row) -> Iterator[Row]:
    lists = {name: row.fields.get(name) for name in ("questions", "options", "answers")}
    for name, values in lists.items():
        if not isinstance(values, list) or len(values) != len(lists["questions"] or []):
            raise InputError(
                f"{row.source}: {name} is {shown(values)}: expected a list as long as questions, as RACE is published"
            )
    for number, (question, options, answer) in enumerate(zip(*lists.values(), strict=True)):
        fields = {name: value for name, value in row.fields.items() if name not in lists}
        if "id" in fields:
            fields["id"] = f"{fields['id']}-{number}"
        yield _question(
            {**fields, "question": question, "options": options, "answer": answer},
            Row(row.fields, f"{row.source}, question {number + 1}"),
        )


def _question(fields: Mapping[str, Any], row: Row) -> Row:
    for name in ("article", "question", "options"):
        if name not in fields:
            raise InputError(
                f"{row.source}: no field {name!r}: expected article, question, options and answer (or, of a whole "
                f"article, questions, options and answers), as RACE is published; there is {', '.join(fields)}"
            )
    identifier = fields.get("id", fields.get("example_id"))
    level = fields.get("level") or _level(str(identifier))
    return Row(
        {
            **({} if identifier is None else {"id": identifier}),
            **({} if level is None else {"level": level}),
            "context": fields["article"],
            "question": fields["question"],
            "choices": fields["options"],
            "label": _number_of_letter(fields.get("answer"), row),
        },
        row.source,
    )


def _level(name: str) -> str | None:
    return next((level for level in LEVELS if name.startswith(level)), None)


def _number_of_letter(letter: Any, row: Row) -> int | None:
    if letter is None or letter == "":
        return None
    if not isinstance(letter, str) or len(letter) != 1 or not "A" <= letter <= "Z":
        raise InputError(f"{row.source}: the answer is {shown(letter)}: expected a letter, A for the first option")
    return ord(letter) - ord("A")


@dataclass(frozen=True)
class ChoiceDataSet:
    """A published data set.

    Attributes:
        layout: the layout of the rows that `reader` yields.
        reader: reads its files.
    """

    layout: ChoiceLayout = ChoiceLayout()
    reader: Callable[[DataPath], Iterator[Row]] = read_rows


DATA_SETS: dict[str, ChoiceDataSet] = {
    # Two consecutive captions; the beginning of the second, `sent2`, is shared by all choices.
    "swag": ChoiceDataSet(
        ChoiceLayout(("sent1",), ("ending0", "ending1", "ending2", "ending3"), question="sent2", needs_question=True)
    ),
    "race": ChoiceDataSet(ChoiceLayout(needs_question=True, group="level"), read_race),
    "storycloze": ChoiceDataSet(
        ChoiceLayout(
            ("InputSentence1", "InputSentence2", "InputSentence3", "InputSentence4"),
            ("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"),
            "AnswerRightEnding",
            question=None,
            first_label=1,
        )
    ),
    "codah": ChoiceDataSet(ChoiceLayout(letters=False), read_codah),
}
