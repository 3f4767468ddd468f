"""Files of one word a line: CoNLL columns, CoNLL-U, KLUE-NER's characters, WikiANN's words, Korean morphemes.

Semantic roles (CoNLL-2005, CoNLL-2012) are here too: Carreras and Marquez 2005, Pradhan et al. 2012. Every reader turns
a file into rows of the generic form: `tokens` and `tags`, and `document` and `id` if the file has
them. Only blanks, tabs and line feeds (with or without a carriage return) are separators in these formats: a no-break
space, U+2028 or a lone `#` is part of a word, and nothing is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from unmask.errors import InputError
from unmask.io.input_files import DataPath, as_files
from unmask.io.rows import Row
from unmask.tasks.rows import same_column


@dataclass(frozen=True)
class HeldLines:
    """Numbered lines in memory in place of a file: standard input cannot be read twice.

    Attributes:
        name: for messages.
        lines: without or with their ends.
    """

    name: str
    lines: Sequence[tuple[int, str]]

    def __str__(self) -> str:
        return self.name


FileOrLines = DataPath | HeldLines

Note = Callable[[str, int], None]
"""Records what was left out, and how often: `ExampleCounts.note`."""

Reader = Callable[..., Iterator[Row]]
"""Takes a DataPath and a Note."""


@dataclass(frozen=True)
class SentenceRow(Row):
    """A sentence whose words have a line each.

    Attributes:
        lines: the number of each word's line.
    """

    lines: tuple[int, ...] = ()


@dataclass
class Sentence:
    """The lines of a sentence, split into columns.

    Attributes:
        document: how many documents began before it in this file; None if nothing in the file marks documents.
        rows: the columns of each word; all sentences of a file have the same number of columns.
        lines: the words' line numbers in the file.
    """

    document: int | None
    rows: list[list[str]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def column(self, number: int) -> list[str]:
        return [row[number] for row in self.rows]

    def as_row(self, path: FileOrLines, fields: dict[str, Any]) -> SentenceRow:
        """A row with `document` as its last field, if the file has documents."""
        document = {} if self.document is None else {"document": self.document}
        return SentenceRow({**fields, **document}, f"{path}:{self.lines[0]}", tuple(self.lines))


def read_lines(path: FileOrLines) -> Iterator[tuple[int, str]]:
    """The lines of a file without their ends, numbered from 1.

    Raises:
        InputError: as `InputFiles.lines`, or the file is empty.
    """
    if isinstance(path, HeldLines):
        yield from ((number, line.rstrip("\r\n")) for number, line in path.lines)
        return
    number = 0
    for number, line in as_files(path).lines():
        yield number, line.rstrip("\r\n")
    if not number:
        raise InputError(f"{path}: the file is empty: expected one word a line, and a blank line between sentences")


def first_document(path: DataPath, is_mark: Callable[[str], bool]) -> int | None:
    """The number of the document of a file's first sentence: 0, or None where no line marks a document.

    WikiGold's marks are between documents, so its first document has none: this reads ahead up to the first mark.
    """
    return 0 if any(is_mark(line) for _, line in read_lines(path)) else None


def begins_document(line: str) -> bool:
    """Whether a line of columns begins a document."""
    return line.lstrip(" ").startswith("-DOCSTART-")


def begins_document_of_conllu(line: str) -> bool:
    """Whether the sentence that a comment of CoNLL-U stands before begins a document."""
    return bool(re.match(r"#\s*newdoc\b", line))


def read_sentences(path: FileOrLines, word: int = 0, tag: int = -1) -> Iterator[Sentence]:
    """The sentences of a file of columns; lines that begin with `-DOCSTART-` begin a document.

    A line that begins with `#` where a sentence begins is a comment, unless it is like the other lines: as many
    columns, and a tag that occurs elsewhere.

    Args:
        word, tag: the columns that every line needs, from 0, or -1 for the last. They are separated by tabs if the line
            has any, else by any number of blanks. Where every line has one column, that is the word.

    Raises:
        InputError: a line has fewer columns, or another number of columns than the first line; or the word and its tag
            are one column.
    """
    has_documents, num_columns, tags = _survey(path, tag)
    if num_columns > 1:
        _check_columns(path, word, tag if tag >= 0 else num_columns - 1)
    fewest = max(min(num_columns, 2), word + 1, tag + 1)
    sentence = Sentence(0 if has_documents else None)
    for number, line in read_lines(path):
        if not line.strip(" \t"):
            if sentence.rows:
                yield sentence
                sentence = Sentence(sentence.document)
            continue
        columns = _columns_of(line)
        if begins_document(line):
            if sentence.rows:
                yield sentence
            assert sentence.document is not None
            sentence = Sentence(sentence.document + 1)
            continue
        has_known_tag = num_columns == 1 or tags.issuperset(columns[tag:][:1])
        is_like_others = not num_columns or (len(columns) == num_columns and has_known_tag)
        if line.startswith("#") and not sentence.rows and not is_like_others:
            continue
        if len(columns) < fewest or not columns[word] or not columns[tag]:
            raise InputError(
                f"{path}:{number}: {line[:60]!r} has {len(list(filter(None, columns)))} columns: expected at least "
                f"{fewest}, the word in column {word + 1} and its tag in "
                f"{'the last one' if tag < 0 else f'column {tag + 1}'}, with a tab or blanks between them"
            )
        num_columns = num_columns or len(columns)
        if len(columns) != num_columns:
            raise InputError(
                f"{path}:{number}: {len(columns)} columns, and the lines before have {num_columns}: fix the line (a "
                "word with a blank in it needs tabs between the columns)"
            )
        sentence.rows.append(columns)
        sentence.lines.append(number)
    if sentence.rows:
        yield sentence


def _check_columns(path: FileOrLines, word: int, tag: int) -> None:
    if word == tag:
        raise same_column(str(path), word + 1, "words", "tokens", "tags", "tags")


def _columns_of(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else list(filter(None, line.split(" ")))


def _survey(path: FileOrLines, tag: int) -> tuple[bool, int, set[str]]:
    """Whether lines mark documents, and of the lines that begin with no `#` the number of columns and the tags."""
    has_documents, num_columns, tags = False, 0, set()
    for _, line in read_lines(path):
        if begins_document(line):
            has_documents = True
        elif line.strip(" \t") and not line.startswith("#"):
            columns = _columns_of(line)
            num_columns = num_columns or len(columns)
            tags.update(columns[tag:][:1])
    return has_documents, num_columns, tags


def read_columns(path: FileOrLines, note: Note, word: int = 0, tag: int = -1) -> Iterator[Row]:
    """CoNLL's columns: the word first, its tag last, or in the columns given; the others are ignored. A column that
    is the only one is the word's, and rows have no tags."""
    for sentence in read_sentences(path, word, tag):
        tags = {"tags": sentence.column(tag)} if len(sentence.rows[0]) > 1 else {}
        yield sentence.as_row(path, {"tokens": sentence.column(word), **tags})


