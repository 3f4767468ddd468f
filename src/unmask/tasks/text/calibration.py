"""How far probabilities can be believed, and what is chosen on dev so that they can (Guo et al. 2017).

The expected calibration error is the mean distance between how sure a model is and how often it is right, over 15 equal
ranges of its certainty, weighted by how many predictions fall into each (their section 2). Temperature scaling divides
all logits by one number, chosen so that the labels of dev are as probable as possible (section 4.2): what is predicted
stays the same, and how sure it is does not. Thresholds are chosen for each label of a multi-label task, for its F1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_BINS = 15

Floats = NDArray[np.float64]

_SMALLEST = float(np.finfo(np.float32).tiny)
_COLDEST, _HOTTEST = 1 / 32, 32.0
"""Between these the temperature is looked for: a model that is right everywhere would be best at 0, and has none."""


def sureness(probability: float, threshold: float) -> float:
    """How sure a decision about a label is: 1/2 at its threshold, 1 at the probabilities 0 and 1, in straight lines
    between."""
    room = 1 - threshold if probability >= threshold else threshold
    return 0.5 + 0.5 * abs(probability - threshold) / room if room else 1.0


class Reliability:
    """Statements in ranges of the probability that a model gives them: that a label is right, or of several that one is
    there."""

    def __init__(self) -> None:
        self._counts, self._right = np.zeros((2, NUM_BINS), dtype=np.int64)
        self._certainty = np.zeros(NUM_BINS)

    def add(self, certainty: Floats, is_right: NDArray[np.bool_]) -> None:
        """Counts statements, (statements,): how probable each is held, in 0..1, and whether it is right."""
        bins = np.minimum((certainty * NUM_BINS).astype(np.int64), NUM_BINS - 1)
        self._counts += np.bincount(bins, minlength=NUM_BINS)
        self._right += np.bincount(bins[is_right], minlength=NUM_BINS)
        self._certainty += np.bincount(bins, weights=certainty, minlength=NUM_BINS)

    @property
    def num_decisions(self) -> int:
        return int(self._counts.sum())

    @property
    def error(self) -> float:
        """The expected calibration error, in 0..1; 0 without any decision."""
        return float(np.abs(self._right - self._certainty).sum() / max(1, self.num_decisions))

    def figures(self) -> dict[str, Any]:
        """`expected_calibration_error`, and of each range that holds decisions its `bins`: from where, to where, how
        many, how sure and how often right on average."""
        bins = [
            {
                "from": number / NUM_BINS,
                "to": (number + 1) / NUM_BINS,
                "count": int(count),
                "certainty": float(self._certainty[number] / count),
                "accuracy": float(self._right[number] / count),
            }
            for number, count in enumerate(self._counts)
            if count
        ]
        return {"expected_calibration_error": self.error, "bins": bins}


def best_temperature(probabilities: Floats, labels: NDArray[np.int64]) -> float | None:
    """The number, from 1/32 to 32, by which logits are divided so that the labels become most probable.

    The loss is convex in one over the temperature, so its slope is followed to 0 by halving.

    Args:
        probabilities: (examples, labels), each row adding up to 1.
        labels: (examples,) ids.

    Returns:
        None where even the lowest is not low enough: no decision is wrong, or hardly any.
    """
    logits = np.log(np.maximum(probabilities, _SMALLEST))
    margins = logits - logits[np.arange(len(labels)), labels][:, None]

    def slope(inverse: float) -> float:
        scaled = inverse * margins
        expected = np.exp(scaled - scaled.max(1, keepdims=True))
        expected /= expected.sum(1, keepdims=True)
        return float((expected * margins).sum())

    if slope(1 / _COLDEST) <= 0:
        return None
    low, high = np.log(1 / _HOTTEST), np.log(1 / _COLDEST)  # of one over the temperature
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(np.exp(middle)) < 0 else (low, middle)
    return float(np.exp(-(low + high) / 2))


def best_thresholds(probabilities: Floats, is_true: NDArray[np.bool_]) -> Floats:
    """(labels,): from which probability on each label is best predicted, for the highest F1 of that label.

    A threshold lies in the middle between two probabilities that occur. A label that no example has keeps 0.5.

    Args:
        probabilities: (examples, labels).
        is_true: (examples, labels), which labels each example has.
    """
    thresholds = np.full(probabilities.shape[1], 0.5)
    for label, (column, present) in enumerate(zip(probabilities.T, is_true.T, strict=True)):
        if not present.any():
            continue
        order = np.argsort(-column, kind="stable")
        descending = column[order]
        predicted = np.arange(1, len(column) + 1)
        scores = 2 * np.cumsum(present[order]) / (predicted + present.sum())
        next_one = np.append(descending[1:], 0.0)
        scores[descending == next_one] = -1.0  # equal probabilities are decided alike
        best = int(scores.argmax())
        thresholds[label] = (descending[best] + next_one[best]) / 2
    return thresholds
