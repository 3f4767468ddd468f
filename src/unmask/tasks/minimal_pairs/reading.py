"""Reading minimal pairs: two sentences that differ in one point of grammar (Warstadt et al. 2020, BLiMP).

Three layouts: BLiMP's `.jsonl`; Zorro's `.txt` (Huebner et al. 2021), a wrong line before each right one; and a table
with the columns `sentence_good` and `sentence_bad`, or `good` and `bad`, or without names, the right sentence first. A
file is a paradigm, unless its rows name theirs (`UID`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from unmask.errors import InputError
from unmask.io.input_files import DataPath, InputFiles, as_files
from unmask.io.paths import where_samples_are
from unmask.io.progress import Progress
from unmask.io.reading import split_suffixes
from unmask.io.rows import Row, RowFaults
from unmask.io.tables import ROW_SUFFIXES, read_rows
from unmask.tasks.rows import checked_text

logger = logging.getLogger("unmask")

GOOD, BAD = "sentence_good", "sentence_bad"
_NAMES = ((GOOD, BAD), ("good", "bad"), ("1", "2"))
"""Of the columns; the last are those of a table without a header."""

_KINDS = (*ROW_SUFFIXES, ".txt")
_NO_PAIRS = re.compile(r"\.|(readme|licen[cs]e|notice)\b", re.IGNORECASE)
"""How the names of files begin that are in a folder beside its pairs."""


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences that differ in one point.

    Attributes:
        good: the grammatical one.
        bad: the other.
        place: file and line.
    """

    good: str
    bad: str
    place: str = field(default="", compare=False)


@dataclass(frozen=True)
class Paradigm:
    """Pairs that differ in the same point.

    Attributes:
        name: as `wh_island`.
        term: the phenomenon that it belongs to, as `island_effects`; empty where none is named.
        pairs: at least one.
    """

    name: str
    term: str
    pairs: tuple[MinimalPair, ...]


def read_paradigms(path: str | DataPath) -> list[Paradigm]:
    """Reads a file of pairs, or every such file of a folder but hidden ones, a README and a LICENSE, in the order of
    the paradigms' names.

    Warns of pairs that are twice the same sentence: BLiMP as published has seven.

    Raises:
        InputError: there is none, a file has another layout, a sentence is empty, or all pairs are twice the same;
            file and line are named, the first few together.
    """
    faults = RowFaults()
    given = as_files(path)
    files = [replace(given, paths=(file,)) for file in _files(given.path)]
    with Progress("reading pairs", unit="pairs") as progress:
        found = list(progress.counting(pair for file in files for pair in _read(file, faults)))
    faults.raise_any()
    _report_equal([pair for _, _, pair in found])
    paradigms: dict[str, tuple[str, list[MinimalPair]]] = {}
    for name, term, pair in found:
        paradigms.setdefault(name, (term, []))[1].append(pair)
    return [Paradigm(name, term, tuple(pairs)) for name, (term, pairs) in sorted(paradigms.items())]


def sample(paradigms: Sequence[Paradigm], most: int) -> list[Paradigm]:
    """At most so many pairs of each, evenly spaced."""
    return [
        Paradigm(each.name, each.term, tuple(each.pairs[place * len(each.pairs) // few] for place in range(few)))
        for each in paradigms
        for few in (min(most, len(each.pairs)),)
    ]


def _report_equal(pairs: Sequence[MinimalPair]) -> None:
    equal = [pair for pair in pairs if pair.good == pair.bad]
    if not equal:
        return
    first = f"{equal[0].place}: both sentences are {equal[0].good[:60]!r}"
    if len(equal) == len(pairs):
        raise InputError(f"{first}, and so in every pair: expected two that differ")
    logger.warning(
        "%s; pairs of twice the same sentence: %s of %s; they count as wrong, as in published figures",
        first,
        f"{len(equal):,}",
        f"{len(pairs):,}",
    )


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder: expected minimal pairs{where_samples_are(path)}")
    if not path.is_dir():
        if split_suffixes(path)[0] not in _KINDS:
            raise InputError(f"{path}: unknown kind of file for minimal pairs: expected {', '.join(_KINDS)}")
        return [path]
    files = _pair_files(path)
    for folder in sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith(".")):
        if inner := _pair_files(folder):
            raise InputError(
                f"{folder}: a folder with {inner[0].name} in a folder of minimal pairs: expected files alone: move "
                "them up, or give each folder by itself"
            )
    if not files:
        raise InputError(f"{path}: no file of minimal pairs in it: expected {', '.join(_KINDS)}")
    return files


def _pair_files(folder: Path) -> list[Path]:
    return [
        each
        for each in sorted(folder.iterdir())
        if each.is_file() and split_suffixes(each)[0] in _KINDS and not _NO_PAIRS.match(each.name)
    ]


def _read(file: InputFiles, faults: RowFaults) -> Iterator[tuple[str, str, MinimalPair]]:
    """The pairs of a file, each with the names of its paradigm and phenomenon."""
    suffix, packed = file.suffixes
    stem = file.path.name.removesuffix(packed).removesuffix(suffix)
    for row in _zorro_rows(file) if suffix == ".txt" else read_rows(file):
        names = next((names for names in _NAMES if all(name in row for name in names)), None)
        if names is None:
            raise InputError(
                f"{row.source}: the columns are {', '.join(row.fields)}: expected {GOOD} and {BAD}, as in BLiMP's "
                "files, or good and bad; --header none takes two columns without names, the right sentence first; in a "
                ".txt a wrong sentence comes before each right one"
            )
        name, term = (str(row.fields.get(key) or "").strip() for key in ("UID", "linguistics_term"))
        try:
            pair = MinimalPair(_sentence(row, names[0], "right"), _sentence(row, names[1], "wrong"), row.source)
        except InputError as error:
            faults.add(error)
        else:
            yield name or stem, term, pair


def _sentence(row: Row, column: str, kind: str) -> str:
    sentence = checked_text(row[column], column, row.source).strip()
    if not sentence:
        raise InputError(f"{row.source}: the {kind} sentence is empty: expected two sentences")
    return sentence


def _zorro_rows(file: InputFiles) -> Iterator[Row]:
    """Rows of a `.txt` whose odd lines are wrong, and the next ones right."""
    wrong, number = "", 0
    for number, line in file.lines():
        if number % 2:
            wrong = line
        else:
            yield Row({GOOD: line, BAD: wrong}, f"{file}:{number - 1}")
    if number % 2:
        raise InputError(
            f"{file}: {number} lines: expected pairs, each wrong sentence with the right one below it and no blank line"
        )
    if not number:
        raise InputError(f"{file}: there is nothing in it: expected pairs of sentences")
