"""Labels in rows: how they are read, and checks for values that are no labels and for one label written in two ways."""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from unmask.errors import InputError
from unmask.io.json_files import shown
from unmask.io.progress import listed
from unmask.io.rows import Row, as_seen
from unmask.tasks.rows import checked_text, list_in_cell, missing_column, shown_beside

logger = logging.getLogger("unmask")

_MARKS = "|;,"
"""Between the labels of a cell, as many people write them."""


def read_label(row: Row, name: str, may_be_empty: bool = False) -> str:
    """A label as text; numbers and truth values as JSON writes them.

    Raises:
        InputError: it is missing, empty where it may not be, or neither a string nor a number.
    """
    value = _labelled(row, name)
    if isinstance(value, list | dict):
        by_column = '; pandas writes rows with to_json(..., orient="records", lines=True)' if "0" in value else ""
        raise InputError(
            f"{row.source}: the column {name!r} holds {shown(value)}: expected a label, a string or a number (lists "
            f"of labels are for task.multi_label){by_column}"
        )
    return "" if may_be_empty and value in ("", None) else _plain_label(row, name, value)


def read_labels(row: Row, name: str, separator: str) -> tuple[str, ...]:
    """Any number of labels, without repetitions: a list (JSON in a table), or in a table a text with separators; an
    empty text means no labels.

    Raises:
        InputError: they are missing, or one is empty or neither a string nor a number.
    """
    value = _labelled(row, name)
    parts: list[Any]
    if isinstance(value, str) and (held := list_in_cell(value, name, row.source, separator == ",")) is not None:
        parts = held
    elif isinstance(value, str):
        parts = [part.strip() for part in value.split(separator)] if value.strip() else []
    elif isinstance(value, list):
        parts = value
    elif value is None or isinstance(value, dict):
        raise InputError(
            f"{row.source}: the column {name!r} holds {shown(value)}: expected a list of labels, [] for none, or a "
            f"text with {separator!r} between them"
        )
    else:
        parts = [value]
    if any(isinstance(part, list | dict) for part in parts):
        raise InputError(
            f"{row.source}: the column {name!r} holds {shown(value)}: expected strings or numbers in the list"
        )
    return tuple(dict.fromkeys(_plain_label(row, name, part) for part in parts))


def read_number(row: Row, name: str) -> float:
    """A finite number.

    Raises:
        InputError: it is missing, not a number, or too large for float32.
    """
    text = read_label(row, name)
    try:
        value = math.nan if isinstance(row[name], bool) or "_" in text else float(text)
    except ValueError:
        value = math.nan
    largest = float(np.finfo(np.float32).max)
    if not abs(value) <= largest:
        wanted, advice = "a finite number such as 3.5", "fix it, or take the row out"
        if math.isfinite(value):
            wanted = f"at most {largest:g} in size, the largest of 32-bit floats"
            advice = "divide all values by a constant, or take the row out"
        elif re.fullmatch(r"[+-]?\d+,\d+", text):
            advice = f"write {text.replace(',', '.')}, with a point before the decimals"
        raise InputError(f"{row.source}: the column {name!r} holds {text[:60]!r}: expected {wanted}; {advice}")
    return value


def read_flag(row: Row, name: str) -> bool:
    """Whether a label's own column says that a text has it: 1 or 0, true or false.

    Raises:
        InputError: it is missing, or says something else.
    """
    value = _labelled(row, name)
    flag = str(value).strip().lower().removesuffix(".0")
    if flag not in ("1", "0", "true", "false"):
        raise InputError(
            f"{row.source}: the column {name!r} holds {shown(value)}: expected 1 where the text has that label, else 0"
        )
    return flag in ("1", "true")


def _labelled(row: Row, name: str) -> Any:
    if name not in row:
        raise missing_column(row, [name], "label", "label")
    return row[name]


def _plain_label(row: Row, name: str, value: Any) -> str:
    label = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    if not label or _is_nan(value):
        where = f"the column {name!r}" if value is row[name] else f"a label in the column {name!r}"
        raise InputError(f"{row.source}: {where} is {'NaN' if label else 'empty'}: fill it in, or take the row out")
    checked_text(label, name, row.source)
    return label


def _is_nan(value: Any) -> bool:
    """Whether a value is NaN, which pandas writes for a missing label."""
    return isinstance(value, float) and math.isnan(value)


def unknown_label(source: str, label: str, known: Sequence[str], separator: str | None = None) -> InputError:
    """The error for a label that a task does not have.

    Args:
        separator: what labels were separated by; None for one label a cell.
    """
    fault = f"{source}: the label {shown_beside(label, known)} is none of the known ones ({listed(known)})"
    if (alike := next((one for one in known if as_seen(one) == as_seen(label)), None)) is not None:
        return InputError(
            f"{fault}, but looks like {alike[:60]!a}: write it so, or train with labels in Unicode's NFC, one blank "
            "between words, no invisible characters"
        )
    for mark in _MARKS if separator is not None else "":
        if mark in label and all(part.strip() in known for part in label.split(mark)):
            return InputError(f"{fault}, but several with {mark!r} between them: give task.label_separator={mark!r}")
    if (same := next((one for one in known if _is_same_value(one, label)), None)) is not None:
        return InputError(f"{fault}: write it as {same!r}")
    return InputError(f"{fault}: fix it, or train with it, in a row of data.train or in task.labels")


