"""Files of sentences to tag, by data set and suffix, as rows.

Published: WNUT-17 (Derczynski et al. 2017), WikiGold (Balasuriya et al. 2009), WikiANN (Pan et al. 2017), KLUE-NER
(Park et al. 2021). Other files are read by their suffix, see `TAGGING_READERS`, or are tables with `tokens` and `tags`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from unmask.errors import InputError
from unmask.io.input_files import NEEDS_NAME, STANDARD_INPUT, DataPath, InputFiles, as_files, files_of
from unmask.io.parquet import class_names
from unmask.io.rows import Row
from unmask.io.tables import read_rows
from unmask.tasks.tagging.conll import (
    CONLLU_COLUMNS,
    FileOrLines,
    HeldLines,
    Note,
    Reader,
    read_columns,
    read_conllu,
    read_gold_conll,
    read_klue_ner,
    read_lines,
    read_morphemes,
    read_props,
    read_sentences,
    read_single_sentences,
    read_wikiann,
)
from unmask.tasks.tagging.examples import TaggingColumns
from unmask.tasks.tagging.schemes import OUTSIDE, Scheme, are_bio, split_tag

USUAL_COLUMNS = TaggingColumns()
_NUMBER = re.compile("[1-9][0-9]?")
_SEVERAL_TAGS = re.compile(r'\S +\S|^\[\s*["\d]')
"""A cell with blanks between tags, or with a JSON list of tags or of their numbers."""


@dataclass(frozen=True)
class TaggingDataSet:
    """A published data set.

    Attributes:
        reader: reads its files.
        scheme: the scheme of its tags.
        types: the types of its entities.
        characters: True if characters are tagged, not words.
        surface_forms: True if F1 of distinct surface forms is a published figure.
    """

    reader: Reader
    scheme: Scheme
    types: tuple[str, ...]
    characters: bool = False
    surface_forms: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """O first, then B- and I- of each type."""
        return (OUTSIDE, *(f"{letter}-{kind}" for kind in self.types for letter in "BI"))


DATA_SETS: dict[str, TaggingDataSet] = {
    "wnut17": TaggingDataSet(
        read_single_sentences,
        "BIO",
        ("corporation", "creative-work", "group", "location", "person", "product"),
        surface_forms=True,
    ),
    "wikigold": TaggingDataSet(read_columns, "IOB1", ("LOC", "MISC", "ORG", "PER")),
    "wikiann": TaggingDataSet(read_wikiann, "BIO", ("LOC", "ORG", "PER")),
    "klue-ner": TaggingDataSet(read_klue_ner, "BIO", ("DT", "LC", "OG", "PS", "QT", "TI"), characters=True),
}

TAGGING_READERS: dict[str, Reader] = {
    **dict.fromkeys((".conll", ".iob", ".bio", ".txt", ".train", ".testa", ".testb"), read_columns),
    ".conllu": read_conllu,
    ".morph": read_morphemes,
    ".props": read_props,
    **dict.fromkeys((".gold_conll", ".v4_gold_conll"), read_gold_conll),
}
"""Files without a header, by suffix."""

_TABLES = (".jsonl", ".json", ".csv", ".parquet")
"""Files that are tables for every data set; .tsv is one only if the data set has no files of its own."""


def has_published_layout(path: DataPath) -> bool:
    """Whether a file is read as one of a data set's own; tables are not."""
    return as_files(path).suffixes[0] not in _TABLES


def read_file(
    path: DataPath, data_set: TaggingDataSet | None, note: Note, columns: TaggingColumns = USUAL_COLUMNS
) -> Iterator[Row]:
    """The rows of a file in the data set's published form, in the format of its suffix, or of a table.

    Args:
        columns: of files of one word a line, where they are numbers (or names of CoNLL-U's columns). A `.tsv` of which
            one is a number, and whose first line has no column of a usual name, has no header, whether or not
            `data.header=none` says so. It has a sentence a line if a cell of the column of tags holds several tags
            (separated by blanks, or a JSON list), else a word a line.
    """
    for file in files_of(path):
        suffix = file.suffixes[0]
        if data_set is not None and has_published_layout(file):
            yield from data_set.reader(file, note)
        elif suffix == ".conllu":
            yield from read_conllu(file, note, **_chosen_columns(file, columns, CONLLU_COLUMNS))
        elif suffix == ".tsv" and _is_numbered(file, columns) and not _has_words(file, columns):
            yield from read_rows(replace(file, settings=file.settings.model_copy(update={"header": "none"})))
        elif TAGGING_READERS.get(suffix) is read_columns or (suffix == ".tsv" and _is_numbered(file, columns)):
            yield from read_columns(file, note, **_chosen_columns(file, columns))
        elif suffix in TAGGING_READERS:
            yield from TAGGING_READERS[suffix](file, note)
        elif suffix in (*_TABLES, ".tsv"):
            yield from _read_table(file)
        elif file.path == STANDARD_INPUT:
            raise InputError(f"{file}: {NEEDS_NAME}")
        else:
            raise InputError(
                f"{file}: unknown kind of file: expected {', '.join(TAGGING_READERS)} (one word a line), or "
                ".jsonl, .json, .csv, .tsv or .parquet with the columns tokens and tags; rename it"
            )


