"""Tagging: a softmax over tags at the first token of each word (BERT, section 5.3): entities, parts of speech, roles.

Every unit of a sentence, which is a word or, in KLUE-NER, a character, gets exactly one tag: that of the token which
represents it (`unmask.tasks.tagging.windows`). Internally entity tags are BIO, whatever scheme the files use. No CRF,
as in the paper; with `tagging_head: bilstm` the paper's two-layer BiLSTM reads frozen features.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.batch import IGNORE_INDEX
from unmask.errors import InputError, ModelError, SettingsError
from unmask.models.encoder import Encoder
from unmask.models.heads.bilstm_head import bilstm_head
from unmask.models.heads.heads import HeadKind, new_head
from unmask.tasks.base import ExampleCounts, Prediction, Score, TaskModule
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.rows import Row
from unmask.tasks.settings import ColumnSettings, TaskKind, TaskSettings
from unmask.tasks.tagging.conll import Note
from unmask.tasks.tagging.decoding import decode_sentences
from unmask.tasks.tagging.frozen_features import feature_tagging_module
from unmask.tasks.tagging.metrics import TaggingScore
from unmask.tasks.tagging.module import TaggingModule
from unmask.tasks.tagging.rows import (
    DATA_SETS,
    TaggingColumns,
    TaggingDataSet,
    TaggingExample,
    has_published_layout,
    names_predicate,
    place_of,
    read_example,
    read_file,
    with_context,
)
from unmask.tasks.tagging.schemes import (
    OUTSIDE,
    Scheme,
    are_bio,
    complete_labels,
    detect_scheme,
    find_entities,
    split_tag,
    to_bio,
)
from unmask.tasks.tagging.windows import encode_sentences
from unmask.tokenization.opening import Tokenizer

logger = logging.getLogger("unmask")

COLUMNS = ("tokens", "tags", "text", "predicate", "id")
"""The fields of `ColumnSettings` that apply here."""

MOST_LABELS = 10_000
"""Most labels taken from a training file; more are hardly tags. `task.labels` may list any number."""


@dataclass(frozen=True)
class Tagging:
    """The task.

    Attributes:
        name: `tagging`, or a data set's id.
        data_set: None for the user's own files.
        columns: the columns of tables.
        said_columns: the user's settings for them.
        labels: in the order of their ids; empty until read from the training file.
        max_length: most tokens of a row.
        doc_stride: tokens from one window's beginning to the next one's.
        classifier_dropout: None takes the encoder's.
        document_context: True fills rows with the surrounding sentences.
        repair_tags: True mends tags that break their scheme, and counts them; False refuses them.
        head: `linear`, or `bilstm` on features of the frozen encoder.
        feature_layers: the layers that the BiLSTM head reads.
        bilstm_size: units of each direction of either BiLSTM.
        encoder_top: `bilstm` puts a BiLSTM on the encoder, and trains both.
        has_predicates: True if the training file has semantic roles.
    """

    name: str
    data_set: TaggingDataSet | None
    columns: TaggingColumns
    said_columns: ColumnSettings
    labels: tuple[str, ...]
    max_length: int = 128
    doc_stride: int = 128
    classifier_dropout: float | None = None
    document_context: bool = False
    repair_tags: bool = True
    head: Literal["linear", "bilstm"] = "linear"
    feature_layers: str = "last"
    bilstm_size: int = 768
    encoder_top: Literal["none", "bilstm"] = "none"
    has_predicates: bool = False

    kind: ClassVar[TaskKind] = "tagging"
    head_kind: ClassVar[HeadKind] = "token_classification"
    problem_type: ClassVar[None] = None
    per_token: ClassVar[bool] = True

    @property
    def tags_characters(self) -> bool:
        """True if the units are characters, not words."""
        return self.data_set is not None and self.data_set.characters

    # Reading.

    def fit_to(self, path: Path) -> Tagging:
        """The task with the labels of the training file, unless they are known already (O first, then B- and I- of each
        type; other tags sorted), and with `has_predicates`."""
        published = self.data_set is not None and has_published_layout(path)
        if not published and any(names_predicate(row, self.columns) for row in self.load_rows(path)):
            return replace(self._with_labels(path), has_predicates=True)
        return self._with_labels(path)

    def _with_labels(self, path: Path) -> Tagging:
        if self.labels:
            return self
        scheme, seen = self._scheme(path), set()
        for row in self.load_rows(path):
            seen.update(self._bio_tags(row, self._read(row, needs_tags=False).tags or (), scheme)[0])
        if not seen:
            for row in self.load_rows(path):
                self._read(row)  # raises at the first row without tags, naming the columns that it has
            raise InputError(f"{path}: not a single sentence in it: nothing to learn or to measure")
        labels = complete_labels(seen)
        if len(labels) > MOST_LABELS:
            raise InputError(
                f"{path}: {len(labels):,} different tags, over {MOST_LABELS:,}: check that they are tags, and "
                "list them in task.labels if so"
            )
        return replace(self, labels=labels)

    def with_predicted(self, tags: set[str]) -> Tagging:
        """The task with the tags of predictions added to its labels: a model may predict tags that the file lacks.

        Args:
            tags: the predicted ones; where the labels are of entities, other tags are left out.
        """
        if not are_bio(self.labels):
            return replace(self, labels=tuple(sorted(tags.union(self.labels))))
        return replace(self, labels=complete_labels(tags.union(self.labels)))

    def load_rows(self, path: Path) -> Iterator[Row]:
        """See `Task`."""
        return read_file(path, self.data_set, _unheard)

    def load(self, path: Path, counts: ExampleCounts, *, unlabelled: bool = False) -> Iterator[TaggingExample]:
        """See `Task`; with `unlabelled` a row may have no tags."""
        examples = self._load(path, counts, unlabelled)
        yield from with_context(examples, self.max_length) if self.document_context else examples

    def _load(self, path: Path, counts: ExampleCounts, unlabelled: bool) -> Iterator[TaggingExample]:
        scheme, known, loaded = self._scheme(path), frozenset(self.labels), 0
        for row in read_file(path, self.data_set, counts.note):
            example = self._read(row, needs_tags=not unlabelled, note=counts.note)
            if example.tags is not None:
                tags, num_mended = self._bio_tags(row, example.tags, scheme)
                counts.note("tags that broke their scheme and were mended", num_mended)
                for place, tag in enumerate(tags):
                    if known and tag not in known:
                        raise InputError(
                            f"{place_of(row, place)}: the tag {example.tags[place]!r} is none of the known ones "
                            f"({', '.join(self.labels)}): mend it, or train with it (task.labels lists them)"
                        )
                example = replace(example, tags=tuple(tags))
            loaded += 1
            yield example
        if not loaded:
            raise InputError(f"{path}: not a single sentence in it: nothing to learn or to measure")

    def read(self, row: Row) -> TaggingExample:
        """See `Task`: `tokens`, or a `text`, which is cut into words, or for KLUE-NER into characters."""
        return self._read(row, labelled=False)

    @property
    def id_column(self) -> str:
        """See `Task`."""
        return self.said_columns.id or "id"

    def read_all(self, rows: Iterable[Row]) -> Iterator[TaggingExample]:
        """See `Task`; the rows of a `document` must be adjacent, and one document at a time is held in memory."""
        examples = map(self.read, rows)
        return with_context(examples, self.max_length, _warn_of_no_context) if self.document_context else examples

    def _read(
        self, row: Row, *, labelled: bool = True, needs_tags: bool = True, note: Note | None = None
    ) -> TaggingExample:
        return read_example(
            row,
            self.columns,
            characters=self.tags_characters,
            punctuation=not self.labels or are_bio(self.labels),
            labelled=labelled,
            needs_tags=needs_tags,
            note=note or _unheard,
        )

    def _scheme(self, path: Path) -> Scheme:
        """The scheme of a file's tags: the data set's, or detected from the tags."""
        if self.data_set is not None and has_published_layout(path):
            return self.data_set.scheme
        if self.labels and not are_bio(self.labels):
            return "none"
        return detect_scheme(self._read(row, needs_tags=False).tags or () for row in self.load_rows(path))

    def _bio_tags(self, row: Row, tags: Sequence[str], scheme: Scheme) -> tuple[list[str], int]:
        """The tags of a row in BIO, and how many of them were mended."""
        for place, tag in enumerate(tags):
            if scheme != "none" and split_tag(tag) is None:
                raise InputError(
                    f"{place_of(row, place)}: {tag!r} among tags of entities: expected O, or B- or I- and a type"
                )
        bio, broken = to_bio(tags, scheme)
        if broken and not self.repair_tags:
            raise InputError(
                f"{place_of(row, broken[0])}: the tag {tags[broken[0]]!r} breaks the scheme {scheme}: nothing begins "
                f"its entity, or in IOBES ends it; it would be read as {bio[broken[0]]!r}: mend it, or set "
                "task.repair_tags=true"
            )
        return bio, len(broken)

    # Encoding and learning.

    def encode(
        self, examples: Sequence[TaggingExample], tokenizer: Tokenizer, counts: ExampleCounts, num_segments: int = 2
    ) -> EncodedExamples:
        """See `Task` and `encode_sentences`."""
        sentences = encode_sentences(examples, self.labels, tokenizer, self.max_length, self.doc_stride, num_segments)
        counts.examples += len(examples)
        counts.empty += sentences.num_empty
        what = "characters" if self.tags_characters else "words"
        counts.note(f"{what} that encode to nothing", sentences.num_silent)
        return sentences.encoded

    def check(self, training: EncodedExamples, path: Path) -> None:
        """See `Task`: at least two tags must occur."""
        present = np.unique(_labels_of(training))
        if len(present) < 2:
            what = f"every word is tagged {self.labels[present[0]]}" if len(present) else "no word has a token"
            raise InputError(f"{path}: {what}: nothing can be learned from it; expected at least two tags")

    def module(self, encoder: Encoder, head: nn.Module | None = None) -> TaskModule:
        """See `Task`; raises ModelError for semantic roles with a causal encoder or ELMo's, unless under a BiLSTM."""
        if self.head == "bilstm":
            return feature_tagging_module(
                encoder, len(self.labels), self.feature_layers, head, self.classifier_dropout, self.bilstm_size
            )
        if self.encoder_top == "bilstm":
            prob = self.classifier_dropout
            top = bilstm_head(self.head_kind, encoder.settings, len(self.labels), prob, self.bilstm_size)
            return TaggingModule(encoder, top if head is None else head)
        if self.has_predicates and (encoder.settings.is_causal or encoder.reads_words):
            what = "a causal encoder" if encoder.settings.is_causal else "an encoder that reads two texts apart"
            raise ModelError(
                f"semantic roles cannot be learned with {what} ({encoder.settings.architecture}): each predicate is "
                "named behind its sentence, where the words do not see it; take an encoder of another family, or set "
                "task.tagging_head=bilstm or task.encoder_top=bilstm"
            )
        fresh = new_head(self.head_kind, encoder.settings, len(self.labels), self.classifier_dropout)
        return TaggingModule(encoder, fresh if head is None else head)

    # Answering.

    def decode(self, examples: Sequence[TaggingExample], encoded: EncodedExamples, outputs: Tensor) -> list[Prediction]:
        """See `Task` and `decode_sentences`."""
        return decode_sentences(examples, encoded, outputs, self.labels)

    def combine(self, outputs: Sequence[Tensor]) -> Tensor:
        """See `Task`: the log of the mean probability."""
        return torch.stack([logits.log_softmax(-1) for logits in outputs]).logsumexp(0) - math.log(len(outputs))

    def score(self) -> TaggingScore:
        """See `Task`."""
        surface_forms = self.data_set is not None and self.data_set.surface_forms
        return TaggingScore(self.labels, self.tags_characters, surface_forms)

    def tuned(self, score: Score[TaggingExample]) -> Tagging:
        """Nothing is chosen after training."""
        return self

    def floors(self, training: EncodedExamples, dev: EncodedExamples) -> dict[str, dict[str, float]]:
        """See `Task`: predicting the most frequent tag everywhere, or O where tags are of entities."""
        expected = _labels_of(dev)
        if are_bio(self.labels):
            told = dev.alignment.get("num_outside")
            num_units = dev.alignment["num_units"].sum() if told is not None else len(expected)
            num_outside = told.sum() if told is not None else (expected == self.labels.index(OUTSIDE)).sum()
            return {"overall_accuracy": {"all O": float(num_outside / max(1, num_units))}, "overall_f1": {"all O": 0.0}}
        most_frequent = np.bincount(_labels_of(training)).argmax()
        share = float((expected == most_frequent).mean())
        said = f"all {self.labels[most_frequent]}"
        present = len(np.unique([*expected, most_frequent]))
        return {"accuracy": {said: share}, "f1_macro": {said: 2 * share / (1 + share) / present}}

    def sample(self, example: TaggingExample, prediction: Prediction) -> dict[str, Any]:
        """See `Task`; `probability` is that of the least certain entity."""
        return {
            "input": {"text": example.text},
            "label": None if example.tags is None else self._told(example, example.tags),
            "prediction": self._told(example, prediction["tags"]),
            "probability": min((entity["score"] for entity in prediction["entities"]), default=None),
        }

    def _told(self, example: TaggingExample, tags: Sequence[str]) -> str:
        if not are_bio(self.labels):
            return " ".join(tags)
        entities = find_entities(tags)
        return ", ".join(f"{example.between(one.first, one.end)} [{one.label}]" for one in entities) or "no entity"

    def remembered(self) -> dict[str, Any]:
        """See `Task`."""
        return {
            "name": self.name,
            "max_length": self.max_length,
            "doc_stride": self.doc_stride,
            "document_context": self.document_context,
            "repair_tags": self.repair_tags,
            "tagging_head": self.head,
            "feature_layers": self.feature_layers,
            "bilstm_size": self.bilstm_size,
            **({"encoder_top": self.encoder_top} if self.encoder_top != "none" else {}),
            "columns": self.said_columns.model_dump(exclude_defaults=True),
        }


