"""Classification with any number of labels per example: each label is decided independently, from its own logit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from unmask.batch import IGNORE_INDEX
from unmask.errors import InputError, SettingsError
from unmask.io.input_files import DataPath
from unmask.io.progress import Progress, listed, named
from unmask.io.rows import Row
from unmask.models.encoder import Encoder
from unmask.tasks.base import ExampleCounts, Prediction, Score, Task, TaskModule
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.kinds import TaskKind
from unmask.tasks.rows import naming
from unmask.tasks.sequence_module import SequenceModule, new_sequence_module
from unmask.tasks.text.calibration import sureness
from unmask.tasks.text.class_names import naming_classes
from unmask.tasks.text.examples import TextExample
from unmask.tasks.text.labels import read_flag, read_labels, sorted_and_checked, unknown_label
from unmask.tasks.text.metrics import LabelSetScore, f1_scores, warn_of_absent, warn_of_unmeasured
from unmask.tasks.text.text_task import TextTask
from unmask.tasks.text.weighting import weigh_labels

ManyLabelled = TextExample[tuple[str, ...]]

_MOST_LABELS = 10_000
"""Limited since every example takes a byte of memory for each label."""


@dataclass(frozen=True)
class MultiLabelClassification(TextTask[tuple[str, ...]]):
    """The task.

    Attributes:
        labels: in the order of their ids.
    """

    labels: tuple[str, ...] = ()

    kind: ClassVar[TaskKind] = "classification"
    problem_type: ClassVar[str] = "multi_label_classification"

    def __post_init__(self) -> None:
        given = self.settings.thresholds
        unknown = [label for label in given if label not in self.labels] if isinstance(given, dict) else []
        if unknown and self.labels:
            raise SettingsError(
                f"task.thresholds names {unknown[0]!r}, which is none of the labels ({listed(list(self.labels))}): "
                "leave it out, or correct it"
            )

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {label: index for index, label in enumerate(self.labels)}

    def fit_to(self, path: DataPath) -> MultiLabelClassification:
        """See `Task`. Labels not given by the settings are the file's, sorted; numbers by value.

        Raises:
            InputError: as in `Task`; or there are fewer than two labels, or over 10,000, or two look alike.
        """
        fitted = replace(self, files=self.files.fit_to(path))
        if self.labels:
            return fitted
        if fitted.columns.labels is not None:
            return replace(fitted, labels=fitted.columns.labels)
        found: dict[str, str] = {}
        with Progress("reading labels", unit="examples") as progress:
            for example in progress.counting(fitted.load(path, ExampleCounts())):
                for label in example.label or ():
                    found.setdefault(label, example.source)
                if len(found) > _MOST_LABELS:
                    raise InputError(
                        f"{example.source}: over {_MOST_LABELS:,} different labels up to here: name their column with "
                        f"{naming('label')}; it is {fitted.columns.label!r}. Name what separates them with "
                        f"task.label_separator (it is {self.settings.label_separator!r})"
                    )
        if len(found) < 2:
            raise InputError(
                f"{path}: {len(found)} different labels in all examples: expected at least two; for one label that is "
                "there or not, write it out as two labels and leave task.multi_label out"
            )
        return replace(fitted, labels=sorted_and_checked(found, self.settings.label_separator))

    def load(self, path: DataPath, counts: ExampleCounts, *, unlabelled: bool = False) -> Iterator[ManyLabelled]:
        its_own = self.columns.labels is not None
        read = self._read_label if its_own else naming_classes(path, self._ids, self._read_label)
        return self.files.load(path, counts, read, unlabelled)

    def _read_label(self, row: Row, name: str) -> tuple[str, ...]:
        """An example with an empty list of labels counts as labelled."""
        if (columns := self.columns.labels) is not None:
            labels = tuple(column for column in columns if read_flag(row, column))
        else:
            labels = read_labels(row, name, self.settings.label_separator)
        unknown = [label for label in labels if label not in self._ids] if self.labels else []
        if unknown:
            raise unknown_label(row.source, unknown[0], self.labels, self.settings.label_separator)
        return labels

    def _targets(self, examples: Sequence[ManyLabelled]) -> NDArray[np.int8]:
        """(examples, labels): 1, 0, or -100 if the labels are unknown."""
        labels = np.zeros((len(examples), len(self.labels)), dtype=np.int8)
        for row, example in zip(labels, examples, strict=True):
            if example.label is None:
                row[:] = IGNORE_INDEX
            else:
                row[[self._ids[label] for label in example.label]] = 1
        return labels

    def check(self, training: EncodedExamples, path: DataPath) -> None:
        """See `Task`; warns of labels that have no example."""
        labels = training.unit_columns["labels"]
        if (labels == labels[:1]).all():
            raise InputError(
                f"{path}: every example has the same labels: there is nothing to learn; give examples whose "
                "labels differ"
            )
        warn_of_absent(self.labels, label_counts(training), path)

    def check_measured(self, measured: Sequence[EncodedExamples], path: DataPath) -> None:
        """See `Task`: labels without an example."""
        warn_of_unmeasured(np.sum([label_counts(each) for each in measured], axis=0), path)

    def module(self, encoder: Encoder, head: nn.Module | None = None) -> SequenceModule:
        return new_sequence_module(encoder, head, len(self.labels), multi_label_loss, self.settings)

    def fit_loss(self, module: TaskModule, training: EncodedExamples, is_kept: bool) -> None:
        weigh_labels(module, training.unit_columns["labels"], len(self.labels), self.settings)

    @property
    def label_thresholds(self) -> dict[str, float]:  # type: ignore[override]
        """From which probability on each label is given: .5 where none was set or tuned."""
        given = self.settings.thresholds
        return {label: given.get(label, 0.5) if isinstance(given, dict) else 0.5 for label in self.labels}

    def decode(self, examples: Sequence[ManyLabelled], encoded: EncodedExamples, outputs: Tensor) -> list[Prediction]:
        """`labels`, those whose probability reaches its threshold, most likely first, and `probabilities` by label."""
        return [
            {**each, "probabilities": dict(zip(self.labels, each["probabilities"].tolist(), strict=True))}
            for each in self.decide(examples, encoded, outputs)
        ]

    def decide(self, examples: Sequence[ManyLabelled], encoded: EncodedExamples, outputs: Tensor) -> list[Prediction]:
        """As `decode`, but `probabilities` as (labels,) float64."""
        thresholds = np.array(list(self.label_thresholds.values()))
        decided = []
        for row in torch.sigmoid(outputs.detach().double()).numpy():
            chosen = np.flatnonzero(row >= thresholds)
            likeliest_first = chosen[np.argsort(-row[chosen], kind="stable")].tolist()
            decided.append({"labels": [self.labels[number] for number in likeliest_first], "probabilities": row})
        return decided

    def combine(self, outputs: Sequence[Tensor]) -> Tensor:
        """See `Task`: the logits of the mean probabilities."""
        yes, no = (torch.stack([functional.logsigmoid(sign * each) for each in outputs]) for sign in (1, -1))
        return yes.logsumexp(0) - no.logsumexp(0)

    def score(self) -> LabelSetScore:
        return LabelSetScore(self.labels, self.settings.calibration is not None or self.settings.thresholds == "dev")

    def tuned(self, score: Score[ManyLabelled]) -> MultiLabelClassification:
        """The task with the threshold of each label that gives it the highest F1, if `task.thresholds` is `dev`."""
        if self.settings.thresholds != "dev":
            return self
        assert isinstance(score, LabelSetScore)
        return self.with_settings(thresholds=score.best_thresholds())

    def together(self, tasks: Sequence[Task[ManyLabelled]], chosen: Mapping[str, Any]) -> MultiLabelClassification:
        """See `Task`: with the means of the members' thresholds, if none were chosen."""
        every = [each.settings.thresholds for each in tasks]
        if not any(isinstance(given, dict) for given in every):
            return self
        its = [given if isinstance(given, dict) else {} for given in every]
        means = {label: sum(given.get(label, 0.5) for given in its) / len(its) for label in self.labels}
        return self.with_settings(**{"thresholds": means, **chosen})

    def floors(self, training: EncodedExamples, dev: EncodedExamples) -> dict[str, dict[str, float]]:
        """See `Task`: for F1 always predicting every label; for accuracy always predicting the labels that at least
        half of the training examples have."""
        labels = dev.unit_columns["labels"]
        usual = label_counts(training) * 2 >= len(training)
        true = label_counts(dev)
        everywhere = np.full(len(true), len(dev))
        micro = f1_scores(np.full(1, true.sum()), np.full(1, true.sum()), np.full(1, everywhere.sum()))
        return {
            "f1_micro": {"always every label": float(micro[0])},
            "f1_macro": {"always every label": float(f1_scores(true, true, everywhere).mean())},
            "accuracy": {"always the usual labels of train": float((labels == usual).all(1).mean())},
        }

    def sample(self, example: ManyLabelled, prediction: Prediction) -> dict[str, Any]:
        """See `Task`; the probability is that of the least sure decision, as `sureness` has it."""
        thresholds = self.label_thresholds
        return {
            "input": self.files.shown(example),
            "label": None if example.label is None else named(example.label) or "(none)",
            "prediction": named(prediction["labels"]) or "(none)",
            "probability": min(sureness(p, thresholds[label]) for label, p in prediction["probabilities"].items()),
            "correct": None if example.label is None else set(example.label) == set(prediction["labels"]),
        }

    def remembered(self) -> dict[str, Any]:
        given = self.settings.thresholds
        thresholds = {"thresholds": given} if isinstance(given, dict) else {}
        return {**super().remembered(), "label_separator": self.settings.label_separator, **thresholds}


def label_counts(examples: EncodedExamples) -> NDArray[np.int64]:
    """(labels,), how many examples have each label."""
    counts: NDArray[np.int64] = (examples.unit_columns["labels"] == 1).sum(0)
    return counts


def multi_label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """() from (units, labels) twice, labels 1, 0 or `IGNORE_INDEX`; each label counts as one target."""
    losses = functional.binary_cross_entropy_with_logits(logits, labels.clamp(min=0).float(), reduction="none")
    return losses.masked_fill(labels == IGNORE_INDEX, 0.0).sum()
