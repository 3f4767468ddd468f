"""From rows to sentences to tag: their words with their places in a text, and their tags.

Tags are beside the words, or come from entities that point into the text by its characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from unmask.errors import ColumnError, InputError
from unmask.io.encodings import normalized
from unmask.io.json_files import shown
from unmask.io.rows import Row, cut_short, similar_columns
from unmask.tasks.rows import checked_text, list_in_cell, missing_column, naming, same_column
from unmask.tasks.tagging.conll import SentenceRow
from unmask.tasks.tagging.schemes import OUTSIDE

Span = tuple[int, int]
"""First character, and the one after the last."""

_POSSESSIVE = re.compile("(?<=\\w)['’][sS]$")
_ENTITIES = ("entities", "label", "labels", "spans")
"""Where entities are looked for; Prodigy and spaCy write `spans`; doccano and Label Studio `label`, which may also be
the class of a text, and is no list then."""
_ENTITY_KEYS = (("start", "end", "label"), ("start", "end", "labels"), ("start_offset", "end_offset", "label"))


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
    def texts(self) -> tuple[str, ...]:
        """See `Example`."""
        return (self.text,)

    @property
    def words(self) -> list[str]:
        """The units' texts."""
        return [self.text[start:end] for start, end in self.units]

    def between(self, first: int, end: int) -> str:
        """The text of units `first` to `end`, the latter excluded."""
        return self.text[self.units[first][0] : self.units[end - 1][1]]


@dataclass(frozen=True)
class TaggingColumns:
    """Names of columns, or their numbers in files without a header; the first that a row has is used."""

    tokens: tuple[str, ...] = ("tokens",)
    tags: tuple[str, ...] = ("tags", "ner_tags")
    text: tuple[str, ...] = ("text",)
    predicate: tuple[str, ...] = ("predicate",)


class EntityInsideWord(InputError):  # noqa: N818  what is wrong
    """An entity begins or ends inside a word, so that tags of words cannot say where it is."""


def read_example(
    row: Row,
    columns: TaggingColumns,
    *,
    characters: bool,
    punctuation: bool,
    labelled: bool,
    needs_tags: bool,
    names: Sequence[str] = (),
) -> TaggingExample:
    """A row as an example, its tags unchanged.

    A row has `tokens` or `text`, and perhaps `tags`, or `entities` that point into the text: `[[start, end, label]]`,
    which other programs call `spans` or `label`.

    Args:
        columns: of a table; rows of other files have the usual ones.
        characters: True makes each character of a text a unit, and joins tokens without blanks, if they are characters.
        punctuation: True makes punctuation at the edge of a word a unit of its own, if a text is cut into words.
        labelled: False does not look for tags.
        needs_tags: True refuses a row without tags.
        names: of tags that are given as numbers, from 0.

    Raises:
        InputError: a field is missing or of the wrong kind, fields do not match, or one is both words and tags.
        EntityInsideWord: an entity ends inside a unit.
    """
    columns = TaggingColumns() if isinstance(row, SentenceRow) else columns
    tokens_name, text_name = _first(row, columns.tokens), _first(row, columns.text)
    if tokens_name is not None:
        tokens = _texts_in(row, tokens_name)
        text, units = _joined(tokens, "" if characters and 2 * sum(map(is_word, tokens)) < len(tokens) else " ")
    elif text_name is not None:
        text = checked_text(row[text_name], text_name, row.source)
        units = [(place, place + 1) for place in range(len(text))] if characters else split_words(text, punctuation)
    else:
        raise ColumnError(
            f"{row.source}: no column {columns.tokens[0]!r} (a list of words) and none {columns.text[0]!r}: there is "
            f"{', '.join(cut_short(row.fields)) or 'nothing'}."
            f"{similar_columns((*columns.tokens, *columns.text), row.fields)}",
            f"Name it with {naming('text')} or, for lists of words, {naming('tokens')}",
        )
    tags_name = _first(row, columns.tags)
    if labelled and tags_name is not None and tags_name == (tokens_name or text_name):
        raise same_column(row.source, tags_name, "words", "text" if tokens_name is None else "tokens", "tags", "tags")
    tags: list[str] | None = None
    if labelled and (entities := _entities_of(row, tags_name, tokens_name is None)) is not None:
        tags = _tags_of_entities(entities, text, units, row.source)
    elif labelled and tags_name is not None:
        tags = _texts_in(row, tags_name, names)
        if len(tags) != len(units):
            raise InputError(f"{row.source}: {len(units)} tokens and {len(tags)} tags: expected one tag a token")
    elif labelled and needs_tags:
        raise missing_column(row, columns.tags, "tags", "tags")
    document = row.fields.get("document")
    if document is not None and isinstance(row, SentenceRow):  # their numbers begin anew in every file
        document = row.source.rpartition(":")[0], document
    return TaggingExample(
        text,
        tuple(units),
        None if tags is None else tuple(tags),
        _predicate(row, _first(row, columns.predicate), len(units)),
        document,
        row.fields,
        row.source,
    )


