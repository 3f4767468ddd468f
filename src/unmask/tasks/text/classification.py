"""Classification of texts and pairs of texts: a softmax over labels from the pooled first token (BERT, section 4.1)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.batch import IGNORE_INDEX
from unmask.errors import InputError, SettingsError
from unmask.io.input_files import DataPath, as_files
from unmask.io.progress import Progress, listed
from unmask.io.rows import Row
from unmask.models.encoder import Encoder
from unmask.tasks.base import ExampleCounts, Prediction, TaskModule
from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.kinds import TaskKind
from unmask.tasks.rows import naming
from unmask.tasks.sequence_module import SequenceModule, label_loss, new_sequence_module
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.text.class_names import naming_classes
from unmask.tasks.text.data_sets import DATA_SETS, TextDataSet
from unmask.tasks.text.examples import TextExample, TextFiles
from unmask.tasks.text.labels import read_label, sorted_and_checked, unknown_label
from unmask.tasks.text.metrics import LabelScore, f1_scores, warn_of_absent
from unmask.tasks.text.multi_label import MultiLabelClassification
from unmask.tasks.text.text_task import TextTask
from unmask.tasks.text.weighting import weigh_labels

logger = logging.getLogger("unmask")

LabelledText = TextExample[str]

_PLAIN = TextDataSet(TextFiles(), unlabelled=frozenset())

_FEW_LABELS, _MOST_LABELS = 100, 1_000_000
"""Up to the first number, any set of labels is accepted; above the second, reading stops. In between, labels must occur
twice on average, or the column is taken for ids or texts."""


_MOST_SHOWN = 2
"""Contradictions in a warning."""


def open_task(
    settings: TaskSettings, columns: ColumnSettings, lenient: bool = False
) -> Classification | MultiLabelClassification:
    """See `unmask.tasks.table.open_task`."""
    if settings.multi_label and settings.name in DATA_SETS:
        raise SettingsError(
            f"task.multi_label: true, and the examples of task.name {settings.name} have one label each: leave it out, "
            "or take task.name classification"
        )
    data_set = DATA_SETS.get(settings.name, _PLAIN)
    files, labels = data_set.files.with_columns(columns, lenient), tuple(settings.labels or data_set.labels)
    if files.columns.labels is not None and not settings.multi_label:
        raise SettingsError(
            "columns.labels names one column a label, so that a text may have many: give task.multi_label=true too"
        )
    if settings.multi_label:
        return MultiLabelClassification(settings, files, labels)
    return Classification(settings, files, labels, data_set)


@dataclass(frozen=True)
class Classification(TextTask[str]):
    """The task.

    Attributes:
        labels: in the order of their ids.
        data_set: how labels are written, and which metric is the primary one.
    """

    labels: tuple[str, ...] = ()
    data_set: TextDataSet = _PLAIN

    kind: ClassVar[TaskKind] = "classification"
    problem_type: ClassVar[str] = "single_label_classification"

    def __post_init__(self) -> None:
        negative = self.settings.negative_label
        if negative is not None and self.labels and negative not in self.labels:
            raise SettingsError(
                f"task.negative_label={negative}: there is no such label: expected one of {listed(self.labels, 20)}"
            )

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {label: index for index, label in enumerate(self.labels)}

    @cached_property
    def _meanings(self) -> dict[str, str]:
        """Alternative spellings of labels in files -> the label."""
        numbers = {str(number): name for number, name in enumerate(self.data_set.labels)}
        meanings = {**numbers, **self.data_set.other_names}
        return {name: label for name, label in meanings.items() if name not in self._ids and label in self._ids}

    def fit_to(self, path: DataPath) -> Classification:
        """See `Task`. Labels given neither by settings nor by the data set are the file's, sorted; numbers by value.

        Raises:
            InputError: as in `Task`; or the labels are too many to be labels, or two look alike.
        """
        fitted = replace(self, files=self.files.fit_to(path))
        return fitted if self.labels else replace(fitted, labels=fitted._find_labels(path))

    def _find_labels(self, path: DataPath) -> tuple[str, ...]:
        found: dict[str, str] = {}
        num_examples = 0
        with Progress("reading labels", unit="examples") as progress:
            for example in progress.counting(self.load(path, ExampleCounts())):
                assert example.label is not None
                found.setdefault(example.label, example.source)
                num_examples += 1
                if len(found) > _MOST_LABELS:
                    break
        if len(found) > min(_MOST_LABELS, max(_FEW_LABELS, num_examples // 2)):
            raise InputError(
                f"{path}: {len(found):,} different labels in {num_examples:,} examples, such as "
                f"{', '.join(repr(label[:40]) for label in sorted(found)[:3])}: the column "
                f"{self.columns.label!r} looks like ids, texts or measured values; name the right one with "
                f"{naming('label')}, take task.name=regression for values, or list the labels in task.labels"
            )
        labels = sorted_and_checked(found)
        if {"-1", "0", "1"}.issubset(labels):
            logger.warning(
                "%s: labels %s: if -1 means that there is no label, take out its rows, the first of which is %s; if it "
                "is one, list all in task.labels for no warning",
                *(path, listed(labels), found["-1"]),
            )
        return labels

    def load(self, path: DataPath, counts: ExampleCounts, *, unlabelled: bool = False) -> Iterator[LabelledText]:
        """See `Task`; notes numbers in a table that are read as the ids of names, for they may mean other labels."""
        meant = [f"{number} {label}" for number, label in self._meanings.items() if number.isdecimal()]
        is_table = as_files(path).suffixes[0] not in (".json", ".jsonl", ".parquet")  # the hub's have numbers

        def read(row: Row, name: str) -> str | None:
            label = self._read_label(row, name)
            if is_table and meant and label is not None and str(row[name]).isdecimal() and str(row[name]) != label:
                counts.note(f"labels that are numbers, taken for ids ({', '.join(meant)})")
            return label

        known = {**self._ids, **self._meanings}
        return self.files.load(path, counts, naming_classes(path, known, read), unlabelled)

    def _read_label(self, row: Row, name: str) -> str | None:
        label = read_label(row, name, may_be_empty="" in self.data_set.unlabelled)
        if label in self._ids:
            return label
        if label in self.data_set.unlabelled:
            return None
        label = self._meanings.get(label, label)
        if self.labels and label not in self._ids:
            raise unknown_label(row.source, label, self.labels)
        return label

    def _targets(self, examples: Sequence[LabelledText]) -> NDArray[np.int64]:
        ids = [IGNORE_INDEX if example.label is None else self._ids[example.label] for example in examples]
        return np.array(ids, dtype=np.int64)

    def check_examples(self, examples: Sequence[LabelledText], counts: ExampleCounts, path: DataPath) -> None:
        super().check_examples(examples, counts, path)
        warn_of_contradictions(examples, path)
        if not (self.settings.labels or self.data_set.labels):
            _warn_of_single_examples(examples, path)

    def check(self, training: EncodedExamples, path: DataPath) -> None:
        """See `Task`; warns of labels that have no example."""
        counts = self._counts(training)
        present = [label for label, count in zip(self.labels, counts, strict=True) if count]
        if len(present) < 2:
            raise InputError(
                f"{path}: every example has the label {present[0]!r}: there is nothing to learn; "
                "give examples of at least two labels"
            )
        warn_of_absent(self.labels, counts, path)

    def _counts(self, examples: EncodedExamples) -> NDArray[np.int64]:
        """(labels,), how many examples have each label."""
        ids = examples.unit_columns["labels"]
        return np.bincount(ids[ids != IGNORE_INDEX].astype(np.int64), minlength=len(self.labels))

    def module(self, encoder: Encoder, head: nn.Module | None = None) -> SequenceModule:
        return new_sequence_module(encoder, head, len(self.labels), label_loss, self.settings)

    def fit_loss(self, module: TaskModule, training: EncodedExamples, is_kept: bool) -> None:
        weigh_labels(module, training.unit_columns["labels"], len(self.labels), self.settings)

    def decode(self, examples: Sequence[LabelledText], encoded: EncodedExamples, outputs: Tensor) -> list[Prediction]:
        """`label`, `score` (its probability) and `probabilities` by label."""
        best = outputs.argmax(-1).tolist()
        return [
            {
                "label": self.labels[index],
                "score": row[index],
                "probabilities": dict(zip(self.labels, row, strict=True)),
            }
            for index, row in zip(best, torch.softmax(outputs, -1).tolist(), strict=True)
        ]

    def decide(self, examples: Sequence[LabelledText], encoded: EncodedExamples, outputs: Tensor) -> list[Prediction]:
        """See `Task`: `label` and `score`; `probabilities`, if the score keeps them, as (labels,) float64."""
        probabilities = torch.softmax(outputs.detach(), -1)
        best = outputs.argmax(-1, keepdim=True)
        scores = probabilities.gather(-1, best).flatten().tolist()
        labels = [self.labels[index] for index in best.flatten().tolist()]
        decided = [{"label": label, "score": score} for label, score in zip(labels, scores, strict=True)]
        if self.settings.calibration is None:
            return decided
        return [
            {**each, "probabilities": row} for each, row in zip(decided, probabilities.double().numpy(), strict=True)
        ]

    def score(self) -> LabelScore:
        keeps_probabilities, negative = self.settings.calibration is not None, self.settings.negative_label
        return LabelScore(self.labels, self.data_set.primary_metric, keeps_probabilities, negative)

    def floors(self, training: EncodedExamples, dev: EncodedExamples) -> dict[str, dict[str, float]]:
        """See `Task`: always predicting the label most frequent in training; for F1 of the second label, always
        predicting that one."""
        true = self._counts(dev)
        total = np.full(1, true.sum())
        most_frequent = true[[int(self._counts(training).argmax())]]
        best = "most frequent label of train"
        if len(self.labels) == 2:
            f1 = {"f1": {f"always {self.labels[1]}": float(f1_scores(true[1:], true[1:], total)[0])}}
        else:
            num_seen = np.count_nonzero(true) + (most_frequent[0] == 0)  # the predicted label may not occur on dev
            f1 = {"f1_macro": {best: float(f1_scores(most_frequent, most_frequent, total)[0] / num_seen)}}
        accuracy = {"accuracy": {best: float(most_frequent[0] / total[0])}}
        if (negative := self.settings.negative_label) is not None:
            is_other = self._counts(training).argmax() != self._ids[negative]
            of_others = f1_scores(most_frequent * is_other, total - true[self._ids[negative]], total * is_other)
            f1["f1_micro"] = {best: float(of_others[0])}
        return {**accuracy, **f1, "matthews_correlation": {"any constant": 0.0}}

    def sample(self, example: LabelledText, prediction: Prediction) -> dict[str, Any]:
        return {
            "input": self.files.shown(example),
            "label": example.label,
            "prediction": prediction["label"],
            "probability": prediction["score"],
        }


def _warn_of_single_examples(examples: Sequence[LabelledText], path: DataPath) -> None:
    """Warns of labels that only one example has, as those that are misspelt."""
    counts = Counter(each.label for each in examples)
    single = [f"{each.label!r} ({each.source})" for each in examples if counts[each.label] == 1]
    if single:
        logger.warning(
            "%s: %s only one example: %s; correct what is misspelt, or list all labels in task.labels for no warning",
            *(path, "a label has" if len(single) == 1 else f"{len(single):,} labels have", listed(single, 5)),
        )


def warn_of_contradictions(examples: Sequence[LabelledText], path: DataPath) -> None:
    """Warns where more than a hundredth of what is trained on has the texts of an earlier example, and another
    label."""
    first: dict[tuple[str, ...], LabelledText] = {}
    found: list[tuple[LabelledText, LabelledText]] = []
    for each in examples:  # a list of all pairs would take seconds of a million
        earlier = first.setdefault(each.texts, each)
        if earlier.label != each.label:
            found.append((earlier, each))
    if 100 * len(found) > len(examples):
        shown = [
            f"{earlier.source} ({earlier.label!r}) and {later.source} ({later.label!r})"
            for earlier, later in found[:_MOST_SHOWN]
        ]
        logger.warning(
            "%s of the %s examples of data.train (%s) have the texts of an earlier one, word for word, and another "
            "label, such as %s: a model cannot learn both; correct the labels, or leave such examples out",
            f"{len(found):,}",
            f"{len(examples):,}",
            path,
            "; ".join(shown),
        )
