"""Semantic roles in the columns of CoNLL-2005 and CoNLL-2012: one row for each predicate, its roles as BIO tags.

Carreras and Marquez 2005, Pradhan et al. 2012. A column stands for a predicate; `(A0*`, `*`, `*)` and `(V*)` open and
close its arguments, and `(V` marks the predicate itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from unmask.errors import InputError
from unmask.io.input_files import DataPath
from unmask.io.rows import Row
from unmask.tasks.tagging.conll import Note, Sentence, first_document, read_lines

_CELL = re.compile(r"(?:\(([^()*]+))?\*(\))?")


def read_props(path: DataPath, note: Note) -> Iterator[Row]:
    """CoNLL-2005's words and propositions pasted together: the word, any other columns, the predicate's lemma or `-`,
    and a column for each predicate of the sentence."""
    for sentence in _read_blocks(path):
        num_roles = min(map(_trailing_cells, sentence.rows))
        columns = [sentence.column(place) for place in range(-num_roles, 0)]
        yield from _propositions(path, sentence, sentence.column(0), columns, note)


def read_gold_conll(path: DataPath, note: Note) -> Iterator[Row]:
    """CoNLL-2012's `*_gold_conll`: column 4 is the word, and the 12th to the last but one are the roles."""
    for sentence in _read_blocks(path, fewest=12):
        columns = [sentence.column(place) for place in range(11, len(sentence.rows[0]) - 1)]
        yield from _propositions(path, sentence, sentence.column(3), columns, note)


def _read_blocks(path: DataPath, fewest: int = 2) -> Iterator[Sentence]:
    """Sentences, each with its own number of columns. `#begin document` begins a document; the other `#` lines of 2012
    end a sentence."""
    sentence = Sentence(first_document(path, _begins_document))
    for number, line in read_lines(path):
        begins = _begins_document(line)
        if begins or line.startswith("#end document") or not line.strip(" \t"):
            if sentence.rows:
                yield sentence
            sentence = Sentence(None if sentence.document is None else sentence.document + begins)
            continue
        columns = re.split(r"[ \t]+", line.strip(" \t"))
        if len(columns) < fewest or (sentence.rows and len(columns) != len(sentence.rows[0])):
            wanted = len(sentence.rows[0]) if sentence.rows else f"at least {fewest}"
            raise InputError(
                f"{path}:{number}: {len(columns)} columns: expected {wanted}, as many as the other lines of the "
                "sentence have"
            )
        sentence.rows.append(columns)
        sentence.lines.append(number)
    if sentence.rows:
        yield sentence


def _begins_document(line: str) -> bool:
    return line.startswith("#begin document")


def _trailing_cells(row: Sequence[str]) -> int:
    """How many of the last columns hold a role; the first column is the word."""
    return next((count for count, cell in enumerate(reversed(row[1:])) if not _CELL.fullmatch(cell)), len(row) - 1)


def _propositions(
    path: DataPath, sentence: Sentence, tokens: list[str], columns: Sequence[Sequence[str]], note: Note
) -> Iterator[Row]:
    if not columns:
        note("sentences without a predicate left out", 1)
    for column in columns:
        tags: list[str] = []
        role: str | None = None
        for number, cell in zip(sentence.lines, column, strict=True):
            match = _CELL.fullmatch(cell)
            if match is None or (match[1] and role is not None) or (match[2] and not match[1] and role is None):
                raise InputError(
                    f"{path}:{number}: {cell!r} in a column of roles: expected `(A0*`, `*`, `*)` or `(A0*)`, opened "
                    "and closed in turn"
                )
            role = match[1] or role
            tags.append("O" if role is None else f"{'B' if match[1] else 'I'}-{role}")
            role = None if match[2] else role
        if role is not None:
            raise InputError(f"{path}:{sentence.lines[-1]}: the role {role} is not closed where its sentence ends")
        if tags.count("B-V") != 1:
            raise InputError(
                f"{path}:{sentence.lines[0]}: {tags.count('B-V')} predicates in a column of roles: expected one, `(V*)`"
            )
        yield sentence.as_row(path, {"tokens": list(tokens), "tags": tags, "predicate": tags.index("B-V")})