def is_word(token: str) -> bool:
    """Whether a token is more than one character, decomposed or not."""
    return len(token) > 1 and len(normalized("NFC", token)) > 1


def names_predicate(row: Row, columns: TaggingColumns) -> bool:
    """Whether a row names the predicate whose roles its tags are."""
    name = _first(row, (TaggingColumns() if isinstance(row, SentenceRow) else columns).predicate)
    return name is not None and row[name] != ""


def single_word(row: Row, columns: TaggingColumns) -> str | None:
    """The column of a table's row whose text is all the words of a sentence, if it has one at most."""
    name = None if isinstance(row, SentenceRow) else _first(row, columns.tokens)
    value = None if name is None else row[name]
    return name if isinstance(value, str) and len(value.split()) < 2 and not value.startswith('["') else None


def with_context(
    examples: Iterator[TaggingExample], max_words: int, warn: Callable[[str], None] | None = None
) -> Iterator[TaggingExample]:
    """Examples with the sentences around them in their document, a document at a time.

    Args:
        max_words: sentences are added on each side until they have this many units.
        warn: called with the source of an example that does not name its document; such examples get no context. None
            refuses them.

    Raises:
        InputError: an example does not name its document, and `warn` is None.
    """
    for document, group in groupby(examples, key=lambda example: example.document):
        if document is None:
            for example in group:
                if warn is None:
                    raise InputError(
                        f"{example.source}: task.document_context is true, and nothing says which sentences belong "
                        "together: expected -DOCSTART- lines, or a column `document`; or set "
                        "task.document_context=false"
                    )
                warn(example.source)
                yield example
            continue
        sentences = list(group)
        texts = [*{example.source: example for example in sentences}.values()]  # one for all predicates of a sentence
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


def _texts_in(row: Row, name: str, names: Sequence[str] | None = None) -> list[str]:
    """A list of texts, or a text: the JSON of such a list, or words with blanks between them, such as `[ 1 ]`.

    Args:
        names: those of tags, which may be given as their numbers; None: these are no tags.
    """
    value = row[name]
    if isinstance(value, str):
        words, begins_with_bracket = list(filter(None, value.split(" "))), value.startswith("[ ")
        listed = list_in_cell(value, name, row.source, refuses=not begins_with_bracket)
        is_of_texts = listed is not None and all(isinstance(word, str) for word in listed)
        is_list = is_of_texts or (listed is not None and len(words) > 1 and not begins_with_bracket)
        value = listed if is_list else words
    if not isinstance(value, list):
        raise InputError(f"{row.source}: {name} is {shown(value)}: expected a list of texts")
    if names is not None and any(type(tag) is int for tag in value):
        return [_named(tag, names, f"{name}[{place}]", row.source) for place, tag in enumerate(value)]
    return [checked_text(word, f"{name}[{place}]", row.source) for place, word in enumerate(value)]


def _named(tag: Any, names: Sequence[str], name: str, source: str) -> str:
    if type(tag) is int and 0 <= tag < len(names):
        return names[tag]
    raise InputError(
        f"{source}: {name} is {shown(tag)}: expected a text, or the number of one of task.labels, from 0 to "
        f"{len(names) - 1}"
        if names
        else f"{source}: {name} is {shown(tag)}: expected a text; to read "
        "numbers give their names in task.labels, in the order of the numbers: task.labels=[O,B-PER,I-PER]"
    )


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
        raise InputError(f"{row.source}: {name} is {shown(value)}: expected the number of a word, 0 to {num_units - 1}")
    return number


