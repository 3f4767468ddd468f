"""Predictions as the rows of a `.csv`, for spreadsheets: the input's columns, then what was predicted."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from unmask.errors import InputError


def table_lines(predictions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The rows of a table, without their line ends, the header first.

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
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _line(cells: Sequence[str]) -> str:
    file = io.StringIO(newline="")
    csv.writer(file).writerow(cells)  # puts the characters of its line ends between quotes, so both line breaks
    return file.getvalue().removesuffix("\r\n")
