"""The inputs of scikit-learn estimators (lists, arrays and columns of texts and targets), checked and made plain."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InputError, SettingsError, ValuesError
from unmask.io.rows import Row
from unmask.tasks.rows import checked_text
from unmask.tasks.text.labels import check_spelling
from unmask.tasks.text.regression import fault_of_values

Texts = Any
"""A list, an array or a column of texts, or of pairs of texts."""

_SINGLE, _PAIR = ("text",), ("text_a", "text_b")


def given_model(model: str | Path | None, name: str) -> str | Path:
    """The parameter `model` of an estimator called `name`; it has to be given before the estimator is used."""
    if model is None:
        raise SettingsError(f"{name}(model=None): give the directory of a pre-trained model")
    return model


def tags_of_texts(tags: Any) -> Any:
    """Scikit-learn's tags of an estimator, changed to say that it takes texts."""
    tags.input_tags.string = True
    tags.input_tags.one_d_array = True
    tags.input_tags.two_d_array = False
    return tags


def rows_of(X: Texts) -> list[Row]:  # noqa: N803
    """Texts as rows `{text}`, or pairs as `{text_a, text_b}`."""
    rows = [_row(value, f"X[{number}]") for number, value in enumerate(_values_of(X, "X"))]
    if not rows:
        raise ValuesError("X is empty: expected texts, or pairs of texts")
    for row in rows:
        if len(row.fields) != len(rows[0].fields):
            raise ValuesError(
                f"X[0] holds {len(rows[0].fields)} text(s) and {row.source} {len(row.fields)}: expected single texts, "
                "or pairs, throughout"
            )
    return rows


def _row(value: Any, source: str) -> Row:
    texts = list(value) if isinstance(value, list | tuple | np.ndarray) else [value]
    if len(texts) not in (1, 2) or not all(isinstance(text, str) for text in texts):
        raise ValuesError(
            f"{source} is {str(value)[:60]!r} ({type(value).__name__}): expected a text, or a pair of texts"
        )
    names = _SINGLE if len(texts) == 1 else _PAIR
    try:
        return Row({name: checked_text(text, name, source) for name, text in zip(names, texts, strict=True)}, source)
    except InputError as error:
        raise ValuesError(str(error)) from error


def _values_of(values: Any, name: str) -> list[Any]:
    """A list, an array, or a column or table of pandas or the like, as a list."""
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        hint = "; give one of its columns, or .to_pandas()" if hasattr(values, "to_pandas") else ""  # pyarrow's Table
        raise ValuesError(f"{name} is one {type(values).__name__}: expected a list or an array{hint}")
    if isinstance(values, set | frozenset):
        raise ValuesError(f"{name} is a {type(values).__name__}, which has no order: expected a list or an array")
    if hasattr(values, "to_pylist"):  # pyarrow
        return list(values.to_pylist())
    array = values.to_numpy() if hasattr(values, "to_numpy") else values
    as_list: list[Any] = array.tolist() if hasattr(array, "tolist") else list(array)
    return as_list


def labels_of(y: Any, num_texts: int) -> list[Hashable]:
    """The labels of a classification, at least two different ones, of which no two look alike."""
    labels = _values_of(y, "y")
    _same_length(labels, num_texts)
    for number, label in enumerate(labels):
        if label is None or repr(label) == "<NA>" or label != label or label == "":
            raise ValuesError(f"y[{number}] is {label!r}: expected a label; take unlabelled texts out")
        if isinstance(label, list | dict | set):
            raise ValuesError(
                f"y[{number}] is {str(label)[:60]}: expected one label for each text, or a matrix of 0 and 1 where a "
                "text may have many (sklearn.preprocessing.MultiLabelBinarizer makes it)"
            )
    if len(set(labels)) < 2:
        raise ValuesError(f"every label of y is {labels[0]!r}: there is nothing to learn; give at least two")
    first_places: dict[str, str] = {}
    for number, label in enumerate(labels):
        first_places.setdefault(str(label), f"y[{number}]")
    try:
        check_spelling(first_places, otherwise="")
    except InputError as error:
        raise ValuesError(str(error)) from error
    return labels


def indicators_of(y: Any, num_texts: int) -> NDArray[np.int64] | None:
    """A matrix of labels, dense, sparse or as a list of lists: (texts, labels), 1 where a text has a label.

    None where `y` has one label per text: it is not a matrix.
    """
    rows = _values_of(y.toarray() if hasattr(y, "toarray") else y, "y")
    _refuse_column(rows)
    if not rows or not all(isinstance(row, list) and len(row) > 1 for row in rows):
        return None
    _same_length(rows, num_texts)
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]) or any(value not in (0, 1) for value in row):
            raise ValuesError(
                f"y[{number}] is {str(row)[:60]}: expected 0 or 1 for each of {len(rows[0])} labels, as "
                "sklearn.preprocessing.MultiLabelBinarizer makes them"
            )
    if all(row == rows[0] for row in rows):
        raise ValuesError("every text has the same labels in y: there is nothing to learn; give at least two")
    return np.array(rows, dtype=np.int64)


def numbers_of(y: Any, num_texts: int) -> list[float]:
    """The targets of a regression: a finite number for each text, not the same for all, nor so alike that float32 loses
    their differences."""
    given = _values_of(y, "y")
    _refuse_column(given)
    values = [_number(value, number) for number, value in enumerate(given)]
    _same_length(values, num_texts)
    if len(values) > 1 and (fault := fault_of_values(np.array(values, dtype=np.float32))):
        raise ValuesError(f"y: {fault}")
    return values


def _number(value: Any, number: int) -> float:
    is_number = isinstance(value, int | float | np.number | Decimal) and not isinstance(value, bool)
    try:
        its = float(value) if is_number else math.nan
    except (ValueError, OverflowError):  # a signalling NaN of Decimal, an int of hundreds of digits
        its = math.nan
    if not math.isfinite(its):
        raise ValuesError(f"y[{number}] is {value!r:.60}: expected a finite number")
    if abs(its) > float(np.finfo(np.float32).max):
        raise ValuesError(f"y[{number}] is {value!r}: too large for float32; scale y")
    return its


def _refuse_column(rows: Sequence[Any]) -> None:
    """Refuses a matrix with a single column: one value for each text is a list or a plain array."""
    if rows and all(isinstance(row, list) and len(row) == 1 for row in rows):
        raise ValuesError(
            "y has one column: give y.ravel() (numpy.ravel(y) of a list or a table), a value for each text"
        )


def _same_length(values: Sequence[Any], num_texts: int) -> None:
    if len(values) != num_texts:
        raise ValuesError(f"X has {num_texts} texts and y {len(values)} values: expected one for each text")


def distinct(labels: Iterable[Hashable]) -> NDArray[Any]:
    """Every label once, in order; an array of the labels' own type where it is a plain one, else of objects."""
    found = set(labels)
    try:
        ordered: list[Any] = sorted(found)
    except TypeError:  # labels of several types
        ordered = sorted(found, key=lambda label: (type(label).__name__, repr(label)))
    if len({type(label) for label in ordered}) == 1 and isinstance(ordered[0], str | bool | int | float):
        return np.asarray(ordered)
    array = np.empty(len(ordered), dtype=object)
    array[:] = ordered
    return array