def _entities_of(row: Row, tags_name: str | None, is_text: bool) -> Any:
    """The entities of a row, where it has them in place of tags; None if it has none.

    Args:
        tags_name: the column of its tags, which may hold entities too; None if there is none.
        is_text: whether the row has a text and no list of words: then an empty list says that there is no entity.
    """
    if tags_name is not None:
        value = _perhaps_list(row, tags_name)
        if value == []:
            return value if is_text and not _perhaps_list(row, "entities") else None
        return value if isinstance(value, list) and isinstance(value[0], list | Mapping) else None
    if row.fields.get("entities") is not None:
        return _perhaps_list(row, "entities")
    names = (name for name in _ENTITIES if is_text or name != "spans")  # beside words they may be of words
    name, value = next(((name, its) for name in names if isinstance(its := _perhaps_list(row, name), list)), ("", None))
    if name == "spans" and (answer := row.fields.get("answer")) in ("reject", "ignore"):
        raise InputError(
            f"{row.source}: answer is {shown(answer)}: expected spans that were accepted; take the row out"
        )
    return value


def _perhaps_list(row: Row, name: str) -> Any:
    """The value of a field, decoded where the cell of a table holds a list; None where it is missing."""
    value = row.fields.get(name)
    decoded = list_in_cell(value, name, row.source) if isinstance(value, str) else None
    return value if decoded is None else decoded


def _tags_of_entities(entities: Any, text: str, units: Sequence[Span], source: str) -> list[str]:
    """BIO tags of units from entities given by character offsets."""
    tags = [OUTSIDE] * len(units)
    if not isinstance(entities, list):
        wanted = "expected a list of [start, end, label], [] for none, in the cell of a table as JSON"
        raise InputError(f"{source}: entities is {shown(entities)}: {wanted}")
    for entity in entities:
        start, end, label = _checked_entity(entity, len(text), source)
        inside = [place for place, unit in enumerate(units) if unit[0] < end and start < unit[1]]
        if not inside or any(tags[place] != OUTSIDE for place in inside):
            problem = "shares a word with another one" if inside else "holds no word"
            raise InputError(
                f"{source}: the entity {text[start:end]!r} ({label}) {problem}: expected each word in one at most"
            )
        first, last = units[inside[0]], units[inside[-1]]
        if first[0] < start or end < last[1]:
            begins, word = ("begins", first) if first[0] < start else ("ends", last)
            raise EntityInsideWord(
                f"{source}: the entity {text[start:end]!r} ({label}) {begins} inside the word {text[slice(*word)]!r}, "
                "and words are tagged: train with task.units=characters, or correct its place"
            )
        for place in inside:
            tags[place] = f"{'B' if place == inside[0] else 'I'}-{label}"
    return tags


def _checked_entity(entity: Any, length: int, source: str) -> tuple[int, int, str]:
    given = entity
    if isinstance(entity, Mapping):
        keys = next((keys for keys in _ENTITY_KEYS if all(key in entity for key in keys)), _ENTITY_KEYS[0])
        *places, labels = (entity.get(key) for key in keys)
        given = [*places, labels[0] if isinstance(labels, list) and len(labels) == 1 else labels]
    if isinstance(given, list) and len(given) == 3:
        start, end, label = given
        if type(start) is int and type(end) is int and 0 <= start < end <= length and isinstance(label, str) and label:
            return start, end, label
    raise InputError(
        f"{source}: the entity {shown(entity)}: expected [start, end, label], characters of the text from 0 to {length}"
        ", or an object of start, end and label (or labels, a list of one)"
    )


def split_words(text: str, punctuation: bool) -> list[Span]:
    """The words of a text, separated by white space.

    Args:
        punctuation: True also cuts punctuation and symbols off both edges of a word, one by one, and the possessive
            `'s` off its end, as corpora of entities do; `@` and `#` stay before a name.
    """
    spans: list[Span] = []
    for word in re.finditer(r"\S+", text):
        start, end = first, last = word.span()
        while punctuation and first < end and _is_mark(text[first]) and not (text[first] in "@#" and first + 1 < end):
            first += 1
        while punctuation and last > first and _is_mark(text[last - 1]):
            last -= 1
        spans += [(place, place + 1) for place in range(start, first)]
        middle = last - 2 if punctuation and _POSSESSIVE.search(text, first, last) else last
        spans += [span for span in ((first, middle), (middle, last)) if span[0] < span[1]]
        spans += [(place, place + 1) for place in range(last, end)]
    return spans


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"