def _unheard(what: str, count: int) -> None:
    """A `Note` that discards everything, for passes over a file that report nothing."""


def _warn_of_no_context(source: str) -> None:
    logger.warning(
        "%s: no input names its document: the model was trained with the sentences around (task.document_context), and "
        "tags such inputs without them; give a field `document`, the same for all sentences of one",
        source,
    )


def _labels_of(labelled: EncodedExamples) -> NDArray[np.int64]:
    labels: NDArray[np.int64] = labelled.token_columns["labels"].astype(np.int64)
    return np.extract(labels != IGNORE_INDEX, labels)


def open_task(settings: TaskSettings, columns: ColumnSettings, lenient: bool = False) -> Tagging:
    """The task that settings describe.

    Args:
        columns: the user's, of tables.
        lenient: True also tries the usual columns, after the user's.

    Raises:
        SettingsError: `columns` names one that tagging does not have.
    """
    if foreign := sorted(columns.model_fields_set.difference(COLUMNS)):
        raise SettingsError(
            f"data.columns.{foreign[0]} is not for tagging: expected data.columns.tokens (or text), tags, predicate"
        )
    data_set = DATA_SETS.get(settings.name)
    usual = TaggingColumns()

    def names(said: str | None, others: tuple[str, ...]) -> tuple[str, ...]:
        return others if said is None else (said, *others) if lenient else (said,)

    return Tagging(
        name=settings.name,
        data_set=data_set,
        columns=TaggingColumns(
            names(columns.tokens, usual.tokens),
            names(columns.tags, usual.tags),
            names(columns.text, usual.text),
            names(columns.predicate, usual.predicate),
        ),
        said_columns=columns,
        labels=tuple(settings.labels or (data_set.labels if data_set is not None else ())),
        max_length=settings.max_length,
        doc_stride=settings.doc_stride,
        classifier_dropout=settings.classifier_dropout,
        document_context=settings.document_context,
        repair_tags=settings.repair_tags,
        head=settings.tagging_head,
        feature_layers=settings.feature_layers,
        bilstm_size=settings.bilstm_size,
        encoder_top=settings.encoder_top,
    )
