"""Floors that a loss has to get under, from the counts of a store: from how often each entry occurs, and, where masking
leaves targets unchanged (BERT, section 3.1), from the token shown at a target as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


def unigram_entropy(token_counts: NDArray[np.number[Any]]) -> float:
    """The entropy in nats of the entries' distribution: the loss of a model that knows frequencies and nothing else.

    Args:
        token_counts: (vocabulary,) how often each entry occurs, not all 0.
    """
    probabilities = token_counts[token_counts > 0] / token_counts.sum()
    return float(-(probabilities * np.log(probabilities)).sum())


@dataclass(frozen=True, eq=False)
class NoContext:
    """The best predictor of masked tokens that uses no context: it sees the token shown at a target, and no other.

    A target is the entry w with its frequency p(w). `[MASK]` is shown with probability m, w itself with k, and a random
    entry with r, which is x with probability u(x). So w is the target and the entry x is shown with probability
    p(w) (k [x = w] + r u(x)). A shown `[MASK]` tells nothing about w; another entry tells what this joint distribution
    says, and no prediction without context can be better.

    Where the tokens of a span are replaced alike, each has this same distribution: what the others tell is context.

    Attributes:
        frequencies: (vocabulary,) p.
        masked: m.
        kept: k.
        random: (vocabulary,) r u.
        mask_id: the id of `[MASK]`.
    """

    frequencies: Floats
    masked: float
    kept: float
    random: Floats
    mask_id: int

    @classmethod
    def of(
        cls,
        token_counts: NDArray[np.integer[Any]],
        mask_token_prob: float,
        random_token_prob: float,
        mask_id: int,
        special_ids: Sequence[int],
    ) -> Self:
        """Takes the counts of a store and the settings of an objective.

        Args:
            token_counts: (vocabulary,) how often each entry occurs, not all 0.
            mask_token_prob: share of the targets replaced by `[MASK]`.
            random_token_prob: share replaced by an entry drawn uniformly from all but the special ones.
            special_ids: the ids of the special entries.
        """
        ordinary = np.setdiff1d(np.arange(len(token_counts)), special_ids)
        random = np.zeros(len(token_counts))
        random[ordinary] = random_token_prob / len(ordinary)
        kept = max(0.0, 1 - mask_token_prob - random_token_prob)
        return cls(token_counts / token_counts.sum(), mask_token_prob, kept, random, mask_id)

    def loss(self) -> float:
        """Its mean loss in nats: the unigram entropy, less the mutual information of target and shown token."""
        p, random = self.frequencies, self.random
        shown = self.kept * p + random  # how often each entry is shown
        same = _relative_entropies(p * (self.kept + random), p * shown)
        other = _relative_entropies((1 - p) * random, (1 - p) * shown)
        return unigram_entropy(p) - float((same + other).sum())

    def accuracy(self) -> float:
        """The share of targets that its best guess gets right."""
        as_shown, commonest = self._chances(np.arange(len(self.frequencies)))
        return float(self.masked * self.frequencies.max() + np.maximum(as_shown, commonest).sum())

    def losses(self, labels: Ids, shown: Ids) -> Floats:
        """Its loss at given targets.

        Args:
            labels: (targets,) the original entries.
            shown: (targets,) the entries in their place.

        Returns:
            (targets,) float64, in nats.
        """
        probabilities = self.frequencies[labels]
        plain = shown != self.mask_id
        label, entry = labels[plain], shown[plain]
        joint = self.frequencies[label] * (self.kept * (label == entry) + self.random[entry])
        probabilities[plain] = joint / (self.kept * self.frequencies[entry] + self.random[entry])
        return np.asarray(-np.log(probabilities), dtype=np.float64)

    def guesses(self, shown: Ids) -> Ids:
        """(targets,) its best guesses: what is shown, where that is likelier kept than drawn, or the commonest entry.

        Args:
            shown: (targets,) the entries in the targets' place.
        """
        as_shown, commonest = self._chances(shown)
        copies = (shown != self.mask_id) & (as_shown > commonest)
        return np.where(copies, shown, self.frequencies.argmax())

    def floors(self, term: str) -> dict[str, dict[str, float]]:
        """The floors of a loss term and of its accuracy, by the names of `metrics.jsonl`.

        The first one is the floor to get under. Where nothing but `[MASK]` is shown, that is the unigram entropy.
        """
        losses = {"no context": self.loss()} if self.masked < 1 else {}
        losses["unigram entropy"] = unigram_entropy(self.frequencies)
        return {f"loss/{term}": losses, f"eval/{term}_accuracy": {"no context": self.accuracy()}}

    def _chances(self, shown: Ids) -> tuple[Floats, Floats]:
        """Two arrays (entries,): how often such an entry is shown and is the target, and how often it is shown while
        the commonest entry is the target."""
        p, random = self.frequencies, self.random[shown]
        return p[shown] * (self.kept + random), p.max() * random


def _relative_entropies(values: Floats, others: Floats) -> Floats:
    """a log(a / b) for each pair; 0 for a = 0."""
    ratios = np.divide(values, others, out=np.ones_like(values), where=values > 0)
    return values * np.log(ratios)
