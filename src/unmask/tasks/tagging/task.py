"""Tagging: a softmax over tags at the first token of each word (BERT, section 5.3): entities, parts of speech, roles.

Every unit of a sentence, which is a word or, in KLUE-NER, a character, gets exactly one tag: that of the token which
represents it (`unmask.tasks.tagging.windows`). Internally entity tags are BIO, whatever scheme the files use. No CRF,
as in the paper; with `tagging_head: bilstm` the paper's two-layer BiLSTM reads frozen features, and with
`feature_layers` alone a linear classifier.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from unmask.errors import InputError, ModelError, SettingsError
from unmask.io.input_files import DataPath
from unmask.io.progress import named
from unmask.io.rows import Row
from unmask.models.encoder import Encoder
from unmask.models.family import HeadKind
from unmask.models.heads.bilstm import FeatureHead
from unmask.tasks.base import ExampleCounts, Prediction, Task, TaskModule
from unmask.tasks.cutting import SpannedText, fit_tokenizer
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.kinds import TaskKind
from unmask.tasks.rows import shown_beside
from unmask.tasks.sequence_module import new_task_head
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.tagging.decoding import decode_sentences
from unmask.tasks.tagging.files import DATA_SETS, TaggingDataSet, has_published_layout, looks_like_columns, read_file
from unmask.tasks.tagging.metrics import TaggingScore, floors, known_labels
from unmask.tasks.tagging.module import FeatureTaggingModule, TaggingModule
from unmask.tasks.tagging.rows import (
    EntityInsideWord,
    TaggingColumns,
    TaggingExample,
    bio_tags,
    is_word,
    names_predicate,
    place_of,
    read_example,
    single_word,
    with_context,
)
from unmask.tasks.tagging.schemes import OUTSIDE, Scheme, are_bio, complete_labels, detect_scheme, find_entities
from unmask.tasks.tagging.windows import encode_sentences
from unmask.tokenization.opening import Tokenizer

logger = logging.getLogger("unmask")

MOST_LABELS = 10_000
"""Most labels taken from a training file; more are hardly tags. `task.labels` may list any number."""

_FEW = 0.05
"""Share of sentences with an entity that ends inside a word, below which characters are not tagged unasked."""

_MOST_OF_ONE_WORD = 10
"""Rows of one word each that may be the sentences of a small table."""


@dataclass(frozen=True)
class Tagging(Task[TaggingExample]):
    """The task.

    Attributes:
        settings: its name, lengths, heads, and what it tags; `units` None: words, or what the data set tags.
        data_set: None for the user's own files.
        layout: the columns of tables, with the names that are looked for beside the user's.
        columns: the user's settings for them.
        labels: in the order of their ids; empty until read from the training file.
        has_predicates: True if the training file has semantic roles.
        predicted_scheme: of the tags that are to be scored; a model's own are BIO.
        warned: what a warning was given of: a server reads each request by itself, and one is enough.
    """

    settings: TaskSettings
    data_set: TaggingDataSet | None
    layout: TaggingColumns
    columns: ColumnSettings
    labels: tuple[str, ...] = ()
    has_predicates: bool = False
    predicted_scheme: Scheme = "BIO"
    warned: set[Literal["words", "no document"]] = field(default_factory=set, compare=False, repr=False)

    kind: ClassVar[TaskKind] = "tagging"
    head_kind: ClassVar[HeadKind] = "token_classification"
    problem_type: ClassVar[None] = None
    per_token: ClassVar[bool] = True

    @property
    def tags_characters(self) -> bool:
        """True if the units are characters, not words."""
        return self.settings.units == "characters" or (self.data_set is not None and self.data_set.characters)

    # Reading.

    def fit_to(self, path: DataPath) -> Tagging:
        """The task with what the training file shows: whether characters are tagged, since entities end inside words;
        its labels, unless they are known (O first, then B- and I- of each type; other tags sorted); and
        `has_predicates`.

        Raises:
            InputError: as in `Task`; or so few entities end inside a word that their places are probably wrong; or a
                table has one word a row.
        """
        if self.data_set is not None and has_published_layout(path):
            return self._with_labels(path)
        task, has_predicates, num_sentences = self, False, 0
        inside_words: list[EntityInsideWord] = []
        words: list[str] = []  # of a table that has had one a row
        for row in self.load_rows(path):
            num_sentences += 1
            has_predicates |= names_predicate(row, self.layout)
            if len(words) == num_sentences - 1 and (name := single_word(row, self.layout)) is not None:
                words.append(row[name])
            if self.settings.units is None:
                try:
                    self._read(row, needs_tags=False)
                except EntityInsideWord as found:
                    inside_words.append(found)
        if len(words) == num_sentences > _MOST_OF_ONE_WORD:
            first = next(filter(None, words), "")
            raise InputError(
                f"{path}: each of its {num_sentences:,} rows has at most one word in the column {name!r}, such as "
                f"{first!r}: expected a sentence a row, its words separated by blanks, and as many tags. Join the rows "
                "of each sentence, or write a word and its tag a line to a .conll with a blank line after each "
                f"sentence; a sentence of one word may be written as a list, {json.dumps([first], ensure_ascii=False)}"
            )
        if inside_words:
            what = str(inside_words[0]).partition(", and words are tagged")[0]
            if len(inside_words) < _FEW * num_sentences:
                raise InputError(
                    f"{what}, as in {len(inside_words):,} of {num_sentences:,} sentences: correct such places, or tag "
                    "characters in place of words with task.units=characters"
                )
            logger.info("%s: so characters are tagged, not words (task.units=characters)", what)
            task = task.with_settings(units="characters")
        return replace(task._with_labels(path), has_predicates=True) if has_predicates else task._with_labels(path)

    def _with_labels(self, path: DataPath) -> Tagging:
        if self.labels:
            return self
        scheme, seen = self._scheme(path), set()
        for row in self.load_rows(path):
            seen.update(
                bio_tags(row, self._read(row, needs_tags=False).tags or (), scheme, self.settings.repair_tags)[0]
            )
        if not seen:
            for row in self.load_rows(path):
                self._read(row)  # raises at the first row without tags, naming the columns that it has
            raise InputError(f"{path}: not a single sentence in it: nothing to learn or to measure")
        if scheme == "none" and OUTSIDE in seen:
            kind = min(seen - {OUTSIDE})
            logger.warning(
                "%s: no tag begins with B- or I-, so tags such as %r are read as they are, like parts of speech, and "
                "no entities will be found: if %s is an entity's type, write I-%s",
                *(path, kind, kind, kind),
            )
        labels = tuple(sorted(seen)) if scheme == "none" else complete_labels(seen)
        if len(labels) > MOST_LABELS:
            raise InputError(
                f"{path}: {len(labels):,} different tags, over {MOST_LABELS:,}: check that they are tags, and "
                "list them in task.labels if so"
            )
        return replace(self, labels=labels)

    def with_predicted(self, tags: set[str], scheme: Scheme) -> Tagging:
        """The task for scoring a file of predictions in a scheme, with their tags added to its labels: a model may
        predict tags that the data lack.

        Args:
            tags: the predicted ones; where the labels are of entities, other tags are left out.
        """
        task = replace(self, predicted_scheme=scheme)
        if not tags:
            return task
        are_others = not are_bio(self.labels)
        found = tags.union(self.labels)
        return replace(task, labels=tuple(sorted(found)) if are_others else complete_labels(found))

    def load_rows(self, path: DataPath) -> Iterator[Row]:
        return read_file(path, self.data_set, ExampleCounts().note, self.layout)

    def is_published_txt(self, lines: Sequence[str]) -> bool:
        """See `Task`: one word a line."""
        return looks_like_columns(lines, self.layout, self.labels)

    def load(self, path: DataPath, counts: ExampleCounts, *, unlabelled: bool = False) -> Iterator[TaggingExample]:
        """See `Task`; with `unlabelled` a row may have no tags."""
        examples = self._load(path, counts, unlabelled)
        yield from with_context(examples, self.settings.max_length) if self.settings.document_context else examples

    def _load(self, path: DataPath, counts: ExampleCounts, unlabelled: bool) -> Iterator[TaggingExample]:
        scheme, known, loaded = self._scheme(path), frozenset(self.labels), 0
        for row in read_file(path, self.data_set, counts.note, self.layout):
            example = self._in_units(self._read(row, needs_tags=not unlabelled))
            if example.tags is not None:
                tags, num_repaired = bio_tags(row, example.tags, scheme, self.settings.repair_tags)
                counts.note("tags that broke their scheme and were repaired", num_repaired)
                for place, tag in enumerate(tags):
                    if known and tag not in known:
                        written = example.tags[place]
                        found = shown_beside(written, known - {written})
                        found += f" ({tag} in BIO)" if tag != written else ""
                        raise InputError(
                            f"{place_of(row, place)}: the tag {found} is none of the known ones ({named(self.labels)})"
                            ": fix it, or train with it, in a row of data.train or in task.labels"
                        )
                example = replace(example, tags=tuple(tags))
            loaded += 1
            yield example
        if not loaded:
            raise InputError(f"{path}: not a single sentence in it: nothing to learn or to measure")

    def read(self, row: Row) -> TaggingExample:
        """See `Task`: `tokens`, or a `text`, which is cut into words, or for KLUE-NER into characters; there `tokens`
        with a word among them are read as the text that they make, joined by blanks unless most are characters."""
        return self._in_units(self._read(row, labelled=False))

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

    def read_all(self, rows: Iterable[Row]) -> Iterator[TaggingExample]:
        """See `Task`; the rows of a `document` must be adjacent, and one document at a time is held in memory."""
        examples, length = map(self.read, rows), self.settings.max_length
        return with_context(examples, length, self._warn_of_no_context) if self.settings.document_context else examples

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

    def _read(self, row: Row, *, labelled: bool = True, needs_tags: bool = True) -> TaggingExample:
        return read_example(
            row,
            self.layout,
            characters=self.tags_characters,
            punctuation=not self.labels or are_bio(self.labels),
            labelled=labelled,
            needs_tags=needs_tags,
            names=self.labels,
        )

    def _scheme(self, path: DataPath) -> Scheme:
        """The scheme of a file's tags: the data set's, or detected from the tags."""
        if self.data_set is not None and has_published_layout(path):
            return self.data_set.scheme
        if self.labels and not are_bio(self.labels):
            return "none"
        return detect_scheme(self._read(row, needs_tags=False).tags or () for row in self.load_rows(path))

    # Encoding and learning.

    def encode(
        self, examples: Sequence[TaggingExample], tokenizer: Tokenizer, counts: ExampleCounts, num_segments: int = 2
    ) -> EncodedExamples:
        kind = "characters" if self.tags_characters else "words"
        return encode_sentences(examples, self.labels, tokenizer, self.settings, counts, num_segments, kind)

    def fit_tokenizer(self, tokenizer: Tokenizer, examples: Sequence[TaggingExample], path: DataPath) -> Tokenizer:
        """See `unmask.tasks.cutting`."""
        texts = list(self.spans(examples))
        return fit_tokenizer(tokenizer, texts, "entities", path, is_cut=self.settings.cut_pieces)

    def spans(self, examples: Iterable[TaggingExample]) -> Iterator[SpannedText]:
        """The entities of labelled examples."""
        for example in examples:
            entities = find_entities(example.tags or ())
            places = [(example.units[one.first][0], example.units[one.end - 1][1]) for one in entities]
            yield SpannedText(example.text, places, example.source)

    def check(self, training: EncodedExamples, path: DataPath) -> None:
        """See `Task`: at least two tags must occur."""
        present = np.unique(known_labels(training))
        if len(present) < 2:
            what = f"every word is tagged {self.labels[present[0]]}" if len(present) else "no word has a token"
            raise InputError(f"{path}: {what}: nothing can be learned from it; expected at least two tags")

    def module(self, encoder: Encoder, head: nn.Module | None = None) -> TaskModule:
        """See `Task`; raises ModelError for semantic roles with a causal encoder or ELMo's, unless under a BiLSTM."""
        settings, num_labels = self.settings, len(self.labels)
        layers, is_bilstm = settings.feature_layers or "last", settings.tagging_head == "bilstm"
        if (
            not is_bilstm
            and settings.encoder_top == "none"
            and self.has_predicates
            and (encoder.settings.is_causal or encoder.reads_words)
        ):
            what = "a causal encoder" if encoder.settings.is_causal else "an encoder that reads two texts apart"
            raise ModelError(
                f"semantic roles cannot be learned with {what} ({encoder.settings.architecture}): each predicate is "
                "named behind its sentence, where the words do not see it; take an encoder of another family, or set "
                "task.tagging_head=bilstm or task.encoder_top=bilstm"
            )
        if settings.reads_features:
            if head is None:
                units = settings.bilstm_size if is_bilstm else None
                head = FeatureHead(encoder.settings, num_labels, layers, settings.classifier_dropout, units)
            return FeatureTaggingModule(encoder, head, layers, settings.mixture_penalty)
        head = new_task_head(self.head_kind, encoder, num_labels, settings) if head is None else head
        return TaggingModule(encoder, head, settings.mixture_penalty)

    # Answering.

    def decode(self, examples: Sequence[TaggingExample], encoded: EncodedExamples, outputs: Tensor) -> list[Prediction]:
        return decode_sentences(examples, encoded, outputs, self.labels)

    def score(self) -> TaggingScore:
        surface_forms = self.data_set is not None and self.data_set.surface_forms
        return TaggingScore(self.labels, self.tags_characters, surface_forms, self.predicted_scheme)

    def floors(self, training: EncodedExamples, dev: EncodedExamples) -> dict[str, dict[str, float]]:
        """See `Task`: predicting the most frequent tag everywhere, or O where tags are of entities."""
        return floors(self.labels, training, dev)

    def sample(self, example: TaggingExample, prediction: Prediction) -> dict[str, Any]:
        """See `Task`; `probability` is that of the least certain entity."""
        return {
            "input": {"text": example.text},
            "label": None if example.tags is None else self._described(example, example.tags),
            "prediction": self._described(example, prediction["tags"]),
            "probability": min((entity["score"] for entity in prediction["entities"]), default=None),
        }

    def _described(self, example: TaggingExample, tags: Sequence[str]) -> str:
        if not are_bio(self.labels):
            return " ".join(tags)
        entities = find_entities(tags)
        return ", ".join(f"{example.between(one.first, one.end)} [{one.label}]" for one in entities) or "no entity"


def open_task(settings: TaskSettings, columns: ColumnSettings, lenient: bool = False) -> Tagging:
    """See `unmask.tasks.table.open_task`."""
    data_set = DATA_SETS.get(settings.name)
    if settings.units == "words" and data_set is not None and data_set.characters:
        raise SettingsError(f"task.units=words: {settings.name} tags characters: leave it out")
    names = {}
    for content, usual in asdict(TaggingColumns()).items():
        name = getattr(columns, content)
        names[content] = usual if name is None else (name, *usual) if lenient else (name,)
    labels = tuple(settings.labels or (data_set.labels if data_set is not None else ()))
    return Tagging(settings, data_set, TaggingColumns(**names), columns, labels)
