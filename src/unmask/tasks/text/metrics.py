"""Metrics of texts: of labels from counts alone; of values two correlations and the mean squared error.

Memory grows with the examples for Spearman's correlation, which needs the ranks of all values, and kept probabilities.
Names and values are those of Hugging Face `evaluate` and scikit-learn. The name says how F1 is averaged: `f1` is that
of the second of two labels (label 1, the positive one); `f1_macro` is the mean of the labels' F1; `f1_micro` is the F1
of all decisions together, or of those on the labels other than a negative one.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unmask.io.input_files import DataPath
from unmask.io.progress import listed
from unmask.tasks.rows import wrong_prediction
from unmask.tasks.text.calibration import Reliability, best_temperature, best_thresholds
from unmask.tasks.text.examples import TextExample

logger = logging.getLogger("unmask")

_INDISTINCT = 1e-3
"""Predictions whose range is at most this share of the labels' range count as constant."""


class KeptProbabilities:
    """The probabilities of labels, and which of them each example has: 9 bytes per label and example."""

    def __init__(self, num_labels: int) -> None:
        self._num_labels = num_labels
        self._probabilities, self._is_true = array("d"), array("b")

    def add(self, probabilities: NDArray[np.float64], is_true: NDArray[np.bool_]) -> None:
        """Keeps those of an example, (labels,)."""
        self._probabilities.frombytes(probabilities.tobytes())
        self._is_true.frombytes(is_true.tobytes())

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """(examples, labels)."""
        return np.array(self._probabilities).reshape(-1, self._num_labels)

    @property
    def is_true(self) -> NDArray[np.bool_]:
        """(examples, labels)."""
        return np.array(self._is_true, dtype=bool).reshape(-1, self._num_labels)


