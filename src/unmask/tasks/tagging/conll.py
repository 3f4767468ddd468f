"""Files of one word a line: CoNLL columns, CoNLL-U, KLUE-NER's characters, WikiANN's words, Korean morphemes.

Every reader turns a file into rows of the generic form: `tokens` and `tags`, and `document` and `id` if the file has
them. Only blanks, tabs and line feeds (with or without a carriage return) are separators in these formats: a no-break
space, U+2028 or a lone `#` is part of a word, and nothing is quoted. `tasks/conll_roles.py` reads semantic roles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from unmask.errors import InputError
from unmask.io.input_files import DataPath, as_files
from unmask.io.rows import Row

Note = Callable[[str, int], None]
"""Records what was left out, and how often: `ExampleCounts.note`."""

Reader = Callable[[DataPath, Note], Iterator[Row]]


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

    def as_row(self, path: DataPath, fields: dict[str, Any]) -> SentenceRow:
        """A row with `document` as its last field, if the file has documents."""
        told = {} if self.document is None else {"document": self.document}
        return SentenceRow({**fields, **told}, f"{path}:{self.lines[0]}", tuple(self.lines))


def read_lines(path: DataPath) -> Iterator[tuple[int, str]]:
    """The lines of a file without their ends, numbered from 1.

    Raises:
        InputError: as `InputFiles.lines`, or the file is empty.
    """
    number = 0
    for number, line in as_files(path).lines():
        yield number, line.rstrip("\r\n")
    if not number:
        raise InputError(f"{path}: the file is empty: expected one word a line, and a blank line between sentences")


def first_document(path: DataPath, is_mark: Callable[[str], bool]) -> int | None:
    """The number of the document of a file's first sentence: 0, or None where no line marks a document.

    WikiGold's marks stand between documents, so its first document has none: this reads ahead up to the first mark.
    """
    return 0 if any(is_mark(line) for _, line in read_lines(path)) else None


def _begins_document(line: str) -> bool:
    return line.lstrip(" ").startswith("-DOCSTART-")


def _begins_document_of_conllu(line: str) -> bool:
    return bool(re.match(r"#\s*newdoc\b", line))


def read_sentences(path: DataPath, fewest: int = 2) -> Iterator[Sentence]:
    """The sentences of a file of columns; lines that begin with `-DOCSTART-` begin a document.

    Args:
        fewest: least columns of a line. They are separated by tabs if the line has any, else by any number of blanks.

    Raises:
        InputError: a line has fewer columns, or another number of columns than the first line.
    """
    sentence, num_columns = Sentence(first_document(path, _begins_document)), 0
    for number, line in read_lines(path):
        if not line.strip(" \t"):
            if sentence.rows:
                yield sentence
                sentence = Sentence(sentence.document)
            continue
        columns = line.split("\t") if "\t" in line else list(filter(None, line.split(" ")))
        if _begins_document(line):
            if sentence.rows:
                yield sentence
            assert sentence.document is not None
            sentence = Sentence(sentence.document + 1)
            continue
        if len(columns) < fewest or not columns[0] or not columns[-1]:
            raise InputError(
                f"{path}:{number}: {line[:60]!r} has {len(list(filter(None, columns)))} columns: expected at least "
                f"{fewest}, the word first and its tag last, with a tab or blanks between them"
            )
        num_columns = num_columns or len(columns)
        if len(columns) != num_columns:
            raise InputError(
                f"{path}:{number}: {len(columns)} columns, and the lines before have {num_columns}: mend the line (a "
                "word with a blank in it needs tabs between the columns)"
            )
        sentence.rows.append(columns)
        sentence.lines.append(number)
    if sentence.rows:
        yield sentence


def read_columns(path: DataPath, note: Note) -> Iterator[Row]:
    """CoNLL's columns: the word first, its tag last; columns in between are ignored."""
    for sentence in read_sentences(path):
        yield sentence.as_row(path, {"tokens": sentence.column(0), "tags": sentence.column(-1)})


def read_single_sentences(path: DataPath, note: Note) -> Iterator[Row]:
    """As `read_columns`, for sentences that belong to no document, such as WNUT-17's tweets."""
    for row in read_columns(path, note):
        assert isinstance(row, SentenceRow)
        yield SentenceRow({key: row.fields[key] for key in ("tokens", "tags")}, row.source, row.lines)


def read_wikiann(path: DataPath, note: Note) -> Iterator[Row]:
    """As `read_columns`; the language before each word, `en:Paris`, is removed if all of the first sentence has it."""
    prefix: str | None = None
    for row in read_single_sentences(path, note):
        assert isinstance(row, SentenceRow)
        tokens = row.fields["tokens"]
        if prefix is None:
            match = re.match(r"[a-z-]{2,12}:", tokens[0])
            prefix = match[0] if match and all(token.startswith(match[0]) for token in tokens) else ""
        plain = [token.removeprefix(prefix) for token in tokens]
        yield SentenceRow({**row.fields, "tokens": plain}, row.source, row.lines)


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


def read_conllu(path: DataPath, note: Note) -> Iterator[Row]:
    """CoNLL-U: the columns FORM and UPOS; ranges of multiword tokens and empty nodes are left out, and counted."""
    document = first_document(path, _begins_document_of_conllu)
    for has_text, block in groupby(read_lines(path), key=lambda numbered: bool(numbered[1].strip(" \t"))):
        if not has_text:
            continue
        sentence, identifier = Sentence(document), None
        for number, line in block:
            if line.startswith("#"):
                name, _, value = line.removeprefix("#").partition("=")
                identifier = value.strip() if name.strip() == "sent_id" else identifier
                if _begins_document_of_conllu(line):
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
            if columns[3] == "_":
                raise InputError(f"{path}:{number}: {columns[1]!r} has no UPOS: expected one in column 4")
            sentence.rows.append(columns)
            sentence.lines.append(number)
        if sentence.rows:
            named = {"id": identifier} if identifier else {}
            yield sentence.as_row(path, {**named, "tokens": sentence.column(1), "tags": sentence.column(3)})


_MORPHEME = re.compile(r"(.+?)/([A-Z][A-Z0-9-]*)(?:\+|$)")


def read_morphemes(path: DataPath, note: Note) -> Iterator[Row]:
    """Sejong's layout, `갔다.<TAB>가/VV+았/EP+다/EF+./SF`, perhaps after ids: the word's tag is `VV+EP+EF+SF`.

    Words are tagged, not morphemes, since morphemes in that spelling are not always parts of the word (가, 았 in 갔).
    """
    for sentence in read_sentences(path):
        tags = []
        for number, analysis in zip(sentence.lines, sentence.column(-1), strict=True):
            found = list(_MORPHEME.finditer(analysis))
            if "".join(match[0] for match in found) != analysis or not found or analysis.endswith("+"):
                raise InputError(
                    f"{path}:{number}: {analysis[:60]!r}: expected morphemes with their tags, such as 나/NP+는/JX"
                )
            tags.append("+".join(match[2] for match in found))
        yield sentence.as_row(path, {"tokens": sentence.column(-2), "tags": tags})
