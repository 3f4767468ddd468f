"""What a task is: it reads examples, encodes them, names the head that learns, decodes what it says and scores it.

A task says nothing of files of runs, devices or loops. Everything that a program needs to fine-tune, measure or predict
is here, so that a new kind of task is one file and one line of `unmask.tasks.table.TASKS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from unmask.batch import Batch, LossTerm
from unmask.models.encoder import Encoder
from unmask.models.heads import HeadKind
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.rows import Row
from unmask.tasks.settings import TaskKind
from unmask.tokenization.opening import Tokenizer

Prediction = dict[str, Any]
"""One example's, with the keys of prediction files."""


@dataclass
class ExampleCounts:
    """What was read and encoded so far, and what was mended or skipped on the way.

    Attributes:
        examples: handed on.
        unlabelled: skipped, since annotators did not agree on a label.
        empty: whose texts hold no token; they are kept.
        truncated: that were cut to `max_length` tokens.
        notes: anything else that was mended or left out, by what it is: `"answers that are not in the passage"`.
    """

    examples: int = 0
    unlabelled: int = 0
    empty: int = 0
    truncated: int = 0
    notes: dict[str, int] = field(default_factory=dict)

    def note(self, what: str, count: int = 1) -> None:
        """Counts something that `summary` tells as `3 <what>`."""
        if count:
            self.notes[what] = self.notes.get(what, 0) + count

    @property
    def anything_mended(self) -> bool:
        """True where the user should hear of it."""
        return bool(self.truncated or self.unlabelled or self.empty or self.notes)

    def summary(self) -> str:
        """For the log: `600 examples, 2 longer than task.max_length and cut`."""
        parts = [f"{self.examples:,} examples"]
        if self.truncated:
            parts.append(f"{self.truncated:,} longer than task.max_length and cut")
        if self.empty:
            parts.append(f"{self.empty:,} without any text")
        if self.unlabelled:
            parts.append(f"{self.unlabelled:,} without an agreed label skipped")
        parts += [f"{count:,} {what}" for what, count in self.notes.items()]
        return ", ".join(parts)


class Example(Protocol):
    """What is known of every kind of example; each kind adds its texts and labels."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """The row it was read from, as it stands beside a prediction under `input`."""

    @property
    def source(self) -> str:
        """Where it is, as `path:line`."""


ExampleT = TypeVar("ExampleT", bound=Example)


class TaskModule(Protocol):
    """The `nn.Module` that a task trains: an encoder, and a head on it."""

    encoder: Encoder
    head: nn.Module

    def __call__(self, batch: Batch) -> list[LossTerm]:
        """The loss of a batch that has the task's columns: `self.loss(self.outputs(batch), batch)`."""

    def outputs(self, batch: Batch) -> Tensor:
        """Logits, as `decode` reads them.

        Returns:
            (units, ...) or, where `task.per_token`, (tokens, ...); float.
        """

    def loss(self, outputs: Tensor, batch: Batch) -> list[LossTerm]:
        """The term `task`, and what else is learned beside it."""

    def counts(self, batch: Batch) -> dict[str, int]:
        """Targets of each loss term, told without computing anything else."""


class Score(Protocol[ExampleT]):  # type: ignore[misc]  # examples only go in
    """Metrics in the making. Memory does not grow with what is added, but where a metric needs every value: 16 bytes an
    example for correlations of ranks, 40 a question for the best thresholds of SQuAD 2.0."""

    @property
    def num_examples(self) -> int:
        """Examples counted."""

    def add(self, examples: Sequence[ExampleT], predictions: Sequence[Mapping[str, Any]]) -> None:
        """Counts labelled examples and their predictions, as `Task.decode` or a file gave them.

        Raises:
            InputError: a prediction lacks a key, or says what the task does not know; the example's source is named.
        """

    def metrics(self) -> dict[str, float]:
        """By name, as in Hugging Face `evaluate`: in 0..1, or for EM and F1 of question answering in 0..100."""

    def degenerate(self) -> str | None:
        """What is wrong where the model tells nothing apart: `all 400 predictions are 'yes'`; else None."""