class LabelScore:
    """Counts right, true and predicted labels; unlabelled examples are ignored.

    Args:
        labels: in the order of their ids.
        primary_metric: is reported first.
        keeps_probabilities: whether those of every example are kept, for `best_temperature`.
        negative: a label that means none of the others.

    Attributes:
        reliability: of the predictions that have a `score`.
    """

    lower_is_better: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        labels: Sequence[str],
        primary_metric: str = "accuracy",
        keeps_probabilities: bool = False,
        negative: str | None = None,
    ) -> None:
        self._ids = {label: index for index, label in enumerate(labels)}
        self._primary_metric, self._negative = primary_metric, negative
        self._right, self._true, self._predicted = np.zeros((3, len(labels)), dtype=np.int64)
        self._kept = KeptProbabilities(len(labels)) if keeps_probabilities else None
        self.reliability = Reliability()

    @property
    def num_examples(self) -> int:
        return int(self._true.sum())

    def add(self, examples: Sequence[TextExample[str]], predictions: Sequence[Mapping[str, Any]]) -> None:
        """Counts the `label` of each prediction; see `Score.add`."""
        certainty: list[float] = []
        is_right: list[bool] = []
        for example, prediction in zip(examples, predictions, strict=True):
            predicted = _id_of(prediction.get("label"), self._ids, example.source)
            if example.label is None:
                continue
            true = self._ids[example.label]
            self._true[true] += 1
            self._predicted[predicted] += 1
            self._right[true] += true == predicted
            if _is_probability(prediction.get("score")):
                certainty.append(prediction["score"])
                is_right.append(true == predicted)
            if self._kept is not None and (stated := _stated(prediction.get("probabilities"), self._ids)) is not None:
                self._kept.add(stated, np.arange(len(stated)) == true)
        self.reliability.add(np.array(certainty), np.array(is_right, dtype=bool))

    def best_temperature(self) -> float | None:
        """See `unmask.tasks.text.calibration`; the score keeps probabilities."""
        assert self._kept is not None
        return best_temperature(self._kept.probabilities, self._kept.is_true.argmax(1))

    def metrics(self) -> dict[str, float]:
        """`accuracy`; `f1` if there are two labels, else `f1_macro` over those that occur or are predicted;
        `matthews_correlation`; and with a negative label `f1_micro`, `precision_micro` and `recall_micro` of the
        others together."""
        scores = f1_scores(self._right, self._true, self._predicted)
        seen = (self._true + self._predicted) > 0
        f1 = {"f1": float(scores[1])} if len(scores) == 2 else {"f1_macro": _mean(scores[seen])}
        metrics = {
            "accuracy": float(self._right.sum() / max(1, self.num_examples)),
            **f1,
            "matthews_correlation": self._matthews_correlation(),
        }
        if self._negative is not None:
            counts = np.stack([self._right, self._true, self._predicted])
            right, true, predicted = np.delete(counts, self._ids[self._negative], 1).sum(1, keepdims=True)
            metrics["f1_micro"] = float(f1_scores(right, true, predicted)[0])
            metrics["precision_micro"] = float(right[0] / max(1, predicted[0]))
            metrics["recall_micro"] = float(right[0] / max(1, true[0]))
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
        keeps_probabilities: whether those of every example are kept, for `best_temperature` and `best_thresholds`.

    Attributes:
        reliability: of the probabilities of all labels, of the predictions that have them.
    """

    lower_is_better: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, labels: Sequence[str], keeps_probabilities: bool = False) -> None:
        self._ids = {label: index for index, label in enumerate(labels)}
        self._kept = KeptProbabilities(len(labels)) if keeps_probabilities else None
        self.reliability = Reliability()
        self._right, self._true, self._predicted = np.zeros((3, len(labels)), dtype=np.int64)
        self._exact = 0
        self._first: dict[str, frozenset[int]] = {}
        self._differing: set[str] = set()
        self.num_examples = 0

    def add(self, examples: Sequence[TextExample[tuple[str, ...]]], predictions: Sequence[Mapping[str, Any]]) -> None:
        """Counts the `labels` of each prediction; see `Score.add`."""
        certainty: list[NDArray[np.float64]] = [np.zeros(0)]
        is_there: list[NDArray[np.bool_]] = [np.zeros(0, dtype=bool)]
        for example, prediction in zip(examples, predictions, strict=True):
            labels = prediction.get("labels")
            if not isinstance(labels, list | tuple):
                raise wrong_prediction(example.source, "labels", labels, "a list of labels")
            predicted = frozenset(_id_of(label, self._ids, example.source) for label in labels)
            if example.label is None:
                continue
            true = frozenset(self._ids[label] for label in example.label)
            self.num_examples += 1
            self._exact += true == predicted
            self._right[list(true & predicted)] += 1
            self._true[list(true)] += 1
            self._predicted[list(predicted)] += 1
            # Of each label, how probable it is and whether it is there, whatever the thresholds.
            if (stated := _stated(prediction.get("probabilities"), self._ids)) is not None:
                its = np.zeros(len(stated), dtype=bool)
                its[list(true)] = True
                certainty.append(stated)
                is_there.append(its)
                if self._kept is not None:
                    self._kept.add(stated, its)
            for side, ids in (("true", true), ("predicted", predicted)):
                if self._first.setdefault(side, ids) != ids:
                    self._differing.add(side)
        self.reliability.add(np.concatenate(certainty), np.concatenate(is_there))

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """(labels,), how many examples have each."""
        return self._true

    def best_temperature(self) -> float | None:
        """See `unmask.tasks.text.calibration`; the score keeps probabilities. Each label is a decision of its own."""
        assert self._kept is not None
        present = self._kept.probabilities.reshape(-1)
        return best_temperature(np.stack([1 - present, present], 1), self._kept.is_true.reshape(-1).astype(np.int64))

    def best_thresholds(self) -> dict[str, float]:
        """By label; the score keeps probabilities."""
        assert self._kept is not None
        found = best_thresholds(self._kept.probabilities, self._kept.is_true)
        return dict(zip(self._ids, found.tolist(), strict=True))

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


class ValueScore:
    """Values and predictions, 16 bytes per example; unlabelled examples are ignored.

    Args:
        primary_metric: is reported first.
        binary_from: adds `f1`, where values of this or more are positive (KLUE-STS: 3.0).
    """

    lower_is_better: ClassVar[frozenset[str]] = frozenset({"mse"})
    reliability: ClassVar[None] = None

    def __init__(self, primary_metric: str = "pearson", binary_from: float | None = None) -> None:
        self._primary_metric = primary_metric
        self._binary_from = binary_from
        self._true, self._predicted = array("d"), array("d")

    @property
    def num_examples(self) -> int:
        return len(self._true)

    def add(self, examples: Sequence[TextExample[float]], predictions: Sequence[Mapping[str, Any]]) -> None:
        """Keeps the `value` of each prediction; see `Score.add`."""
        for example, prediction in zip(examples, predictions, strict=True):
            value = prediction.get("value")
            if not isinstance(value, int | float) or isinstance(value, bool) or not np.isfinite(value):
                raise wrong_prediction(example.source, "value", value, "a finite number")
            if example.label is not None:
                self._true.append(example.label)
                self._predicted.append(value)

    def metrics(self) -> dict[str, float]:
        """`pearson`, `spearmanr`, `f1` if `binary_from` is given, and `mse`; a correlation is 0 where either side is
        constant."""
        true, predicted = np.array(self._true), np.array(self._predicted)
        metrics = {"pearson": pearson(true, predicted), "spearmanr": pearson(ranks(true), ranks(predicted))}
        if self._binary_from is not None:
            positive, predicted_positive = true >= self._binary_from, predicted >= self._binary_from
            hits = np.array([(positive & predicted_positive).sum()])
            totals = np.array([positive.sum()]), np.array([predicted_positive.sum()])
            metrics["f1"] = float(f1_scores(hits, *totals)[0])
        metrics["mse"] = float(np.square(true - predicted).mean()) if len(true) else 0.0
        return {self._primary_metric: metrics[self._primary_metric], **metrics}

    def degenerate(self) -> str | None:
        """See `Score`; predictions that hardly differ count as constant."""
        true, predicted = np.array(self._true), np.array(self._predicted)
        if not len(true) or np.ptp(true) == 0 or np.ptp(predicted) > _INDISTINCT * np.ptp(true):
            return None
        return (
            f"all {len(true):,} predictions are {predicted.mean():.4g} or hardly differ from it, and not all labels are"
        )


def pearson(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The correlation of two arrays (examples,); 0 where either is constant."""
    if not len(one) or np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    centred = [(values - values.mean()) / np.ptp(values) for values in (one, other)]
    norms = [float(np.linalg.norm(values)) for values in centred]
    return float(np.clip(centred[0] @ centred[1] / (norms[0] * norms[1]), -1, 1))


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(examples,) the places of values in their order, from 1; equal values have the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    means: NDArray[np.float64] = np.cumsum(counts) - (counts - 1) / 2
    return means[inverse]


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


def warn_of_unmeasured(counts: NDArray[np.int64], path: object) -> None:
    """Warns of labels that no measured example has: their F1 is 0 whatever is predicted.

    Args:
        counts: (labels,), how many examples have each.
    """
    if num_absent := int((counts == 0).sum()):
        logger.warning(
            "%s: no example has %s of the %s labels: each of them counts as 0 in f1_macro, whatever is predicted",
            path,
            f"{num_absent:,}",
            f"{len(counts):,}",
        )


def _stated(probabilities: Any, labels: Iterable[str]) -> NDArray[np.float64] | None:
    """(labels,), the `probabilities` of a prediction, which `Task.decide` gives so; None where a file does not say."""
    if isinstance(probabilities, np.ndarray):
        return probabilities
    values = [probabilities.get(label) for label in labels] if isinstance(probabilities, Mapping) else [None]
    return np.array(values, dtype=np.float64) if all(map(_is_probability, values)) else None


def _is_probability(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _id_of(label: Any, ids: Mapping[str, int], source: str) -> int:
    if not isinstance(label, str) or label not in ids:
        raise wrong_prediction(source, "label", label, f"one of {listed(list(ids))}")
    return ids[label]