def _is_same_value(one: str, other: str) -> bool:
    """Whether two labels are one value in two spellings, as formats of tables have them: `0` and `0.0`, `true` and
    `True`."""
    try:
        return float(one) == float(other)
    except ValueError:
        return one.lower() == other.lower()


def check_spelling(
    first_lines: Mapping[str, str], otherwise: str = ", or list both in task.labels where two labels are meant"
) -> None:
    """Refuses labels that look alike, since they are one label written in two ways; warns where only the case differs.

    Args:
        first_lines: label -> where it first occurs.
        otherwise: what else can be done than to fix one of them, for the message.

    Raises:
        InputError: two labels differ only in blanks, in characters that leave no mark, or in how their
            letters are composed; names both, with their places.
    """
    seen: dict[str, str] = {}
    for label, source in first_lines.items():
        other = seen.setdefault(as_seen(label), label)
        if other != label:
            raise InputError(
                f"{source}: the label {as_seen(label)} is written {label!a} here and {other!a} in "
                f"{first_lines[other]}, which look alike: write it one way (in Unicode's NFC, one blank between words "
                f"and none around them, no invisible characters){otherwise}"
            )
    folded: dict[str, str] = {}
    pairs = [(label, folded.setdefault(text.lower(), label)) for text, label in seen.items()]
    if alike := [f"{other!r} and {label!r} ({first_lines[label]})" for label, other in pairs if label != other]:
        logger.warning("labels that differ only in the case count as different ones: %s", listed(alike, 5))


_MISSING = frozenset(["nan", "<na>", "n/a", "null", "#n/a", "#value!", "#ref!", "#name?", "#div/0!", "#num!", "#null!"])
"""What programs write, in small letters, where there is no value; and `None`, since `none` is a label of many."""

_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")


def _check_values(first_lines: Mapping[str, str]) -> None:
    """Refuses labels that a program has written for a missing value, or one number in two ways.

    Args:
        first_lines: label -> where it first occurs.

    Raises:
        InputError: there is such a label; names its place.
    """
    numbers: dict[float, str] = {}
    for label, source in first_lines.items():
        if label == "None" or label.lower() in _MISSING:
            raise InputError(
                f"{source}: the label {label!r}, as programs write a missing value: fill it in, or take the row out; "
                "if it is a label, list all of them in task.labels"
            )
        other = numbers.setdefault(float(label), label) if _NUMBER.fullmatch(label) else label
        if other != label:
            raise InputError(
                f"{source}: the label {label!r} is the number of {other!r} ({first_lines[other]}): write it one way, "
                "or, if they differ, list all labels in task.labels"
            )


def _check_combined(first_lines: Mapping[str, str], separator: str | None) -> None:
    """Refuses labels that look like several in one cell.

    Args:
        first_lines: label -> where it first occurs.
        separator: what labels were separated by; None for one label a cell.
    """
    for mark in (mark for mark in _MARKS if mark != separator):
        combined = [label for label in first_lines if mark in label]
        of_labels = [{part.strip() for part in label.split(mark)} for label in first_lines]
        uses = Counter(part for parts in of_labels for part in parts)
        shared = [uses[part.strip()] > 1 for label in combined for part in label.split(mark)]
        if combined and (len(uses) < len(first_lines) or all(shared) or (mark != "," and any(shared))):
            multi_label = "" if separator is not None else "task.multi_label=true "
            raise InputError(
                f"{first_lines[combined[0]]}: the label {combined[0]!r} looks like several with {mark!r} between them: "
                f"give {multi_label}task.label_separator={mark!r}; if it is one label, list all of them in task.labels"
            )


def sorted_and_checked(first_lines: Mapping[str, str], separator: str | None = None) -> tuple[str, ...]:
    """The labels of a file in the order of `sorted_labels`.

    Args:
        first_lines: label -> where it first occurs.
        separator: what labels were separated by; None for one label a cell.

    Raises:
        InputError: two look alike, or one looks like a missing value or like several labels.
    """
    check_spelling(first_lines)
    _check_values(first_lines)
    _check_combined(first_lines, separator)
    return sorted_labels(first_lines)


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """The order of labels where nothing else says it: sorted as text, but by value if all are numbers (-1, 0.5, 10)."""
    found = set(labels)
    numeric = all(_NUMBER.fullmatch(label) for label in found)
    return tuple(sorted(found, key=lambda label: (float(label) if numeric else 0, label)))
