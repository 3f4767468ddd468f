"""Predictions as the lines of a file: JSON lines, a table for spreadsheets, or `{id: answer}` for SQuAD's scorers."""

from __future__ import annotations

import csv
import io
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.errors import InputError
from unmask.io.progress import counted
from unmask.io.rows import Row, find_field
from unmask.io.writing import json_line, writing


def beside_input(fields: Mapping[str, Any], id_column: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """What is written for an input with these fields: its `id` where it has one, `input`, and the answer to it."""
    line = {"id": find_field(fields, id_column), "input": dict(fields), **answer}
    return {name: value for name, value in line.items() if name != "id" or value is not None}


@dataclass
class Answered:
    """How far the inputs of a stream are answered, in their order.

    Attributes:
        number: how many inputs are.
        waiting: where those are that were read since.
    """

    number: int = 0
    waiting: deque[str] = field(default_factory=deque)

    def __str__(self) -> str:
        """For the message of an interruption."""
        rest = f", the rest begins at {self.waiting[0]}" if self.number and self.waiting else ""
        return f"{counted(self.number, 'input')} {'is' if self.number == 1 else 'are'} answered{rest}"

    def reading(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The same rows, which wait from now on."""
        for row in rows:
            self.waiting.append(row.source)
            yield row

    def answering(self, answers: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The same answers, one for each row; when the next one is asked for, the last is written."""
        for answer in answers:
            yield answer
            self.number += 1
            self.waiting.popleft()


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]], overwrite: bool) -> None:
    """Writes JSON objects, one per line, as `unmask.io.writing.writing` does."""
    with writing(path, overwrite) as file:
        for row in rows:
            file.write(json_line(row))


def answer_lines(predictions: Iterable[Mapping[str, Any]], suffix: str) -> Iterator[str]:
    """The lines of a `.jsonl`, `.csv` or `.json`, without their ends; raises InputError as they do."""
    if suffix == ".jsonl":
        return map(_as_json, predictions)
    return table_lines(predictions) if suffix == ".csv" else _official_lines(predictions)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def table_lines(predictions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The rows of a table, without their line ends, the header first: the input's columns, then what was predicted.

    An input's column that is called like what is predicted is called `input.NAME`. `probabilities` has a column for
    each label, `probabilities.LABEL`; other lists and objects are written as JSON. The first line begins with a byte
    order mark, by which Excel recognises UTF-8.

    Raises:
        InputError: an input has a field that the first one lacks.
    """
    names: list[str] = []
    for number, prediction in enumerate(predictions, start=1):
        cells = dict(_cells(prediction))
        if not names:
            names = list(cells)
            yield f"\ufeff{_line(names)}"
        if foreign := [name for name in cells if name not in names]:
            raise InputError(
                f"input {number} has the field {foreign[0]!r}, and the first input has not: expected inputs with the "
                "same fields for a .csv; write .jsonl"
            )
        yield _line([cells.get(name, "") for name in names])


def _cells(prediction: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    answers: dict[str, Any] = {}
    for name, value in prediction.items():
        if name == "probabilities" and isinstance(value, Mapping):
            answers |= {f"{name}.{label}": each for label, each in value.items()}
        elif name not in ("input", "id"):
            answers[name] = value
    taken = {*answers, *prediction["input"]}
    for name, value in prediction["input"].items():
        column = name
        while column in answers or (column != name and column in taken):  # an answer's, or another input's
            column = f"input.{column}"
        taken.add(column)
        yield column, _cell(value)
    if "id" in prediction and "id" not in prediction["input"]:
        yield "id", _cell(prediction["id"])
    yield from ((name, _cell(value)) for name, value in answers.items())


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _as_json(value)


def _line(cells: Sequence[str]) -> str:
    file = io.StringIO(newline="")
    csv.writer(file).writerow(cells)  # puts the characters of its line ends between quotes, so both line breaks
    return file.getvalue().removesuffix("\r\n")


def _official_lines(predictions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of `{id: answer}`."""
    numbers: dict[str, int] = {}
    line = "{"
    for number, prediction in enumerate(predictions, start=1):
        if "id" not in prediction:
            raise InputError(
                f"question {number} has no id, and {{id: answer}} needs one of each: name its column with --column "
                "id=NAME, or write .jsonl"
            )
        identity = str(prediction["id"])
        if identity in numbers:
            raise InputError(
                f"questions {numbers[identity]} and {number} have the same id, {identity!r}: {{id: answer}} holds one "
                "answer for each; give every question its own, or write .jsonl"
            )
        numbers[identity] = number
        yield line if number == 1 else f"{line},"
        line = f"  {_as_json(identity)}: {_as_json(prediction['answer'])}"
    yield from (line, "}")
