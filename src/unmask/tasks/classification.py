"""Classification of texts and pairs of texts: a softmax over labels from the pooled first token (BERT, section 4.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.batch import IGNORE_INDEX, Batch, LossTerm
from unmask.errors import InputError
from unmask.models.bert import BertEncoder, new_classifier
from unmask.models.heads import SequenceClassifier
from unmask.tasks.base import ExampleCounts
from unmask.tasks.encoded import EncodedExamples, concatenate, encoded
from unmask.tasks.examples import Example, Row, choose_columns, read_example, read_rows
from unmask.tasks.metrics import Confusion
from unmask.tasks.settings import ColumnSettings
from unmask.tokenization.tokenizer import TextTokenizer

_WINDOW = 1024
"""Examples that are encoded at a time."""


@dataclass(frozen=True)
class Classification:
    """The task.

    Attributes:
        name: `classification`, or a data set's id.
        layouts: the columns that are looked for; the first that a row has is taken. All for one text, or all for two,
            but before a file was seen.
        labels: in the order of their ids.
        max_length: tokens of an example.
        truncation: True cuts longer examples, and counts them; False refuses them.
        classifier_dropout: None takes the encoder's.
        unlabelled: labels that say that there is none.
        txt_format: the format of files that call themselves `.txt`; None refuses them.
    """

    name: str
    layouts: tuple[ColumnSettings, ...]
    labels: tuple[str, ...]
    max_length: int = 128
    truncation: bool = True
    classifier_dropout: float | None = None
    unlabelled: frozenset[str] = frozenset()
    txt_format: str | None = None

    @property
    def is_pair(self) -> bool:
        """True where only pairs will do."""
        return all(len(columns.texts) == 2 for columns in self.layouts)

    def load_rows(self, path: Path) -> Iterator[Row]:
        """Streams the rows of a file."""
        return read_rows(path, self.txt_format)

    def load_all(self, path: Path) -> Iterator[Example]:
        """Streams the examples of a file, those without an agreed label too."""
        for row in self.load_rows(path):
            yield read_example(row, choose_columns(self.layouts, row), self.unlabelled)

    def load(self, path: Path, counts: ExampleCounts) -> Iterator[Example]:
        """Streams the labelled examples of a file.

        Raises:
            InputError: the file cannot be read, a column or a label is missing, a label is none of `labels`, or no
                example has one.
        """
        loaded = 0
        for example in self.load_all(path):
            if example.label is None:
                counts.unlabelled += 1
            elif example.label not in self.labels:
                raise InputError(
                    f"{example.source}: the label {example.label!r} is none of the known ones "
                    f"({', '.join(self.labels)}): mend it, or train with it (task.labels lists them)"
                )
            else:
                loaded += 1
                yield example
        if not loaded:
            raise InputError(f"{path}: not a single example has a label: nothing to learn or to measure")

    def encode(
        self, examples: Iterable[Example], tokenizer: TextTokenizer, counts: ExampleCounts, num_segments: int = 2
    ) -> EncodedExamples:
        """Encodes examples; those without a label get -100.

        Args:
            examples: at least one; from `load`, or any others.
            tokenizer: of the model.
            counts: is added to.
            num_segments: `type_vocab_size` of the model; with 1 both texts of a pair are segment 0.

        Raises:
            InputError: an example is too long and truncation is off.
        """
        iterator = iter(examples)
        parts: list[EncodedExamples] = []
        while window := list(islice(iterator, _WINDOW)):
            parts.append(self._encode_window(window, tokenizer, counts, num_segments))
        assert parts, "nothing to encode"
        return concatenate(parts)

    def _encode_window(
        self, window: list[Example], tokenizer: TextTokenizer, counts: ExampleCounts, num_segments: int
    ) -> EncodedExamples:
        limit = self.max_length if self.truncation else None
        inputs = tokenizer.encode_inputs([(example.text_a, example.text_b) for example in window], limit)
        for example, encoded_input in zip(window, inputs, strict=True):
            if len(encoded_input.input_ids) > self.max_length:
                raise InputError(
                    f"{example.source}: {len(encoded_input.input_ids)} tokens, over task.max_length {self.max_length}, "
                    "and task.truncation is false: shorten the text, raise task.max_length, or allow truncation"
                )
        counts.examples += len(window)
        counts.truncated += sum(encoded_input.truncated for encoded_input in inputs)
        counts.empty += sum(not any(map(str.strip, (e.text_a, e.text_b or ""))) for e in window)
        ids = {label: index for index, label in enumerate(self.labels)}
        return encoded(
            [encoded_input.input_ids for encoded_input in inputs],
            [
                encoded_input.token_type_ids.count(0) if num_segments > 1 else len(encoded_input.input_ids)
                for encoded_input in inputs
            ],
            [IGNORE_INDEX if example.label is None else ids[example.label] for example in window],
        )

    def head(self, encoder: BertEncoder) -> ClassificationModule:
        """A fresh classifier on `encoder`, which has a pooler."""
        return ClassificationModule(
            encoder, new_classifier(encoder.settings, len(self.labels), self.classifier_dropout)
        )

    def decode(self, logits: Tensor) -> list[dict[str, Any]]:
        """`label`, `score` (its probability) and `probabilities` by label, from logits (examples, labels)."""
        probabilities = torch.softmax(logits.float(), -1).tolist()
        decoded = []
        for row in probabilities:
            score = max(row)
            decoded.append(
                {
                    "label": self.labels[row.index(score)],
                    "score": score,
                    "probabilities": dict(zip(self.labels, row, strict=True)),
                }
            )
        return decoded

    def score(self) -> Confusion:
        """Accuracy, F1 and Matthews' correlation, in the making."""
        return Confusion(len(self.labels))


class ClassificationModule(nn.Module):
    """An encoder with a classifier on its pooled first token.

    Args:
        encoder: with a pooler.
        classifier: of the encoder's size.
    """

    def __init__(self, encoder: BertEncoder, classifier: SequenceClassifier) -> None:
        super().__init__()
        assert encoder.pooler is not None, "the classifier reads the pooled first token"
        self.encoder = encoder
        self.classifier = classifier

    def forward(self, batch: Batch) -> list[LossTerm]:
        """The term `task`: cross-entropy over the column `labels`."""
        logits, labels = self.logits(batch), batch.columns["labels"]
        return [LossTerm("task", functional.cross_entropy(logits.float(), labels, reduction="sum"), len(labels))]

    def logits(self, batch: Batch) -> Tensor:
        """(sequences, labels)."""
        assert self.encoder.pooler is not None
        first = self.encoder(batch, batch.first_tokens)
        logits: Tensor = self.classifier(self.encoder.pooler(first))
        return logits


def find_labels(task: Classification, path: Path) -> tuple[str, ...]:
    """The labels of a training file, sorted."""
    return tuple(sorted({example.label for example in task.load_all(path) if example.label is not None}))
