"""From rows to sentences to tag: which files hold them, their words with their places in a text, and their tags.

Published: WNUT-17 (Derczynski et al. 2017), WikiGold (Balasuriya et al. 2009), WikiANN (Pan et al. 2017), KLUE-NER
(Park et al. 2021). Other files are read by their suffix, see `FORMATS`, or are tables with `tokens` and `tags`.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from unmask.errors import InputError
from unmask.io.input_files import DataPath, as_files, files_of
from unmask.io.rows import Row
from unmask.io.tables import read_rows
from unmask.tasks.rows import list_in_cell
from unmask.tasks.spelling import similar_columns
from unmask.tasks.tagging.conll import (
    Note,
    Reader,
    SentenceRow,
    read_columns,
    read_conllu,
    read_klue_ner,
    read_morphemes,
    read_single_sentences,
    read_wikiann,
)
from unmask.tasks.tagging.conll_roles import read_gold_conll, read_props
from unmask.tasks.tagging.schemes import OUTSIDE, Scheme

Span = tuple[int, int]
"""First character, and the one after the last."""


@dataclass(frozen=True)
class TaggingExample:
    """A sentence.

    Attributes:
        text: its words joined by blanks, or as it was given.
        units: the places in `text` of the words or characters to tag, ascending and not overlapping.
        tags: one per unit; None if they are not known.
        predicate: the unit whose roles are tagged; None for other tasks.
        document: the document it is part of; None if not known.
        left: the sentences before it in its document, as far as they may be needed.
        right: those after it.
        fields: the whole row.
        source: where it is, as `path:line`.
    """

    text: str
    units: tuple[Span, ...]
    tags: tuple[str, ...] | None
    predicate: int | None
    document: Any
    fields: Mapping[str, Any]
    source: str
    left: tuple[str, ...] = ()
    right: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The units' texts."""
        return [self.text[start:end] for start, end in self.units]

    def between(self, first: int, end: int) -> str:
        """The text of units `first` to `end`, the latter excluded."""
        return self.text[self.units[first][0] : self.units[end - 1][1]]


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

FORMATS: dict[str, Reader] = {
    **dict.fromkeys((".conll", ".iob", ".bio", ".txt"), read_columns),
    ".conllu": read_conllu,
    ".morph": read_morphemes,
    ".props": read_props,
    **dict.fromkeys((".gold_conll", ".v4_gold_conll"), read_gold_conll),
}
"""Files without a header, by suffix."""

_TABLES = (".jsonl", ".csv", ".parquet")
"""Files that are tables for every data set; .tsv is one only if the data set has no files of its own."""


def has_published_layout(path: DataPath) -> bool:
    """Whether a file is read as one of a data set's own; tables are not."""
    return as_files(path).suffixes[0] not in _TABLES


def read_file(path: DataPath, data_set: TaggingDataSet | None, note: Note) -> Iterator[Row]:
    """The rows of a file in the data set's published form, in the format of its suffix, or of a table."""
    for file in files_of(path):
        suffix = file.suffixes[0]
        if data_set is not None and has_published_layout(file):
            yield from data_set.reader(file, note)
        elif suffix in FORMATS:
            yield from FORMATS[suffix](file, note)
        elif suffix in (*_TABLES, ".tsv"):
            yield from read_rows(file)
        else:
            _refuse_kind(file)


def _refuse_kind(file: DataPath) -> None:
    raise InputError(
        f"{file}: unknown kind of file: expected {', '.join(FORMATS)} (one word a line), or .jsonl, .csv, .tsv or "
        ".parquet with the columns tokens and tags; rename it"
    )


@dataclass(frozen=True)
class TaggingColumns:
    """Names of columns; the first that a row has is used."""

    tokens: tuple[str, ...] = ("tokens",)
    tags: tuple[str, ...] = ("tags",)
    text: tuple[str, ...] = ("text",)
    predicate: tuple[str, ...] = ("predicate",)


