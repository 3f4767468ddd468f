"""Values of rows: texts, and lists in the cells of a table."""

from __future__ import annotations

import json
import re
from typing import Any

from unmask.errors import InputError

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
        raise InputError(f"{source}: {name} is {shown(value)}: expected a text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{source}: {name} holds half of a surrogate pair, \\u{ord(value[error.start]):04x}: no character; "
            "mend the JSON escape, or the program that wrote it"
        ) from error
    return value


def shown(value: Any) -> str:
    """The beginning of a value as JSON, for messages."""
    return json.dumps(value, ensure_ascii=False, default=str)[:60]


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
