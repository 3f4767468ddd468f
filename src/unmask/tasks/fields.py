"""Finding a field of a row by its name, and lists in the cells of a table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from unmask.errors import InputError

_QUOTED_LIST = re.compile(r"\[\s*(['\"]).*\1\s*\]", re.DOTALL)


def find_field(fields: Mapping[str, Any], name: str, otherwise: Any = None) -> Any:
    """The field of this name; where there is none, `labels.label` means the field `label` of the object `labels`.

    Args:
        otherwise: returned where there is neither.
    """
    if name in fields:
        return fields[name]
    value: Any = fields
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return otherwise
        value = value[part]
    return value


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
