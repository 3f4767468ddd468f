"""From files to tagged sentences: what a training file shows, and examples whose tags are BIO, whatever scheme the
files use."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from unmask.errors import InputError
from unmask.io.input_files import DataPath
from unmask.io.progress import named
from unmask.io.rows import Row
from unmask.tasks.base import ExampleCounts
from unmask.tasks.rows import shown_beside
from unmask.tasks.settings import TaskSettings
from unmask.tasks.tagging.conll import SentenceRow
from unmask.tasks.tagging.examples import (
    EntityInsideWord,
    TaggingColumns,
    TaggingExample,
    is_word,
    names_predicate,
    read_example,
    single_word,
    with_context,
)
from unmask.tasks.tagging.files import TaggingDataSet, has_published_layout, read_file
from unmask.tasks.tagging.schemes import OUTSIDE, Scheme, are_bio, complete_labels, detect_scheme, split_tag, to_bio

logger = logging.getLogger("unmask")

Warned = Literal["words", "no document"]

MOST_LABELS = 10_000
"""Most labels taken from a training file; more are hardly tags. `task.labels` may list any number."""

_FEW = 0.05
"""Share of sentences with an entity that ends inside a word, below which characters are not tagged unasked."""

_MOST_OF_ONE_WORD = 10
"""Rows of one word each that may be the sentences of a small table."""


@dataclass
class Survey:
    """What the sentences of a training file show.

    Attributes:
        num_sentences: of the file.
        has_predicates: whether it has semantic roles.
        tags: those that occur, as they are written.
        words: of a table that has had one a row, and at most.
        column: where the last of them is.
        inside_words: of each sentence with an entity that ends inside a word, what says where.
        labels: of the task: O first, then B- and I- of each type; other tags sorted.
    """

    num_sentences: int = 0
    has_predicates: bool = False
    tags: set[str] = field(default_factory=set)
    words: list[str] = field(default_factory=list)
    column: str = ""
    inside_words: list[str] = field(default_factory=list)
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaggedFiles:
    """How the files and inputs of a task are read.

    Attributes:
        settings: of the task: `units`, `repair_tags`, `document_context` and `max_length`.
        data_set: None for the user's own files.
        layout: the columns of tables, with the names that are looked for beside the user's.
        labels: of the task; empty until they are known.
        warned: what a warning was given of: a server reads each request by itself, and one is enough.
    """

    settings: TaskSettings
    data_set: TaggingDataSet | None
    layout: TaggingColumns
    labels: tuple[str, ...]
    warned: set[Warned]

    @property
    def tags_characters(self) -> bool:
        """True if the units are characters, not words."""
        return self.settings.units == "characters" or (self.data_set is not None and self.data_set.characters)

    def rows(self, path: DataPath) -> Iterator[Row]:
        """Streams the rows of a file; raises InputError where it cannot be read."""
        return read_file(path, self.data_set, ExampleCounts().note, self.layout)

    def survey(self, path: DataPath) -> Survey:
        """Reads a training file once, for its labels, unless they are known, and for what else it shows.

        Raises:
            InputError: it cannot be read, or has no tags; or so few entities end inside a word that their places are
                probably wrong; or a table has one word a row; or it has too many labels.
        """
        found = Survey()
        scheme = detect_scheme(self._surveyed(path, found))
        _refuse_a_word_a_row(path, found)
        if found.inside_words:
            what = found.inside_words[0].partition(", and words are tagged")[0]
            if len(found.inside_words) < _FEW * found.num_sentences:
                raise InputError(
                    f"{what}, as in {len(found.inside_words):,} of {found.num_sentences:,} sentences: correct such "
                    "places, or tag characters in place of words with task.units=characters"
                )
            logger.info("%s: so characters are tagged, not words (task.units=characters)", what)
        found.labels = self.labels or self._labels_of(path, found.tags, scheme)
        return found

    def _labels_of(self, path: DataPath, tags: Collection[str], scheme: Scheme) -> tuple[str, ...]:
        """The labels of a training file by the tags in it; of entities those that begin one and those that continue
        it."""
        if not tags:
            for row in self.rows(path):
                self._example(row)  # raises at the first row without tags, naming the columns that it has
            raise InputError(f"{path}: not a single sentence in it: nothing to learn or to measure")
        if scheme == "none" and OUTSIDE in tags:
            kind = min(set(tags) - {OUTSIDE})
            logger.warning(
                "%s: no tag begins with B- or I-, so tags such as %r are read as they are, like parts of speech, and "
                "no entities will be found: if %s is an entity's type, write I-%s",
                *(path, kind, kind, kind),
            )
        labels = tuple(sorted(tags)) if scheme == "none" else complete_labels(tags)
        if len(labels) > MOST_LABELS:
            raise InputError(
                f"{path}: {len(labels):,} different tags, over {MOST_LABELS:,}: check that they are tags, and "
                "list them in task.labels if so"
            )
        return labels

    def _surveyed(self, path: DataPath, found: Survey) -> Iterator[Sequence[str]]:
        """Streams the tags of each sentence, and notes what the sentence shows.

        An entity that ends inside a word is read in characters, unless words are asked for.
        """
        in_characters = replace(self, settings=self.settings.model_copy(update={"units": "characters"}))
        for row in self.rows(path):
            found.has_predicates |= names_predicate(row, self.layout)
            if len(found.words) == found.num_sentences and (name := single_word(row, self.layout)) is not None:
                found.words.append(row[name])
                found.column = name
            found.num_sentences += 1
            try:
                tags = self._example(row, needs_tags=False).tags or ()
            except EntityInsideWord as inside:
                if self.settings.units is not None:
                    raise
                found.inside_words.append(str(inside))
                tags = ()
                with suppress(EntityInsideWord):  # a row that names its tokens has no other ones: `load` refuses it
                    tags = in_characters._example(row, needs_tags=False).tags or ()
            found.tags.update(tags)
            yield tags

    def load(self, path: DataPath, counts: ExampleCounts, unlabelled: bool) -> Iterator[TaggingExample]:
        """See `Task.load`; with `unlabelled` a row may have no tags."""
        examples = self._in_bio(path, counts, unlabelled)
        return with_context(examples, self.settings.max_length) if self.settings.document_context else examples

    def _in_bio(self, path: DataPath, counts: ExampleCounts, unlabelled: bool) -> Iterator[TaggingExample]:
        scheme, known, loaded = self._scheme(path), frozenset(self.labels), 0
        for row in read_file(path, self.data_set, counts.note, self.layout):
            example = self._in_units(self._example(row, needs_tags=not unlabelled))
            if example.tags is not None:
                tags, num_repaired = bio_tags(row, example.tags, scheme, self.settings.repair_tags)
                counts.note("tags that broke their scheme and were repaired", num_repaired)
                for place, tag in enumerate(tags):
                    if known and tag not in known:
                        written = example.tags[place]
                        found = shown_beside(written, known - {written})
                        found += f" ({tag} in BIO)" if tag != written else ""
                        raise InputError(
                            f"{_place_of(row, place)}: the tag {found} is none of the known ones "
                            f"({named(self.labels)}): fix it, or train with it, in a row of data.train or in "
                            "task.labels"
                        )
                example = replace(example, tags=tuple(tags))
            loaded += 1
            yield example
        if not loaded:
            raise InputError(f"{path}: not a single sentence in it: nothing to learn or to measure")

    def _scheme(self, path: DataPath) -> Scheme:
        """The scheme of a file's tags: the data set's, or detected from the tags."""
        if self.data_set is not None and has_published_layout(path):
            return self.data_set.scheme
        if self.labels and not are_bio(self.labels):
            return "none"
        return detect_scheme(self._example(row, needs_tags=False).tags or () for row in self.rows(path))

    def read(self, row: Row) -> TaggingExample:
        """An input of `predict`: `tokens`, or a `text`, which is cut into words, or for KLUE-NER into characters; there
        `tokens` with a word among them are read as the text that they make, joined by blanks unless most are
        characters. Raises InputError as `Task.read`."""
        return self._in_units(self._example(row, labelled=False))

    def read_all(self, rows: Iterable[Row]) -> Iterator[TaggingExample]:
        """Streams inputs; the rows of a `document` must be adjacent, and one document at a time is held in memory."""
        examples, length = map(self.read, rows), self.settings.max_length
        return with_context(examples, length, self._warn_of_no_context) if self.settings.document_context else examples

    def _example(self, row: Row, *, labelled: bool = True, needs_tags: bool = True) -> TaggingExample:
        """See `read_example`."""
        return read_example(
            row,
            self.layout,
            characters=self.tags_characters,
            punctuation=not self.labels or are_bio(self.labels),
            labelled=labelled,
            needs_tags=needs_tags,
            names=self.labels,
        )

    def _in_units(self, example: TaggingExample) -> TaggingExample:
        """The example in characters where these are tagged and it has words, unless these have tags; warns of such."""
        words = [*filter(is_word, example.words)] if self.tags_characters else []
        if not words:
            return example
        stays = example.tags is not None or example.predicate is not None
        if "words" not in self.warned:
            self.warned.add("words")
            what = "each word gets the tag of its first token" if stays else "the tags are those of their text"
            logger.warning(
                "%s: words, such as %r, and characters are tagged here (by task.units=characters, or as in klue-ner): "
                "%s. Give a text in a field `text`, or all its characters, blanks too, in `tokens`, and tags of "
                "characters",
                *(example.source, words[0], what),
            )
        places = range(len(example.text))
        return example if stays else replace(example, units=tuple((place, place + 1) for place in places))

    def _warn_of_no_context(self, source: str) -> None:
        if "no document" in self.warned:
            return
        self.warned.add("no document")
        logger.warning(
            "%s: it does not name its document: the model was trained with the sentences around "
            "(task.document_context), and tags inputs that name none without them; give a field `document`, the same "
            "for all sentences of one",
            source,
        )


def bio_tags(row: Row, tags: Sequence[str], scheme: Scheme, repairs: bool) -> tuple[list[str], int]:
    """The tags of a row in BIO, and how many of them broke their scheme.

    Raises:
        InputError: one is no tag of entities among such; or one breaks the scheme, and `repairs` is False.
    """
    for place, tag in enumerate(tags):
        if scheme != "none" and split_tag(tag) is None:
            raise InputError(
                f"{_place_of(row, place)}: {tag!r} among tags of entities: expected O, or B- or I- and a type"
            )
    bio, broken = to_bio(tags, scheme)
    if broken and not repairs:
        raise InputError(
            f"{_place_of(row, broken[0])}: the tag {tags[broken[0]]!r} breaks the scheme {scheme}: nothing begins "
            f"its entity, or in IOBES ends it; it would be read as {bio[broken[0]]!r}: fix it, or set "
            "task.repair_tags=true"
        )
    return bio, len(broken)


def _place_of(row: Row, unit: int) -> str:
    """The place of a unit, as `path:line`, or as the row's source and the number of the word."""
    if isinstance(row, SentenceRow):
        return f"{row.source.rpartition(':')[0]}:{row.lines[unit]}"
    return f"{row.source}, word {unit + 1}"


def _refuse_a_word_a_row(path: DataPath, found: Survey) -> None:
    """Raises InputError for a table of more than a few rows each of which has one word."""
    if len(found.words) == found.num_sentences > _MOST_OF_ONE_WORD:
        first = next(filter(None, found.words), "")
        raise InputError(
            f"{path}: each of its {found.num_sentences:,} rows has at most one word in the column {found.column!r}, "
            f"such as {first!r}: expected a sentence a row, its words separated by blanks, and as many tags. Join the "
            "rows of each sentence, or write a word and its tag a line to a .conll with a blank line after each "
            f"sentence; a sentence of one word may be written as a list, {json.dumps([first], ensure_ascii=False)}"
        )
