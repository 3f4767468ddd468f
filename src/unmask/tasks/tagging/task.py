"""Tagging: a softmax over tags at the first token of each word (BERT, section 5.3): entities, parts of speech, roles.

Every unit of a sentence, which is a word or, in KLUE-NER, a character, gets exactly one tag: that of the token which
represents it (`unmask.tasks.tagging.windows`). Internally entity tags are BIO, whatever scheme the files use. No CRF,
as in the paper; with `tagging_head: bilstm` the paper's two-layer BiLSTM reads frozen features, and with
`feature_layers` alone a linear classifier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from unmask.errors import InputError, ModelError, SettingsError
from unmask.io.input_files import DataPath
from unmask.io.rows import Row
from unmask.models.encoder import Encoder
from unmask.models.heads.bilstm import FeatureHead
from unmask.tasks.base import ExampleCounts, Prediction, Task, TaskModule
from unmask.tasks.cutting import SpannedText, fit_tokenizer
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.kinds import TaskKind
from unmask.tasks.sequence_module import new_task_head
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.tagging.decoding import decode_sentences
from unmask.tasks.tagging.examples import TaggingColumns, TaggingExample
from unmask.tasks.tagging.files import DATA_SETS, TaggingDataSet, has_published_layout, looks_like_columns
from unmask.tasks.tagging.metrics import TaggingScore, floors, known_labels
from unmask.tasks.tagging.module import FeatureTaggingModule, TaggingModule
from unmask.tasks.tagging.reading import TaggedFiles, Warned
from unmask.tasks.tagging.schemes import Scheme, are_bio, complete_labels, find_entities
from unmask.tasks.tagging.windows import encode_sentences
from unmask.tokenization.opening import Tokenizer


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
    warned: set[Warned] = field(default_factory=set, compare=False, repr=False)

    kind: ClassVar[TaskKind] = "tagging"
    problem_type: ClassVar[None] = None
    per_token: ClassVar[bool] = True

    @property
    def tags_characters(self) -> bool:
        """True if the units are characters, not words."""
        return self.files.tags_characters

    # Reading.

    @property
    def files(self) -> TaggedFiles:
        """How its files and inputs are read."""
        return TaggedFiles(self.settings, self.data_set, self.layout, self.labels, self.warned)

    def fit_to(self, path: DataPath) -> Tagging:
        """See `Task`, and `unmask.tasks.tagging.reading.TaggedFiles.survey`: its labels, `has_predicates`, and whether
        characters are tagged, since entities end inside words."""
        if self.data_set is not None and has_published_layout(path):
            return self
        found = self.files.survey(path)
        task = self.with_settings(units="characters") if found.inside_words else self
        return replace(task, labels=found.labels, has_predicates=found.has_predicates)

    def load_rows(self, path: DataPath) -> Iterator[Row]:
        return self.files.rows(path)

    def is_published_txt(self, lines: Sequence[str]) -> bool:
        """See `Task`: one word a line."""
        return looks_like_columns(lines, self.layout, self.labels)

    def load(self, path: DataPath, counts: ExampleCounts, *, unlabelled: bool = False) -> Iterator[TaggingExample]:
        return self.files.load(path, counts, unlabelled)

    def read(self, row: Row) -> TaggingExample:
        return self.files.read(row)

    def read_all(self, rows: Iterable[Row]) -> Iterator[TaggingExample]:
        return self.files.read_all(rows)

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