def looks_like_columns(lines: Sequence[str], columns: TaggingColumns, labels: Sequence[str]) -> bool:
    """Whether lines are of one word each: each has as many columns as the others, at least two, and one of the labels,
    or a tag of entities where labels are such, in the column of the tag.
    """
    numbered = list(enumerate(lines, start=1))
    tag, of_entities = _chosen_columns(HeldLines("", ()), columns).get("tag", -1), are_bio(labels)
    try:
        sentences = [one for one in read_sentences(HeldLines("", numbered), tag=tag) if len(one.rows[0]) > 1]
    except InputError:
        return False
    found = [one for sentence in sentences for one in sentence.column(tag)]
    return bool(found) and all(one in labels or (of_entities and split_tag(one) is not None) for one in found)


def read_held(lines: HeldLines, columns: TaggingColumns) -> Iterator[Row]:
    """The rows of lines of one word each, that are no file; they may have no tags."""
    yield from read_columns(lines, lambda what, count: None, **_chosen_columns(lines, columns))


def _chosen_columns(path: FileOrLines, columns: TaggingColumns, known: Sequence[str] = ()) -> dict[str, int]:
    """The numbers, from 0, of the columns that the user has chosen in a file without a header.

    Args:
        known: names of the columns, where the format has them.
    """
    chosen = {}
    for key, argument in (("tokens", "word"), ("tags", "tag")):
        names: tuple[str, ...] = getattr(columns, key)
        numbers = [int(name) - 1 for name in names if _NUMBER.fullmatch(name)]
        numbers += [known.index(name.lower()) for name in names if name.lower() in known]
        if numbers and (not known or numbers[0] < len(known)):
            chosen[argument] = numbers[0]
        elif len(names) == 1 and names[0] not in getattr(USUAL_COLUMNS, key):  # the user's, for this file
            expected = f"the number of one, from 1, or one of {', '.join(known)}" if known else "a number, from 1"
            raise InputError(f"{path}: columns.{key} is {names[0]!r}, and no column has that name: expected {expected}")
    return chosen


def _has_words(file: InputFiles, columns: TaggingColumns) -> bool:
    """Whether a `.tsv` has one word a line: no line has several tags in the column of tags."""
    number = _chosen_columns(file, columns).get("tag", -1)
    rows = (line.split("\t") for _, line in read_lines(file) if not line.startswith("#"))
    return not any(_SEVERAL_TAGS.search(cell) for row in rows for cell in row[number:][:1])


def _is_numbered(file: InputFiles, columns: TaggingColumns) -> bool:
    """Whether a `.tsv` has no header: a column is named by its number, and the first line has no usual name."""
    if not any(map(_NUMBER.fullmatch, (*columns.tokens, *columns.tags))):
        return False
    first = next((line for _, line in read_lines(file) if line.strip(" \t")), "")
    return {*USUAL_COLUMNS.tokens, *USUAL_COLUMNS.tags, *USUAL_COLUMNS.text}.isdisjoint(first.split("\t"))


def _read_table(file: InputFiles) -> Iterator[Row]:
    """The rows of a table; numbered tags get the names that a `.parquet` of Hugging Face `datasets` holds."""
    names = class_names(file.path) if file.path.suffix == ".parquet" else {}
    for row in read_rows(file):
        fields = dict(row.fields)
        for column, tag_names in names.items():
            if isinstance(fields.get(column), list):
                fields[column] = [
                    tag_names[tag] if type(tag) is int and 0 <= tag < len(tag_names) else tag for tag in fields[column]
                ]
        yield replace(row, fields=fields)
