"""Labels that are numbers in a `.parquet` whose schema names them, as `ClassLabel` of Hugging Face `datasets` does."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, TypeVar

from unmask.io.input_files import DataPath, files_of
from unmask.io.parquet import class_names
from unmask.io.rows import Row

LabelT = TypeVar("LabelT")

_NO_LABEL = -1


def naming_classes(
    path: DataPath, known: Collection[str], read_label: Callable[[Row, str], LabelT | None]
) -> Callable[[Row, str], LabelT | None]:
    """Reads labels of files as `read_label` does, but numbers by their names, and -1 as no label.

    Args:
        known: what labels may be in files; empty: not known yet. A number among them stays, unless all names of its
            column are too.
        read_label: returns the label in a column of a row, or None for a value that means no label.
    """
    names = {str(file): class_names(file.path) for file in files_of(path) if file.suffixes == (".parquet", "")}

    def read(row: Row, name: str) -> LabelT | None:
        its = names.get(row.source.rpartition(":")[0], {}).get(name)
        if its is None:
            return read_label(row, name)
        value = row[name]
        if value == _NO_LABEL and str(_NO_LABEL) not in known:
            return None
        named = [_named(each, its, known) for each in value] if isinstance(value, list) else _named(value, its, known)
        return read_label(replace(row, fields={**row.fields, name: named}), name)

    return read


def _named(value: Any, names: list[str], known: Collection[str]) -> Any:
    if type(value) is not int or not 0 <= value < len(names):
        return value
    return value if str(value) in known and not set(names) <= set(known) else names[value]
