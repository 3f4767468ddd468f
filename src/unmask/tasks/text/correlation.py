"""Metrics of regression: Pearson's and Spearman's correlation and the mean squared error, as in scipy.

Spearman's needs the ranks of all values, so all values are kept: 16 bytes per example.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InputError
from unmask.tasks.text.examples import TextExample
from unmask.tasks.text.metrics import f1_scores

_INDISTINCT = 1e-3
"""Predictions whose range is at most this share of the labels' range count as constant."""


class ValueScore:
    """Values and predictions, 16 bytes per example; unlabelled examples are ignored.

    Args:
        primary_metric: is reported first.
        binary_from: adds `f1`, where values of this or more are positive (KLUE-STS: 3.0).
    """

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
                raise InputError(
                    f'{example.source}: its prediction has no "value" that is a finite number: expected a line of '
                    "`unmask predict` of a regression model"
                )
            if example.label is not None:
                self._true.append(example.label)
                self._predicted.append(value)

    def metrics(self) -> dict[str, float]:
        """`pearson`, `spearmanr`, `f1` if `binary_from` is given, and `mse`; a correlation is 0 where either side is
        constant."""
        true, predicted = np.array(self._true), np.array(self._predicted)
        metrics = {
            "pearson": pearson(true, predicted),
            "spearmanr": pearson(ranks(true), ranks(predicted)),
        }
        if self._binary_from is not None:
            positive, said = true >= self._binary_from, predicted >= self._binary_from
            hits = np.array([(positive & said).sum()])
            metrics["f1"] = float(f1_scores(hits, np.array([positive.sum()]), np.array([said.sum()]))[0])
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
