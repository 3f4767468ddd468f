"""Names that look alike to people and differ for a program: in blanks, invisible characters, or composed letters.

macOS, for one, writes the names of files with decomposed letters (Unicode's NFD), and other systems composed (NFC).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from unmask.io.rows import Row


def as_seen(name: str) -> str:
    """A name as people see it: letters composed, without control and format characters, no blanks around it."""
    marks = (char for char in name if char.isspace() or unicodedata.category(char) not in ("Cc", "Cf"))
    return unicodedata.normalize("NFC", "".join(marks)).strip()


def shown_beside(name: str, known: Iterable[str]) -> str:
    """A name in quotes; with escapes where it looks like one of the known ones."""
    looks_known = as_seen(name) in map(as_seen, known)
    return f"{name[:60]!a}, as it is written here," if looks_known else repr(name[:60])


def similar_columns(wanted: Iterable[str], row: Row) -> str:
    """Sentences, for the end of a message, on the columns of a row that look like those that are wanted, or nothing."""
    return "".join(
        f" The file writes {field!a} where {name!a} is meant: write both one way."
        for name in wanted
        for field in row.fields
        if field != name and as_seen(field) == as_seen(name)
    )
