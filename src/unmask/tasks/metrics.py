"""Metrics of classification from counts alone, so that measuring a million predictions takes no more memory than ten.

Names and values are those of Hugging Face `evaluate` and scikit-learn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Confusion:
    """How often each label was predicted as each.

    Args:
        num_labels: how many labels there are.

    Attributes:
        counts: (labels, labels) int64, by true label, then by prediction.
    """

    def __init__(self, num_labels: int) -> None:
        self.counts: NDArray[np.int64] = np.zeros((num_labels, num_labels), dtype=np.int64)

    def add(self, labels: NDArray[np.integer[Any]], predictions: NDArray[np.integer[Any]]) -> None:
        """Counts some predictions; both are (examples,), ids of labels."""
        np.add.at(self.counts, (labels, predictions), 1)

    @property
    def num_examples(self) -> int:
        return int(self.counts.sum())

    @property
    def only_prediction(self) -> int | None:
        """The id that was predicted every time, where nothing else was and there was more than one label to predict."""
        predicted, present = np.flatnonzero(self.counts.sum(0)), np.flatnonzero(self.counts.sum(1))
        return int(predicted[0]) if len(predicted) == 1 and len(present) > 1 else None

    def metrics(self) -> dict[str, float]:
        """`accuracy`, `f1` of label 1 where there are two labels, else `f1_macro`, and `matthews_correlation`."""
        scores = self._f1()
        f1 = {"f1": float(scores[1])} if len(scores) == 2 else {"f1_macro": self._macro(scores)}
        return {
            "accuracy": float(np.trace(self.counts) / max(1, self.num_examples)),
            **f1,
            "matthews_correlation": self._matthews_correlation(),
        }

    def _f1(self) -> NDArray[np.float64]:
        """2 TP / (2 TP + FP + FN) of each label; 0 where it neither occurs nor is predicted."""
        hits = np.diagonal(self.counts)
        occurrences = self.counts.sum(0) + self.counts.sum(1)
        scores: NDArray[np.float64] = 2 * hits / np.maximum(1, occurrences)
        return scores

    def _macro(self, scores: NDArray[np.float64]) -> float:
        """The mean over the labels that occur or are predicted."""
        seen = (self.counts.sum(0) + self.counts.sum(1)) > 0
        return float(scores[seen].mean()) if seen.any() else 0.0

    def _matthews_correlation(self) -> float:
        """Labels against predictions, for any number of labels (Gorodkin 2004); 0 where either is constant."""
        true, predicted = self.counts.sum(1).astype(np.float64), self.counts.sum(0).astype(np.float64)
        total = true.sum()
        covariance = np.trace(self.counts) * total - true @ predicted
        variances = (total**2 - true @ true) * (total**2 - predicted @ predicted)
        return float(covariance / np.sqrt(variances)) if variances > 0 else 0.0
