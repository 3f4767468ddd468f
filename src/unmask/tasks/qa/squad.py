"""Files of questions about passages in their published form: SQuAD 1.1 and 2.0, KorQuAD 1.0, KLUE-MRC; and tables.

Rajpurkar et al. 2016 and 2018, Lim et al. 2019, Park et al. 2021. The files of TriviaQA and MRQA are different
(`unmask.tasks.qa.triviaqa`, `unmask.tasks.qa.mrqa`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from unmask.errors import InputError
from unmask.io.input_files import DataPath, as_files
from unmask.io.json_files import begins_as_list, load_list, shown
from unmask.io.rows import Row
from unmask.io.tables import read_rows
from unmask.tasks.qa.mrqa import read_mrqa
from unmask.tasks.qa.triviaqa import read_triviaqa


def read_questions(path: DataPath) -> Iterator[Row]:
    """Streams the questions of a `.json` in SQuAD's layout, or the rows of a table or of a `.json` that is a list.

    Raises:
        InputError: the file cannot be read, or is not laid out like this; the place is named.
    """
    if as_files(path).suffixes[0] != ".json":
        return read_rows(path)
    return read_rows(path) if begins_as_list(as_files(path).lines()) else read_squad(path)


def read_squad(path: DataPath) -> Iterator[Row]:
    """Streams the questions of a file in the layout of SQuAD 1.1, 2.0, KorQuAD 1.0 and KLUE-MRC, article by article.

    Yields:
        `id` (KLUE-MRC's `guid`), `question`, `context`, and, if the file has them, `title`, `answers` as
        `{"text": [...], "answer_start": [...]}`, and `is_impossible`.

    Raises:
        InputError: the file cannot be read, or something is missing or of the wrong type; the place is named.
    """
    empty = True
    for number, article in enumerate(load_list(as_files(path), "data"), start=1):
        title = article.get("title") if isinstance(article, dict) else None
        place = f"{path}: {title!r}" if title else f"{path}: article {number}"
        for index, paragraph in enumerate(_field(article, "paragraphs", list, place), start=1):
            where = f"{place}, paragraph {index}"
            context = _field(paragraph, "context", str, where)
            for order, question in enumerate(_field(paragraph, "qas", list, where), start=1):
                there = question if isinstance(question, dict) else {}
                key = "guid" if "guid" in there and "id" not in there else "id"
                identity = there.get(key)
                source = f"{where}, question {identity if identity is not None else f'number {order}'}"
                yield Row(_fields(question, key, context, title, source), source)
                empty = False
    if empty:
        raise InputError(f"{path}: there is not a single question in it: expected articles with paragraphs and qas")


def _fields(question: Any, key: str, context: str, title: Any, source: str) -> dict[str, Any]:
    fields = {
        "id": _field(question, key, (str, int), source),
        "question": _field(question, "question", str, source),
        "context": context,
    }
    if title:
        fields["title"] = title
    if "answers" in question:
        answers = _field(question, "answers", list, source)
        fields["answers"] = {
            "text": [_field(answer, "text", str, source) for answer in answers],
            "answer_start": [_field(answer, "answer_start", int, source) for answer in answers],
        }
    if "is_impossible" in question:
        fields["is_impossible"] = _field(question, "is_impossible", bool, source)
    return fields


_NAMES: dict[Any, str] = {list: "a list", str: "a text", int: "a number", bool: "true or false"}


def _field(holder: Any, name: str, kind: type | tuple[type, ...], place: str) -> Any:
    if not isinstance(holder, dict):
        raise InputError(f"{place}: expected an object with {name!r}, found {shown(holder)}")
    if name not in holder:
        raise InputError(f"{place}: no {name!r} (there is {', '.join(holder) or 'nothing'}): expected SQuAD's layout")
    value = holder[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{place}: {name} is {shown(value)}: expected {_NAMES.get(kind, 'a text or a number')}")
    return value


@dataclass(frozen=True)
class QaDataSet:
    """How a data set is laid out and measured.

    Attributes:
        unanswerable: whether a passage may hold no answer; None: depends on the training file.
        normalisation: of answers before they are compared: SQuAD's, TriviaQA's, or KorQuAD's, whose F1 counts
            characters.
        without_answer: how labelled questions without an answer are treated if `unanswerable` is False.
        reader: reads its files.
        aliases_only: True: of a row with `aliases` these are the right answers, and what is learned need not be one.
    """

    unanswerable: bool | None = None
    normalisation: Literal["squad", "korquad", "triviaqa"] = "squad"
    without_answer: Literal["refuse", "leave out"] = "refuse"
    reader: Callable[[DataPath], Iterator[Row]] = read_questions
    aliases_only: bool = False


PLAIN = QaDataSet()
"""Files that are not of a published data set."""

DATA_SETS: dict[str, QaDataSet] = {
    "squad1": QaDataSet(unanswerable=False),
    "squad2": QaDataSet(unanswerable=True),
    "korquad1": QaDataSet(unanswerable=False, normalisation="korquad"),
    "triviaqa": QaDataSet(
        unanswerable=False, normalisation="triviaqa", without_answer="leave out", reader=read_triviaqa
    ),
    "mrqa": QaDataSet(unanswerable=False, reader=read_mrqa, aliases_only=True),
}
