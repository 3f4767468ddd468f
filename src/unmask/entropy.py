"""Floors that a loss has to pass, from the counts of a store."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def unigram_entropy(token_counts: NDArray[np.integer[Any]]) -> float:
    """The entropy in nats of the entries' distribution: the loss of a model that knows frequencies and nothing else.

    Args:
        token_counts: (vocabulary,) how often each entry occurs, not all 0.
    """
    probabilities = token_counts[token_counts > 0] / token_counts.sum()
    return float(-(probabilities * np.log(probabilities)).sum())