class Task(Protocol[ExampleT]):
    """Something to learn from labelled examples; a frozen dataclass.

    Attributes:
        name: of the kind, or a data set's id.
        kind: a key of `TASKS`.
        head_kind: of the head that `module` builds.
        labels: in the order of their ids; empty where there are none, or where only the training file can tell them.
        problem_type: of the head's logits, as in `config.json`; None where there is no choice.
        max_length: most tokens of a row.
        per_token: True where outputs are one a token, False where one a unit.
        id_column: what is kept beside a prediction as its `id`, where a row has it.
    """

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> TaskKind: ...
    @property
    def head_kind(self) -> HeadKind: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def problem_type(self) -> str | None: ...
    @property
    def max_length(self) -> int: ...
    @property
    def per_token(self) -> bool: ...
    @property
    def id_column(self) -> str: ...

    def fit_to(self, path: Path) -> Task[ExampleT]:
        """The task with what only the training file can tell: the columns that it has, and its labels.

        Raises:
            InputError: the file cannot be read, or has none of the columns.
        """

    def load_rows(self, path: Path) -> Iterator[Row]:
        """Streams the rows of a file, in the data set's published layout or as a table, for `read`.

        Raises:
            InputError: the file cannot be read.
        """

    def load(self, path: Path, counts: ExampleCounts, *, unlabelled: bool = False) -> Iterator[ExampleT]:
        """Streams the labelled examples of a file.

        Args:
            counts: what is skipped or mended is noted; not `examples`, which `encode` counts.
            unlabelled: True yields those without an agreed label too, with their label None.

        Raises:
            InputError: the file cannot be read, a column or a label is missing, a label is none of `labels`, or no
                example has one; file and line are named.
        """

    def read(self, row: Row) -> ExampleT:
        """An input of `predict`, without label.

        Raises:
            InputError: it lacks a text; its source is named.
        """

    def read_all(self, rows: Iterable[Row]) -> Iterator[ExampleT]:
        """Streams the inputs of `predict` in order, with what stands around them where the task reads it.

        Raises:
            InputError: as `read`.
        """

    def encode(
        self, examples: Sequence[ExampleT], tokenizer: Tokenizer, counts: ExampleCounts, num_segments: int = 2
    ) -> EncodedExamples:
        """Token ids and targets; examples without label get targets that count for nothing.

        Args:
            examples: at least one; from `load` or `read`.
            counts: is added to.
            num_segments: `type_vocab_size` of the model; below 2 every token is segment 0.

        Raises:
            InputError: an example does not fit and may not be cut; its source is named.
        """

    def check(self, training: EncodedExamples, path: Path) -> None:
        """Refuses training data that nothing can be learned from, such as examples of one label (InputError)."""

    def module(self, encoder: Encoder, head: nn.Module | None = None) -> TaskModule:
        """The module that learns this task: `head`, or a fresh one from PyTorch's default generator, on `encoder`."""

    def decode(self, examples: Sequence[ExampleT], encoded: EncodedExamples, outputs: Tensor) -> list[Prediction]:
        """One prediction for each example.

        Args:
            encoded: of these very examples, by `encode`.
            outputs: of the module, for all units or tokens of `encoded`, in order; float32 on the CPU.
        """

    def combine(self, outputs: Sequence[Tensor]) -> Tensor:
        """The outputs of an ensemble, from those of its members on one batch: log of the mean probability, mean of the
        values (regression), or sum of the logits (spans); in the shape of one member's."""

    def score(self) -> Score[ExampleT]:
        """Metrics to add predictions to."""

    def tuned(self, score: Score[ExampleT]) -> Task[ExampleT]:
        """The task with what is chosen on dev after training, from the score of dev: the threshold of SQuAD 2.0."""

    def floors(self, training: EncodedExamples, dev: EncodedExamples) -> dict[str, dict[str, float]]:
        """What figures on `dev` are to be compared with: metric -> {what it is: value}, such as
        `{"accuracy": {"most frequent label": .68}}`."""

    def sample(self, example: ExampleT, prediction: Prediction) -> dict[str, Any]:
        """For the report: `input` (name -> text), `label`, `prediction` and `probability` (a number or None)."""

    def remembered(self) -> dict[str, Any]:
        """What a fine-tuned model's `config.json` keeps of its task, under `unmask_task`: settings of `TaskSettings`
        by name, without `labels`, and `columns`."""