def read_example(
    row: Row,
    columns: TaggingColumns,
    *,
    characters: bool,
    punctuation: bool,
    labelled: bool,
    needs_tags: bool,
    note: Note,
) -> TaggingExample:
    """A row as an example, its tags unchanged.

    A row has `tokens` or `text`, and perhaps `tags`, or `entities` that point into the text: `[[start, end, label]]`.

    Args:
        columns: of a table; rows of other files have the usual ones.
        characters: True makes each character of a text a unit, and joins tokens without blanks.
        punctuation: True makes punctuation at the edge of a word a unit of its own, if a text is cut into words.
        labelled: False does not look for tags.
        needs_tags: True refuses a row without tags.
        note: records entities that had to be widened.

    Raises:
        InputError: a field is missing or of the wrong kind, or fields do not match.
    """
    columns = TaggingColumns() if isinstance(row, SentenceRow) else columns
    tokens_name, text_name = _first(row, columns.tokens), _first(row, columns.text)
    if tokens_name is not None:
        tokens = _listed(row, tokens_name)
        text, units = _joined(tokens, "" if characters else " ")
    elif text_name is not None:
        text = _checked(row[text_name], text_name, row.source)
        units = [(place, place + 1) for place in range(len(text))] if characters else split_words(text, punctuation)
    else:
        raise InputError(
            f"{row.source}: no column {columns.tokens[0]!r} (a list of words) and none {columns.text[0]!r}: there is "
            f"{', '.join(row.fields) or 'nothing'}.{similar_columns((*columns.tokens, *columns.text), row)} "
            "Name it with data.columns.tokens=..."
        )
    tags_name = _first(row, columns.tags)
    tags: list[str] | None = None
    if labelled and tags_name is not None:
        tags = _listed(row, tags_name)
        if len(tags) != len(units):
            raise InputError(f"{row.source}: {len(units)} tokens and {len(tags)} tags: expected one tag a token")
    elif labelled and "entities" in row.fields:
        tags = _tags_of_entities(row, text, units, note)
    elif labelled and needs_tags:
        raise InputError(
            f"{row.source}: no column {columns.tags[0]!r} for the tags: there is {', '.join(row.fields)}."
            f"{similar_columns(columns.tags, row)} Name it with data.columns.tags=...; a file without tags is for "
            "`unmask predict`"
        )
    return TaggingExample(
        text,
        tuple(units),
        None if tags is None else tuple(tags),
        _predicate(row, _first(row, columns.predicate), len(units)),
        row.fields.get("document"),
        row.fields,
        row.source,
    )


def names_predicate(row: Row, columns: TaggingColumns) -> bool:
    """Whether a row names the predicate whose roles its tags are."""
    name = _first(row, (TaggingColumns() if isinstance(row, SentenceRow) else columns).predicate)
    return name is not None and row[name] != ""


def place_of(row: Row, unit: int) -> str:
    """The place of a unit, as `path:line`, or as the row's source and the number of the word."""
    if isinstance(row, SentenceRow):
        return f"{row.source.rpartition(':')[0]}:{row.lines[unit]}"
    return f"{row.source}, word {unit + 1}"


def split_words(text: str, punctuation: bool) -> list[Span]:
    """The words of a text, separated by white space.

    Args:
        punctuation: True also cuts punctuation and symbols off both edges of a word, one by one, as corpora of entities
            do; `@` and `#` stay before a name.
    """
    spans: list[Span] = []
    for has_text, group in groupby(range(len(text)), key=lambda place: not text[place].isspace()):
        places = list(group)
        if not has_text:
            continue
        start, end = places[0], places[-1] + 1
        first, last = start, end
        while punctuation and first < end and _is_mark(text[first]) and not (text[first] in "@#" and first + 1 < end):
            first += 1
        while punctuation and last > first and _is_mark(text[last - 1]):
            last -= 1
        spans += [(place, place + 1) for place in range(start, first)]
        spans += [(first, last)] if first < last else []
        spans += [(place, place + 1) for place in range(last, end)]
    return spans


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def with_context(
    examples: Iterator[TaggingExample], max_words: int, warn: Callable[[str], None] | None = None
) -> Iterator[TaggingExample]:
    """Examples with the sentences around them in their document, a document at a time.

    Args:
        max_words: sentences are added on each side until they have this many units.
        warn: called once, with the source of the first example that does not name its document; such examples get no
            context. None refuses them.

    Raises:
        InputError: an example does not name its document, and `warn` is None.
    """
    warned = False
    for document, group in groupby(examples, key=lambda example: example.document):
        if document is None:
            for example in group:
                if warn is None:
                    raise InputError(
                        f"{example.source}: task.document_context is true, and nothing says which sentences belong "
                        "together: expected -DOCSTART- lines, or a column `document`; or set "
                        "task.document_context=false"
                    )
                if not warned:
                    warn(example.source)
                    warned = True
                yield example
            continue
        sentences = list(group)
        texts = list(
            {example.source: example for example in sentences}.values()
        )  # one for all predicates of a sentence
        number = {example.source: place for place, example in enumerate(texts)}
        for example in sentences:
            place = number[example.source]
            left = _enough((texts[other] for other in range(place - 1, -1, -1)), max_words)
            right = _enough((texts[other] for other in range(place + 1, len(texts))), max_words)
            yield replace(example, left=left[::-1], right=right)