def read_single_sentences(path: DataPath, note: Note) -> Iterator[Row]:
    """As `read_columns`, for sentences that belong to no document, such as WNUT-17's tweets."""
    for row in read_columns(path, note):
        yield replace(row, fields={name: row.fields[name] for name in ("tokens", "tags") if name in row.fields})


def read_wikiann(path: DataPath, note: Note) -> Iterator[Row]:
    """As `read_columns`; the language before each word, `en:Paris`, is removed if all of the first sentence has it."""
    prefix: str | None = None
    for row in read_single_sentences(path, note):
        tokens = row.fields["tokens"]
        if prefix is None:
            match = re.match(r"[a-z-]{2,12}:", tokens[0])
            prefix = match[0] if match and all(token.startswith(match[0]) for token in tokens) else ""
        plain = [token.removeprefix(prefix) for token in tokens]
        yield replace(row, fields={**row.fields, "tokens": plain})


def read_klue_ner(path: DataPath, note: Note) -> Iterator[Row]:
    """KLUE-NER: one character a line, blanks included; the last `##` line before a sentence begins with its id.

    `tokens` are the characters.
    """
    for has_text, block in groupby(read_lines(path), key=lambda numbered: numbered[1] not in ("", "\t")):
        if not has_text:
            continue
        identifier: str | None = None
        characters, tags, lines = [], [], []
        for number, line in block:
            if line.startswith("##"):
                identifier = line.removeprefix("##").split("\t")[0].strip()
                continue
            character, tab, tag = line.rpartition("\t")
            if not tab or not character or not tag:
                raise InputError(f"{path}:{number}: {line[:60]!r}: expected a character, a tab and its tag")
            characters.append(character)
            tags.append(tag)
            lines.append(number)
        if lines:
            fields = {"tokens": characters, "tags": tags}
            numbered = {"id": identifier, **fields} if identifier else fields
            yield SentenceRow(numbered, f"{path}:{lines[0]}", tuple(lines))


CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""The names of CoNLL-U's columns, in order."""


def read_conllu(path: DataPath, note: Note, word: int = 1, tag: int = 3) -> Iterator[Row]:
    """CoNLL-U: the columns FORM and UPOS, or those given; ranges of multiword tokens and empty nodes are left out, and
    counted."""
    _check_columns(path, word, tag)
    document = first_document(path, begins_document_of_conllu)
    for has_text, block in groupby(read_lines(path), key=lambda numbered: bool(numbered[1].strip(" \t"))):
        if not has_text:
            continue
        sentence, identifier = Sentence(document), None
        for number, line in block:
            if line.startswith("#"):
                name, _, value = line.removeprefix("#").partition("=")
                identifier = value.strip() if name.strip() == "sent_id" else identifier
                if begins_document_of_conllu(line):
                    assert document is not None
                    document += 1
                    sentence.document = document
                continue
            columns = line.split("\t")
            if len(columns) != 10 or not columns[1]:
                raise InputError(
                    f"{path}:{number}: {len(columns)} columns: expected CoNLL-U's ten, separated by tabs, with a word "
                    "in the second"
                )
            if re.fullmatch(r"\d+[-.]\d+", columns[0]):
                note("multiword ranges and empty nodes left out", 1)
                continue
            if columns[tag] == "_":
                name = CONLLU_COLUMNS[tag].upper()
                raise InputError(f"{path}:{number}: {columns[1]!r} has no {name}: expected one in column {tag + 1}")
            sentence.rows.append(columns)
            sentence.lines.append(number)
        if sentence.rows:
            named = {"id": identifier} if identifier else {}
            yield sentence.as_row(path, {**named, "tokens": sentence.column(word), "tags": sentence.column(tag)})


_MORPHEME = re.compile(r"(.+?)/([A-Z][A-Z0-9-]*)(?:\+|$)")


def read_morphemes(path: DataPath, note: Note) -> Iterator[Row]:
    """Sejong's layout, `갔다.<TAB>가/VV+았/EP+다/EF+./SF`, perhaps after ids: the word's tag is `VV+EP+EF+SF`.

    Words are tagged, not morphemes, since morphemes in that spelling are not always parts of the word (가, 았 in 갔).
    """
    for sentence in read_sentences(path):
        tags = []
        for number, columns in zip(sentence.lines, sentence.rows, strict=True):
            analysis, found, end = columns[-1], [], 0
            while match := _MORPHEME.match(analysis, end):  # one behind the other: `finditer` would search for each
                found.append(match[2])
                end = match.end()
            if len(columns) < 2 or end < len(analysis) or not found or analysis.endswith("+"):
                raise InputError(
                    f"{path}:{number}: {analysis[:60]!r}: expected morphemes with their tags, such as 나/NP+는/JX, "
                    "behind their word"
                )
            tags.append("+".join(found))
        yield sentence.as_row(path, {"tokens": sentence.column(-2), "tags": tags})


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
    sentence = Sentence(first_document(path, _begins_document_of_2012))
    for number, line in read_lines(path):
        begins = _begins_document_of_2012(line)
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


def _begins_document_of_2012(line: str) -> bool:
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
