"""The interface of a task: it reads and encodes examples, builds the head, decodes its outputs and scores predictions.

A task knows nothing of run files, devices or loops. What the loop, saving and scoring need of a task is here;
docs/architecture.md says where else a new kind of task is named.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.batch import Batch, LossTerm
from unmask.io.progress import counted
from unmask.models.encoder import Encoder
from unmask.models.family import HeadKind
from unmask.models.trained import TrainedModule
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.kinds import FACTS, TaskKind
from unmask.tasks.mixture_penalty import check_mixes, penalty_counts, penalty_terms

if TYPE_CHECKING:  # a model in ONNX is opened without them
    from unmask.io.input_files import DataPath
    from unmask.io.rows import Row
    from unmask.tasks.settings import ColumnSettings, TaskSettings
    from unmask.tasks.text.calibration import Reliability
    from unmask.tokenization.opening import Tokenizer

logger = logging.getLogger("unmask")

DEVIATIONS = 1.96
"""Of a normal distribution, to either side of 95 % of it."""

Prediction = dict[str, Any]
"""The prediction for one example, with the keys of prediction files."""


@dataclass
class ExampleCounts:
    """How many examples were read and encoded so far, and what was repaired or skipped on the way.

    Attributes:
        examples: examples encoded.
        unlabelled: examples skipped because annotators did not agree on a label.
        empty: examples whose texts hold no token; they are kept.
        truncated: examples that were cut to `max_length` tokens.
        num_cut: tokens that were cut off, of these and of long questions; of choices the most that a row lost.
        notes: counts of anything else repaired or left out, by description: `"answers that are not in the passage"`.
        unknown: how many tokens the vocabulary lacks, in words; the warning above some share is `Coverage`'s.
    """

    examples: int = 0
    unlabelled: int = 0
    empty: int = 0
    truncated: int = 0
    num_cut: int = 0
    notes: dict[str, int] = field(default_factory=dict)
    unknown: str = ""

    def note(self, what: str, count: int = 1) -> None:
        """Counts something that `summary` reports as `3 <what>`."""
        if count:
            self.notes[what] = self.notes.get(what, 0) + count

    def summary(self) -> str:
        """For the log: `600 examples, 2 longer than task.max_length and cut`."""
        parts = [counted(self.examples, "example")]
        if self.truncated:
            parts.append(f"{self.truncated:,} longer than task.max_length and cut")
        if self.empty:
            parts.append(f"{self.empty:,} without any text")
        if self.unlabelled:
            parts.append(f"{self.unlabelled:,} without an agreed label skipped")
        parts += [f"{count:,} {what}" for what, count in self.notes.items()]
        return ", ".join([*parts, self.unknown] if self.unknown else parts)

    def log(self, name: object) -> None:
        """Logs the summary of what `name` holds: a warning where there is anything to report."""
        is_worth_it = self.truncated or self.unlabelled or self.empty or self.notes
        logger.log(logging.WARNING if is_worth_it else logging.INFO, "%s: %s", name, self.summary())


class Example(Protocol):
    """What every kind of example has; each kind adds its texts and labels."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """The row it was read from, which prediction files repeat under `input`."""

    @property
    def source(self) -> str:
        """Where it is, as `path:line`."""

    @property
    def texts(self) -> tuple[str, ...]:
        """What the model reads, before it is tokenized or cut."""


ExampleT = TypeVar("ExampleT", bound=Example)


class TaskModule(TrainedModule):
    """What a task trains: an encoder, and a head on it.

    Args:
        mixture_penalty: see `unmask.tasks.mixture_penalty`.

    Raises:
        SettingsError: there is such a penalty, and the head mixes no layers.
    """

    encoder: Encoder
    head: nn.Module
    _mixture_penalty: float = 0.0

    def __init__(self, encoder: Encoder, head: nn.Module, mixture_penalty: float = 0.0) -> None:
        super().__init__()
        check_mixes(head, mixture_penalty)
        self.encoder = encoder
        self.head = head
        self._mixture_penalty = mixture_penalty

    def forward(self, batch: Batch) -> list[LossTerm]:
        """The loss of a batch with the task's columns, and the term `mixture` if there is a penalty."""
        return [*self.loss(self.outputs(batch), batch), *penalty_terms(self.head, self._mixture_penalty)]

    @abstractmethod
    def outputs(self, batch: Batch) -> Tensor:
        """Logits, in the form that `decode` expects.

        Returns:
            (units, ...), or (tokens, ...) if `task.per_token`; float.
        """

    @abstractmethod
    def loss(self, outputs: Tensor, batch: Batch) -> list[LossTerm]:
        """The loss term `task`, and those of any auxiliary objective."""

    @abstractmethod
    def num_targets(self, batch: Batch) -> int:
        """Of the term `task`."""

    def counts(self, batch: Batch) -> dict[str, int]:
        """The number of targets of each loss term, without running the model."""
        return {"task": self.num_targets(batch), **penalty_counts(self._mixture_penalty)}

    def rescale(self) -> None:
        """Makes the head answer, and the loss count, on the scale of the labels, if it learnt on another."""

    @contextmanager
    def rescaled(self) -> Iterator[None]:
        """As after `rescale` inside the context, and as before after it, to the bit."""
        yield