def _enough(sentences: Iterable[TaggingExample], max_words: int) -> tuple[str, ...]:
    """The first sentences that together have at least `max_words` units."""
    texts, num_words = [], 0
    for sentence in sentences:
        if num_words >= max_words:
            break
        texts.append(sentence.text)
        num_words += len(sentence.units)
    return tuple(texts)


def _first(row: Row, names: Sequence[str]) -> str | None:
    return next((name for name in names if name in row and row[name] is not None), None)


def _listed(row: Row, name: str) -> list[str]:
    """A list of texts, or a text: the JSON of such a list, or words with blanks between them, such as `[ 1 ]`."""
    value = row[name]
    if isinstance(value, str):
        words, begins_with_bracket = list(filter(None, value.split(" "))), value.startswith("[ ")
        listed = list_in_cell(value, name, row.source, refuses=not begins_with_bracket)
        is_of_texts = listed is not None and all(isinstance(word, str) for word in listed)
        is_list = is_of_texts or (listed is not None and len(words) > 1 and not begins_with_bracket)
        value = listed if is_list else words
    if not isinstance(value, list):
        raise InputError(f"{row.source}: {name} is {json.dumps(value)[:60]}: expected a list of texts")
    return [_checked(word, f"{name}[{place}]", row.source) for place, word in enumerate(value)]


def _checked(value: Any, name: str, source: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{source}: {name} is {json.dumps(value)[:60]}: expected a text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{source}: {name} holds half of a surrogate pair, \\u{ord(value[error.start]):04x}: no character; mend "
            "the JSON escape, or the program that wrote it"
        ) from error
    return value


def _joined(tokens: Sequence[str], separator: str) -> tuple[str, list[Span]]:
    spans, start = [], 0
    for token in tokens:
        spans.append((start, start + len(token)))
        start += len(token) + len(separator)
    return separator.join(tokens), spans


def _predicate(row: Row, name: str | None, num_units: int) -> int | None:
    value = None if name is None else row[name]
    if value is None or value == "":
        return None
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if type(number) is not int or not 0 <= number < num_units:
        raise InputError(
            f"{row.source}: {name} is {json.dumps(value)[:60]}: expected the number of a word, 0 to {num_units - 1}"
        )
    return number


def _tags_of_entities(row: Row, text: str, units: Sequence[Span], note: Note) -> list[str]:
    """BIO tags of units from entities given by character offsets; one that ends inside a unit is widened to it."""
    tags = [OUTSIDE] * len(units)
    entities = row.fields["entities"]
    if not isinstance(entities, list):
        raise InputError(
            f"{row.source}: entities is {json.dumps(entities)[:60]}: expected a list of [start, end, label]"
        )
    for entity in entities:
        start, end, label = _checked_entity(entity, len(text), row.source)
        inside = [place for place, unit in enumerate(units) if unit[0] < end and start < unit[1]]
        if not inside or any(tags[place] != OUTSIDE for place in inside):
            problem = "shares a word with another one" if inside else "holds no word"
            raise InputError(
                f"{row.source}: the entity {text[start:end]!r} ({label}) {problem}: expected each word in one at most"
            )
        note("entities widened to whole words", units[inside[0]][0] != start or units[inside[-1]][1] != end)
        for place in inside:
            tags[place] = f"{'B' if place == inside[0] else 'I'}-{label}"
    return tags


def _checked_entity(entity: Any, length: int, source: str) -> tuple[int, int, str]:
    if isinstance(entity, Mapping):
        entity = [entity.get(key) for key in ("start", "end", "label")]
    if isinstance(entity, list) and len(entity) == 3:
        start, end, label = entity
        if type(start) is int and type(end) is int and 0 <= start < end <= length and isinstance(label, str) and label:
            return start, end, label
    raise InputError(
        f"{source}: the entity {json.dumps(entity, ensure_ascii=False)[:60]}: expected [start, end, label], characters "
        f"of the text from 0 to {length}"
    )
