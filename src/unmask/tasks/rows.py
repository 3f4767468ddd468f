"""Columns and values of rows: which columns a row has, texts, and lists in the cells of a table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from unmask.errors import ColumnError, InputError, SettingsError
from unmask.io.encodings import normalized
from unmask.io.json_files import shown
from unmask.io.rows import Row, as_seen, cut_short, similar_columns
from unmask.tasks.kinds import FACTS, TaskKind
from unmask.tasks.settings import ColumnSettings

LayoutT = TypeVar("LayoutT")

_QUOTED_LIST = re.compile(r"\[\s*(['\"]).*\1\s*\]", re.DOTALL)


def checked_text(value: Any, name: str, source: str) -> str:
    """Returns a value of a row unchanged, after checking that it is a text.

    Args:
        name: of its column or field, for messages.
        source: where the row is, for messages.

    Raises:
        InputError: it is not a text, or a JSON escape has put half of a surrogate pair into it.
    """
    if not isinstance(value, str):
        found = shown(value)
        is_empty = found in ("null", "NaN")  # NaN is pandas' empty cell
        advice = '; fill it in, take the row out, or write "" for an empty text' if is_empty else ""
        raise InputError(f"{source}: {name} is {found}: expected a text{advice}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{source}: {name} holds half of a surrogate pair, \\u{ord(value[error.start]):04x}: no character; "
            "repair the JSON escape, or the program that wrote it"
        ) from error
    return value


def alike(text: str) -> str:
    """A text without what hides a copy: composed (NFC), in one case, with single blanks."""
    return " ".join(normalized("NFC", text).casefold().split())


def list_in_cell(cell: str, name: str, source: str, refuses: bool = True) -> list[Any] | None:
    """The JSON list that the cell of a table holds; None for any other text.

    Args:
        name: of the column, for messages.
        source: where the row is, likewise.
        refuses: False takes what looks like a list and is none for another text.

    Raises:
        InputError: it looks like a list of quoted texts, and is not JSON, but perhaps Python's own notation.
    """
    if not cell.startswith("["):
        return None
    try:
        decoded = json.loads(cell)
    except (ValueError, RecursionError) as error:
        if refuses and _QUOTED_LIST.fullmatch(cell):
            raise InputError(
                f'{source}: {name} is {cell[:60]!r}: a list in the cell of a table is written as JSON, ["a", "b"] '
                "(json.dumps does so)"
            ) from error
        return None
    return decoded if isinstance(decoded, list) else None


def check_columns(columns: ColumnSettings, kind: TaskKind) -> None:
    """Raises SettingsError if the user names a column that a kind of task does not read."""
    if foreign := sorted(columns.model_fields_set.difference(FACTS[kind].columns)):
        raise SettingsError(f"columns.{foreign[0]} is not for {kind}: expected {', '.join(FACTS[kind].columns)}")


def naming(*names: str, example: str = "NAME") -> str:
    """How a user names columns, for the end of a message: in a command, and in a recipe.

    Args:
        names: of fields of `ColumnSettings`.
        example: what each may be.
    """
    options = " and ".join(f"--column {name}={example}" for name in names)
    settings = " and ".join(f"data.columns.{name}" for name in names)
    return f"{options} (in a recipe {settings}; data.dev_columns and data.test_columns where these files differ)"


def choose_layout(
    layouts: Sequence[LayoutT], row: Row, needed: Callable[[LayoutT], Sequence[str]], advice: str
) -> LayoutT:
    """The first layout whose columns the row has.

    Args:
        needed: gives the columns of a layout.
        advice: the end of the message: how the columns are named; see `naming`.

    Raises:
        ColumnError: none fits; names the missing columns and those there are.
    """
    for layout in layouts:
        if all(name in row for name in needed(layout)):
            return layout
    nearest = min(layouts, key=lambda layout: not any(name in row for name in needed(layout)))  # else the first
    missing = [name for name in needed(nearest) if name not in row]
    wanted = dict.fromkeys(name for layout in layouts for name in needed(layout))
    alternatives = ", or ".join(dict.fromkeys(" and ".join(needed(layout)) for layout in layouts))
    expected = "" if list(wanted) == missing else f"expected {alternatives}; "
    raise ColumnError(
        f"{row.source}: no column {' and no column '.join(map(repr, missing))}: {expected}there is "
        f"{', '.join(cut_short(row.fields)) or 'nothing'}.{similar_columns(wanted, row.fields)}",
        f"Name yours with {advice}",
    )


def missing_column(row: Row, names: Sequence[str], content: str, setting: str) -> ColumnError:
    """The error for a row of labelled examples without the column of the labels.

    Args:
        names: where the column is looked for.
        content: of the column: `label`, `answers` ...
        setting: of `data.columns`.
    """
    of_texts = ", or of texts alone for `unmask score --method acceptability`" if content == "label" else ""
    return ColumnError(
        f"{row.source}: no column {names[0]!r} for the {content}: there is {', '.join(cut_short(row.fields))}."
        f"{similar_columns(names, row.fields)}",
        f"Name it with {naming(setting)}; a file without {content}"
        f"{'' if content.endswith('s') else 's'} is for `unmask predict`{of_texts}",
    )


def wrong_prediction(source: str, key: str, value: Any, expected: str) -> InputError:
    """The error for a value of a prediction that the task does not give.

    Args:
        source: where the example is.
        expected: what `unmask predict` writes under that key.
    """
    found = f"has no {key}" if value is None else f"says {key} {shown(value)}"
    return InputError(
        f"{source}: its prediction {found}: expected {expected}, as `unmask predict` of this task writes it"
    )


def same_column(source: str, column: object, content: str, setting: str, labels: str, label_setting: str) -> InputError:
    """The error for a column that is named twice: labels read from the inputs themselves teach nothing, and score well.

    Args:
        source: the file or row.
        column: its name, or its number from 1.
        content: of the column, `words`, and the labels are `tags`; the settings are those of `data.columns`.
    """
    return InputError(
        f"{source}: columns.{setting} and columns.{label_setting} are both column {column!r}, so the "
        f"{content} would be their own {labels}: name another column for one of them"
    )


def shown_beside(name: str, known: Iterable[str]) -> str:
    """A name in quotes; with escapes where it looks like one of the known ones."""
    looks_known = as_seen(name) in map(as_seen, known)
    return f"{name[:60]!a}, as it is written here," if looks_known else repr(name[:60])
