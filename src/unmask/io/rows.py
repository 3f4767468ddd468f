"""Rows of tables, each with the place it came from; how records that cannot be read are handled; and names of columns
that look alike.

A name is found with decomposed letters (Unicode's NFD), as macOS writes, for one, the names of files, where it is given
composed (NFC), and the reverse; not where blanks or invisible characters differ.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from unmask.errors import InputError
from unmask.io.encodings import normalized

if TYPE_CHECKING:
    from pyarrow import DataType

    from unmask.io.settings import TableSettings

Refuse = Callable[[str, str, str], None]
"""Is called with the place of a record that cannot be read, a fixed short reason, and what is wrong with it in full;
raises, or takes note."""

_MOST_REPORTED = 5
_LONGEST_SHOWN = 100
_MOST_COMPARED = 1000  # names of columns: a request may have a million
_ABSENT = object()


@dataclass(frozen=True)
class Row:
    """One row as it is in a file."""

    fields: Mapping[str, Any]  # by column or JSON field
    source: str  # where it is, as `path:line`; in `.parquet`, the number of the row from 1

    def __contains__(self, name: str) -> bool:
        return find_field(self.fields, name, _ABSENT) is not _ABSENT

    def __getitem__(self, name: str) -> Any:
        """The value of a field; `labels.label` may also mean the field `label` of the object `labels`."""
        value = find_field(self.fields, name, _ABSENT)
        if value is _ABSENT:
            raise KeyError(name)
        return value


def find_field(fields: Mapping[str, Any], name: str, otherwise: Any = None) -> Any:
    """The field of this name, or the only one whose name is the same in composed letters; where there is none,
    `labels.label` means the field `label` of the object `labels`."""
    if name in fields:
        return fields[name]
    if not name.isascii():
        composed = normalized("NFC", name)
        alike = [field for field in fields if isinstance(field, str) and normalized("NFC", field) == composed]
        if len(alike) == 1:
            return fields[alike[0]]
    value: Any = fields
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return otherwise
        value = value[part]
    return value


@dataclass
class RowFaults:
    """Unusable rows of a file, to report the first few together with their total."""

    count: int = 0
    first: list[InputError] = field(default_factory=list)

    def add(self, fault: InputError) -> None:
        self.count += 1
        if len(self.first) < _MOST_REPORTED:
            self.first.append(fault)

    def refuse(self, place: str, reason: str, problem: str) -> None:
        """See `Refuse`."""
        self.add(InputError(f"{place}: {problem}"))

    def raise_any(self) -> None:
        """Raises InputError if there is a fault."""
        if self.count == 1:
            raise self.first[0]
        if self.count:
            lines: list[str] = []
            last = ""
            for fault in self.first:
                place, _, what = str(fault).partition(": ")
                lines.append(f"{place}: the same" if what == last else str(fault))
                last = what
            raise InputError("\n  ".join([*lines, f"{self.count:,} rows in all cannot be used"]))


def stop(place: str, reason: str, problem: str) -> None:
    """Refuses the first record that cannot be read; see `Refuse`."""
    raise InputError(f"{place}: {problem}")


@dataclass(frozen=True)
class Table:
    """A table that has been opened."""

    names: Sequence[str]
    place: str  # of the header, for messages
    rows: Iterator[Row]  # below the header, to be read once
    types: Mapping[str, DataType] = field(default_factory=dict)  # of the columns of a `.parquet`
    separator: str = ""


def cut_short(names: Iterable[object]) -> list[str]:
    """The names of columns for messages: a long text may be where a header was expected, and a caller's rows may have
    numbers."""
    return [name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}..." for name in map(str, names)]


def is_sound_header(names: Sequence[str], place: str, settings: TableSettings, refuse: Refuse) -> bool:
    """Whether the names of columns are distinct, and are text; refuses them if not."""
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if any("\0" in name for name in names):
        advice = f"take it out, or, if the file is UTF-16, give {settings.option('encoding', 'utf-16-le')}"
        refuse(place, "NUL byte", f"a NUL byte, which is no character of a text: {advice}")
    elif any("\r" in name for name in names):
        refuse(
            place,
            "carriage returns",
            "the header holds a carriage return: expected lines to end with a line feed, or with both; convert the "
            "line ends",
        )
    elif twice:
        problem = f"the header names {twice[0]!r} twice: expected every column to have a name of its own"
        refuse(place, "column twice", problem)
    else:
        return True
    return False


def as_seen(name: str) -> str:
    """A name as people see it: letters composed, without control and format characters, no blanks around it, and one
    blank between its words."""
    marks = (char for char in name if char.isspace() or unicodedata.category(char) not in ("Cc", "Cf"))
    return " ".join(normalized("NFC", "".join(marks)).split())


def similar_columns(wanted: Iterable[str], there: Iterable[object]) -> str:
    """Sentences, for the end of a message, on columns that look like those that are wanted, or nothing."""
    fields = [field for field in map(str, islice(there, _MOST_COMPARED)) if len(field) <= _LONGEST_SHOWN]
    return "".join(
        f" It is written {field!a}, where {name!a} is meant: write both one way."
        for name in wanted
        for field in fields
        if field != name and as_seen(field) == as_seen(name)
    )
