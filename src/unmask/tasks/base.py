"""What a task is: it reads examples, encodes them, names the head that learns, decodes and scores what it says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from unmask.batch import Batch, LossTerm
from unmask.models.bert import BertEncoder
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.examples import Example
from unmask.tokenization.tokenizer import TextTokenizer


@dataclass
class ExampleCounts:
    """What was read and encoded so far, and what was mended or skipped on the way.

    Attributes:
        examples: handed on.
        unlabelled: skipped, since annotators did not agree on a label.
        empty: whose texts hold no token; they are kept.
        truncated: that were cut to `max_length` tokens.
    """

    examples: int = 0
    unlabelled: int = 0
    empty: int = 0
    truncated: int = 0

    def summary(self) -> str:
        """For the log: `600 examples, 2 of them cut`."""
        parts = [f"{self.examples:,} examples"]
        if self.truncated:
            parts.append(f"{self.truncated:,} longer than task.max_length and cut")
        if self.empty:
            parts.append(f"{self.empty:,} without any text")
        if self.unlabelled:
            parts.append(f"{self.unlabelled:,} without an agreed label skipped")
        return ", ".join(parts)


class TaskModule(Protocol):
    """The module that a task trains."""

    encoder: BertEncoder

    def __call__(self, batch: Batch) -> list[LossTerm]:
        """The term `task` of the loss on a batch with labels."""

    def logits(self, batch: Batch) -> Tensor:
        """What `decode` and `score` read."""


class Score(Protocol):
    """Metrics in the making."""

    @property
    def num_examples(self) -> int:
        """Examples counted."""

    def metrics(self) -> dict[str, float]:
        """By name."""


class Task(Protocol):
    """Something to learn from labelled examples."""

    name: str

    def load(self, path: Path, counts: ExampleCounts) -> Iterator[Example]:
        """Streams the labelled examples of a file."""

    def encode(
        self, examples: Iterable[Example], tokenizer: TextTokenizer, counts: ExampleCounts, num_segments: int = 2
    ) -> EncodedExamples:
        """Token ids and label ids."""

    def head(self, encoder: BertEncoder) -> nn.Module:
        """A fresh module that learns this task with `encoder`."""

    def decode(self, logits: Tensor) -> list[dict[str, Any]]:
        """One prediction an example, with the keys of prediction files."""

    def score(self) -> Score:
        """Metrics to add predictions to."""
