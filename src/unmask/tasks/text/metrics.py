"""Metrics of classification from counts alone, so that measuring a million predictions takes no more memory than ten.

Names and values are those of Hugging Face `evaluate` and scikit-learn. The name tells how F1 is averaged: `f1` is that
of the second of two labels (label 1, the positive one); `f1_macro` is the mean of the labels' F1; `f1_micro` is the F1
of all decisions together.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InputError
from unmask.io.input_files import DataPath
from unmask.tasks.rows import listed
from unmask.tasks.text.examples import TextExample

logger = logging.getLogger("unmask")


class LabelScore:
    """Counts right, true and predicted labels; unlabelled examples are ignored.

    Args:
        labels: in the order of their ids.
        primary_metric: is reported first.
    """

    def __init__(self, labels: Sequence[str], primary_metric: str = "accuracy") -> None:
        self._ids = {label: index for index, label in enumerate(labels)}
        self._primary_metric = primary_metric
        self._right, self._true, self._predicted = np.zeros((3, len(labels)), dtype=np.int64)

    @property
    def num_examples(self) -> int:
        return int(self._true.sum())

    def add(self, examples: Sequence[TextExample[str]], predictions: Sequence[Mapping[str, Any]]) -> None:
        """Counts the `label` of each prediction; see `Score.add`."""
        for example, prediction in zip(examples, predictions, strict=True):
            predicted = _id_of(prediction.get("label"), self._ids, example.source)
            if example.label is None:
                continue
            true = self._ids[example.label]
            self._true[true] += 1
            self._predicted[predicted] += 1
            self._right[true] += true == predicted

    def metrics(self) -> dict[str, float]:
        """`accuracy`; `f1` if there are two labels, else `f1_macro` over those that occur or are predicted; and
        `matthews_correlation`."""
        scores = f1_scores(self._right, self._true, self._predicted)
        seen = (self._true + self._predicted) > 0
        f1 = {"f1": float(scores[1])} if len(scores) == 2 else {"f1_macro": _mean(scores[seen])}
        metrics = {
            "accuracy": float(self._right.sum() / max(1, self.num_examples)),
            **f1,
            "matthews_correlation": self._matthews_correlation(),
        }
        return {self._primary_metric: metrics[self._primary_metric], **metrics}

    def degenerate(self) -> str | None:
        """See `Score`; None if only one label was to be predicted."""
        predicted, present = np.flatnonzero(self._predicted), np.flatnonzero(self._true)
        if len(predicted) != 1 or len(present) < 2:
            return None
        return f"all {self.num_examples:,} predictions are {list(self._ids)[predicted[0]]!r}, and not all labels are"

    def _matthews_correlation(self) -> float:
        """The correlation of labels and predictions for any number of labels (Gorodkin 2004); 0 if either is
        constant."""
        true, predicted = self._true.astype(np.float64), self._predicted.astype(np.float64)
        total = true.sum()
        covariance = self._right.sum() * total - true @ predicted
        variances = (total**2 - true @ true) * (total**2 - predicted @ predicted)
        return float(covariance / np.sqrt(variances)) if variances > 0 else 0.0


class LabelSetScore:
    """Counts the decisions on each label, for examples with any number of labels.

    Args:
        labels: in the order of their ids.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self._ids = {label: index for index, label in enumerate(labels)}
        self._right, self._true, self._predicted = np.zeros((3, len(labels)), dtype=np.int64)
        self._exact = 0
        self._first: dict[str, frozenset[int]] = {}
        self._differing: set[str] = set()
        self.num_examples = 0

    def add(self, examples: Sequence[TextExample[tuple[str, ...]]], predictions: Sequence[Mapping[str, Any]]) -> None:
        """Counts the `labels` of each prediction; see `Score.add`."""
        for example, prediction in zip(examples, predictions, strict=True):
            labels = prediction.get("labels")
            if not isinstance(labels, list | tuple):
                raise InputError(
                    f'{example.source}: its prediction has no "labels" that are a list: expected a line of '
                    "`unmask predict` of a multi-label model"
                )
            predicted = frozenset(_id_of(label, self._ids, example.source) for label in labels)
            if example.label is None:
                continue
            true = frozenset(self._ids[label] for label in example.label)
            self.num_examples += 1
            self._exact += true == predicted
            self._right[list(true & predicted)] += 1
            self._true[list(true)] += 1
            self._predicted[list(predicted)] += 1
            for side, ids in (("true", true), ("predicted", predicted)):
                if self._first.setdefault(side, ids) != ids:
                    self._differing.add(side)

    def metrics(self) -> dict[str, float]:
        """`f1_micro`, `f1_macro` over all labels, and `accuracy`: the share of examples with every label right."""
        total = np.array([self._right.sum()]), np.array([self._true.sum()]), np.array([self._predicted.sum()])
        return {
            "f1_micro": float(f1_scores(*total)[0]),
            "f1_macro": _mean(f1_scores(self._right, self._true, self._predicted)),
            "accuracy": self._exact / max(1, self.num_examples),
        }

    def degenerate(self) -> str | None:
        if "true" not in self._differing or "predicted" in self._differing:
            return None
        names = list(self._ids)
        predicted = ", ".join(names[index] for index in sorted(self._first["predicted"])) or "no label"
        return f"all {self.num_examples:,} predictions are alike ({predicted}), and the labels are not"


def f1_scores(right: NDArray[np.int64], true: NDArray[np.int64], predicted: NDArray[np.int64]) -> NDArray[np.float64]:
    """(labels,): 2 TP / (2 TP + FP + FN) of each label; 0 if it neither occurs nor is predicted."""
    scores: NDArray[np.float64] = 2 * right / np.maximum(1, true + predicted)
    return scores


def _mean(scores: NDArray[np.float64]) -> float:
    return float(scores.mean()) if len(scores) else 0.0


def warn_of_absent(labels: Sequence[str], counts: NDArray[np.int64], path: DataPath) -> None:
    """Warns of labels that have no example in a training file."""
    if absent := [label for label, count in zip(labels, counts, strict=True) if not count]:
        logger.warning("%s: no example with the label %s", path, listed(absent))


def _id_of(label: Any, ids: Mapping[str, int], source: str) -> int:
    if not isinstance(label, str):
        raise InputError(
            f'{source}: its prediction has no "label" that is a string: expected a line of `unmask predict`'
        )
    if label not in ids:
        raise InputError(
            f"{source}: its prediction is {label[:60]!r}, which is none of the labels ({listed(list(ids))}): "
            "expected predictions of this task"
        )
    return ids[label]