class Score(Protocol[ExampleT]):  # type: ignore[misc]  # examples only go in
    """Accumulates metrics. Memory grows only where a metric needs every value: by 16 bytes per example for rank
    correlations, 9 per label of each for kept probabilities, 48 per question for the best thresholds of SQuAD 2.0, and
    the distinct entities of WNUT-17.

    Attributes:
        lower_is_better: the names of the metrics of which less is better; of any other more is.
    """

    lower_is_better: ClassVar[frozenset[str]]

    @property
    def reliability(self) -> Reliability | None:
        """How sure the predictions were, and how often right; None where they are not about labels."""

    @property
    def num_examples(self) -> int:
        """Examples counted."""

    def add(self, examples: Sequence[ExampleT], predictions: Sequence[Mapping[str, Any]]) -> None:
        """Counts labelled examples and their predictions, from `Task.decode` or a file.

        Raises:
            InputError: a prediction lacks a key or has a value unknown to the task; names the example's source.
        """

    def metrics(self) -> dict[str, float]:
        """Values by the names of Hugging Face `evaluate`: in 0..1, or 0..100 for EM and F1 of question answering."""

    def degenerate(self) -> str | None:
        """A message if the model predicts the same for every example: `all 400 predictions are 'yes'`; else None."""


def share_with_interval(right: int, size: int) -> NDArray[np.float64]:
    """(3,) a share, and Wilson's interval of 95 % of it: the low end and the high one."""
    share, spread = right / size, DEVIATIONS**2 / size
    middle, half = share + spread / 2, np.sqrt(spread * share * (1 - share) + spread * spread / 4)
    return np.array([share, (middle - half) / (1 + spread), (middle + half) / (1 + spread)])


class Task(ABC, Generic[ExampleT]):
    """Something to learn from labelled examples; a frozen dataclass. What is not abstract is the same for most kinds.

    Attributes:
        settings: what the recipe says of it.
        columns: the user's.
        kind: a key of `TASKS`.
        labels: in the order of their ids; empty if the task has none, or they must be read from the training file.
        problem_type: as in `config.json`; None if the head allows only one.
        per_token: True if there is one output per token, False if one per unit.
        text_columns: the columns of what is labelled, a text or a pair, in each way of writing it; empty if the task is
            of something else.
        label_thresholds: from which probability on each label is given, if a text may have any number; None if not.
    """

    settings: TaskSettings
    columns: ColumnSettings
    kind: ClassVar[TaskKind]
    labels: tuple[str, ...] = ()
    problem_type: ClassVar[str | None]
    per_token: ClassVar[bool]
    text_columns: tuple[tuple[str, ...], ...] = ()
    label_thresholds: dict[str, float] | None = None

    @property
    def head_kind(self) -> HeadKind:
        """The kind of head that `module` builds."""
        return FACTS[self.kind].head

    @property
    def id_column(self) -> str:
        """The column kept beside a prediction as its `id`, where a row has it."""
        return self.columns.id or "id"

    def with_settings(self, **settings: Any) -> Self:
        """The task with other values of some of its settings."""
        settings = {"settings": self.settings.model_copy(update=settings)}
        return replace(self, **settings)  # type: ignore[type-var]  # every kind is a dataclass

    @abstractmethod
    def fit_to(self, path: DataPath) -> Self:
        """The task with what has to be read from the training file: which columns it has, and its labels.

        Raises:
            InputError: the file cannot be read, or has none of the columns.
        """

    @abstractmethod
    def load_rows(self, path: DataPath) -> Iterator[Row]:
        """Streams the rows of a file, in the data set's published layout or as a table, for `read`.

        Raises:
            InputError: the file cannot be read.
        """

    @abstractmethod
    def load(self, path: DataPath, counts: ExampleCounts, *, unlabelled: bool = False) -> Iterator[ExampleT]:
        """Streams the labelled examples of a file.

        Args:
            counts: records what is skipped or repaired, but not `examples`, which `encode` counts.
            unlabelled: True also yields examples without an agreed label, with the label None.

        Raises:
            InputError: the file cannot be read, a column or a label is missing, a label is not one of `labels`, or no
                example has one; file and line are named.
        """

    def load_training(self, path: DataPath, counts: ExampleCounts) -> Iterator[ExampleT]:
        """Streams the examples of a file to learn from; see `load`, from which only question answering differs."""
        return self.load(path, counts)

    @abstractmethod
    def read(self, row: Row) -> ExampleT:
        """Reads an input of `predict`, without its label.

        Raises:
            InputError: the row lacks a text; its source is named.
        """

    def read_all(self, rows: Iterable[Row]) -> Iterator[ExampleT]:
        """Streams the inputs of `predict` in order, with the surrounding sentences if the task uses document context.

        Raises:
            InputError: as `read`.
        """
        return map(self.read, rows)

    def is_published_txt(self, lines: Sequence[str]) -> bool:
        """Whether a `.txt` that begins with some lines, the first of which is not blank, is in the layout of the task's
        data set, or of its kind, and not plain texts."""
        return False

    def fit_tokenizer(self, tokenizer: Tokenizer, examples: Sequence[ExampleT], path: DataPath) -> Tokenizer:
        """The tokenizer for a task that was fitted to a training file, of which these are the examples."""
        return tokenizer

    @abstractmethod
    def encode(
        self, examples: Sequence[ExampleT], tokenizer: Tokenizer, counts: ExampleCounts, num_segments: int = 2
    ) -> EncodedExamples:
        """Token ids and targets; the targets of unlabelled examples are ignored by the loss.

        Args:
            examples: at least one; from `load` or `read`.
            counts: updated.
            num_segments: `type_vocab_size` of the model; below 2 every token is segment 0.

        Raises:
            InputError: an example does not fit and may not be cut; its source is named.
        """

    def check_examples(self, examples: Sequence[ExampleT], counts: ExampleCounts, path: DataPath) -> None:
        """Warns of what is wrong with the examples of a training file.

        Args:
            counts: what `encode` counted of them.

        Raises:
            InputError: nothing can be learned from them, whatever their labels.
        """

    @abstractmethod
    def check(self, training: EncodedExamples, path: DataPath) -> None:
        """Raises InputError for training data that nothing can be learned from, such as examples of one label."""

    def check_measured(self, measured: Sequence[EncodedExamples], path: DataPath) -> None:
        """Warns of what will make figures on a labelled file misleading, whatever is predicted."""

    @abstractmethod
    def module(self, encoder: Encoder, head: nn.Module | None = None) -> TaskModule:
        """The module that learns this task: `encoder` with `head`, or with a new head initialised from PyTorch's
        default generator."""

    def fit_loss(self, module: TaskModule, training: EncodedExamples, is_kept: bool) -> None:
        """Prepares the module's loss for the training examples: the scale of values, the weights of labels.

        Args:
            is_kept: whether its head was trained before, on the same labels or values.
        """

    @abstractmethod
    def decode(self, examples: Sequence[ExampleT], encoded: EncodedExamples, outputs: Tensor) -> list[Prediction]:
        """One prediction for each example.

        Args:
            encoded: these same examples, from `encode`.
            outputs: the module's, for all units or tokens of `encoded`, in order; float32 on the CPU.
        """

    def decide(self, examples: Sequence[ExampleT], encoded: EncodedExamples, outputs: Tensor) -> list[Prediction]:
        """What `Score.add` reads of `decode`, where that is less: a dictionary of all labels takes long."""
        return self.decode(examples, encoded, outputs)

    def combine(self, outputs: Sequence[Tensor]) -> Tensor:
        """The outputs of an ensemble from its members' outputs for one batch, in the same shape: the log of the mean
        probability, the mean of the values (regression), or the sum of the logits (spans)."""
        return torch.stack([logits.log_softmax(-1) for logits in outputs]).logsumexp(0) - math.log(len(outputs))

    @abstractmethod
    def score(self) -> Score[ExampleT]:
        """An empty score, to which predictions are added."""

    def tuned(self, score: Score[ExampleT]) -> Self:
        """The task with settings chosen from its score on dev after training: the threshold of SQuAD 2.0."""
        return self

    def together(self, tasks: Sequence[Task[ExampleT]], chosen: Mapping[str, Any]) -> Self:
        """The task of an ensemble, from those of all members, this one first, and what is chosen for it, by name."""
        return self

    @abstractmethod
    def floors(self, training: EncodedExamples, dev: EncodedExamples) -> dict[str, dict[str, float]]:
        """Trivial baselines for the metrics on `dev`: metric -> {name of the baseline: value}, such as
        `{"accuracy": {"most frequent label of train": .68}}`."""

    @abstractmethod
    def sample(self, example: ExampleT, prediction: Prediction) -> dict[str, Any]:
        """For the report: `input` (name -> text), `label`, `prediction`, `probability` (a number or None), and
        `correct` where equal texts do not decide it; see `unmask.reports.sample_rows`."""

    def remembered(self) -> dict[str, Any]:
        """What a fine-tuned model's `config.json` records of its task under `unmask_task`: the settings of
        `TaskSettings` by name, except `labels`, and `columns`."""
        return {**self.settings.recorded(), "columns": self.columns.model_dump(exclude_defaults=True)}


def chosen_last(figures: Mapping[str, float]) -> dict[str, float]:
    """The figures in their order, but last those whose threshold is chosen on the measured answers themselves, such as
    `best_f1`: between runs on dev they are fair, of new examples they promise too much."""
    return dict(sorted(figures.items(), key=lambda figure: figure[0].startswith("best_")))


def positive_label(task: Task[Any]) -> str | None:
    """The label whose F1 the metric `f1` is: the second of two; None for tasks without such a metric."""
    return task.labels[1] if len(task.labels) == 2 and "f1" in task.score().metrics() else None
