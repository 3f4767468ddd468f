"""Floors that a loss has to get under, from the counts of a store: from how often each entry occurs, and, where masking
leaves targets unchanged (BERT, section 3.1), from the token shown at a target as well. The floors beside a held-out
figure are those of the targets that it is measured on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from unmask.batch import Batch

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Floor:
    """The score of a model that has learnt less than it should.

    Attributes:
        name: of the doctor's finding about it.
        figure: what it is a floor of, as in `results.json`: `loss/mlm`, `eval/mlm_accuracy`. Losses have to fall below
            it, accuracies to exceed it.
        label: its short name, in `results.json` and in tables.
        what: what scores this, in words.
        value: nats for a loss, a share for an accuracy.
        margin: by how much it has to be passed, since less may be luck.
        is_needed: whether a run that has not passed it probably went wrong.
        advice: what to do where it was not passed and no cause is known.
    """

    name: str
    figure: str
    label: str
    what: str
    value: float
    margin: float = 0.02
    is_needed: bool = True
    advice: str = ""

    @property
    def is_loss(self) -> bool:
        return self.figure.startswith("loss/")

    @property
    def term(self) -> str:
        """The loss term that it is about."""
        return self.figure.partition("/")[2].removesuffix("_accuracy")

    @property
    def held_out_key(self) -> str:
        """The figure in evaluation rows of `metrics.jsonl`."""
        return f"eval/{self.term}_loss" if self.is_loss else self.figure

    def is_passed_by(self, value: float | None) -> bool:
        """Whether a figure is beyond the floor; one that is not finite (None) is not."""
        if value is None:
            return False
        return value < self.value - self.margin if self.is_loss else value > self.value + self.margin


UNIFORM, UNIGRAM, SHOWN = "uniform", "unigram entropy", "no context"
"""Labels: every entry is equally likely; the entries' frequencies are known; so is the token shown at each target."""

FREQUENCIES = "knowing how frequent each entry is and nothing else"
SHOWN_ALONE = "knowing the frequencies and the token shown at each target, without any context"
GUESSED_ALONE = "saying the token shown where it is likely to be kept, else the most frequent entry"


def vocabulary_floors(
    term: str, best: NoContext, targets: tuple[Ids, Ids] | None = None, advice: str = ""
) -> list[Floor]:
    """The floors of a loss over the vocabulary and of its accuracy.

    Args:
        best: the best predictor that uses no context.
        targets: the entries at given targets and what is shown in their place, both (targets,), to be exact for; None:
            every token of the store is equally likely to be a target.
        advice: where the floor to be passed soon, that of the frequencies, was not passed.

    Returns:
        Empty if there are no targets. The loss of knowing what is shown is left out where that is always `[MASK]`.
    """
    if targets is None:
        unigram, shown, accuracy, margin, of = unigram_entropy(best.frequencies), best.loss(), best.accuracy(), 0.0, ""
    else:
        labels, seen = targets
        if not len(labels):
            return []
        unigram, shown = float(-np.log(best.frequencies[labels]).mean()), float(best.losses(labels, seen).mean())
        accuracy = float((best.guesses(seen) == labels).mean())
        margin, of = share_margin(accuracy, len(labels)), " of the held-out targets"
    size, loss = len(best.frequencies), f"loss/{term}"
    even = f"guessing evenly among the {size:,} entries (ln V)"
    slow = "context is learnt after frequencies and copying are: train on more tokens"
    floors = [
        Floor(f"{term}-no-context-floor", loss, SHOWN, SHOWN_ALONE, shown, advice=slow),
        Floor(
            f"{term}-unigram-floor", loss, UNIGRAM, f"{FREQUENCIES} (unigram entropy{of})", unigram, advice=advice
        ),
        Floor(f"{term}-uniform-floor", loss, UNIFORM, even, math.log(size)),
        Floor(
            f"{term}-no-context-accuracy-floor", f"eval/{term}_accuracy", SHOWN, GUESSED_ALONE, accuracy, margin, False,
            "as for the loss",
        ),
    ]  # fmt: skip
    return floors if best.masked < 1 else floors[1:]


def share_entropy(share: float) -> float:
    """The loss, in nats, of knowing how often one of two labels occurs and nothing else."""
    return -sum(part * math.log(part) for part in (share, 1 - share) if part > 0)


def share_margin(share: float, number: int) -> float:
    """Two standard errors of a share among a number of labels."""
    return 2 * math.sqrt(share * (1 - share) / number)


def discriminator_floors(target_prob: float, replaced: float | None) -> list[Floor]:
    """The floors of a discriminator, by the share of tokens that its generator replaced in the newest evaluation: that
    depends on how good the generator is. Before a run (None) it is at most the share of targets."""
    share = target_prob if replaced is None else replaced
    what = f"knowing that {share:.1%} of the tokens are replaced and nothing else"
    if replaced is None:
        what = "knowing the share of targets alone; lower the more samples equal their originals"
    advice = "the discriminator learns from what a generator gets wrong: as for the generator"
    usual = "original" if share <= 0.5 else "replaced"  # of targets alone most may be
    always, as_loss = f"always saying that a token is {usual}", "as for the loss of the discriminator"
    loss, accuracy = "loss/discriminator", "eval/discriminator_accuracy"
    return [
        Floor("discriminator-share-floor", loss, "share entropy", what, share_entropy(share), 0.01, False, advice),
        Floor(
            "discriminator-majority-floor", accuracy, f"always {usual}", always, max(share, 1 - share), 0.001, False,
            as_loss,
        ),
    ]  # fmt: skip


def copying_floors(term: str, unigram: float, replaced: float | None) -> list[Floor]:
    """The floors of predicting the original tokens of a text of which a share was replaced, in the newest evaluation;
    none before a run.

    Args:
        unigram: nats of knowing the entries' frequencies alone.
    """
    if replaced is None:
        return []
    what = f"copying all tokens but the {replaced:.1%} that are replaced, of which at best the frequencies are known"
    advice = "the model learns from what a generator gets wrong: as for the generator"
    value, always = share_entropy(replaced) + replaced * unigram, "always saying the token that is shown"
    loss, accuracy = f"loss/{term}", f"eval/{term}_accuracy"
    return [
        Floor(f"{term}-copying-floor", loss, "copying", what, value, 0.01, False, advice),
        Floor(f"{term}-as-shown-floor", accuracy, "as shown", always, 1 - replaced, 0.001, False, "as for the loss"),
    ]


def by_figure(floors: Sequence[Floor]) -> dict[str, dict[str, float]]:
    """Floors as `results.json` has them: figure -> label -> value. That all entries are equally likely is not among
    them, since curves begin there."""
    figures: dict[str, dict[str, float]] = {}
    for floor in floors:
        if floor.label != UNIFORM:
            figures.setdefault(floor.figure, {})[floor.label] = floor.value
    return figures


def targets_of(batches: Sequence[Batch], column: str = "target_positions") -> tuple[Ids, Ids] | None:
    """The original tokens at the targets of prepared batches, whose places are in a column, and what is shown in their
    place; None without batches."""
    if not batches:
        return None
    places = [batch.columns[column] for batch in batches]
    labels = [batch.columns["labels"][at].numpy() for batch, at in zip(batches, places, strict=True)]
    shown = [batch.input_ids[at].numpy() for batch, at in zip(batches, places, strict=True)]
    return np.concatenate(labels), np.concatenate(shown)


def at_least_once(token_counts: Ids, targets: tuple[Ids, Ids] | None) -> Ids:
    """The counts, of each given target at least 1: packing adds special tokens that the store does not have."""
    counts = token_counts.copy()
    if targets is not None:
        counts[targets[0]] = np.maximum(counts[targets[0]], 1)
    return counts


def unigram_entropy(token_counts: NDArray[np.number[Any]]) -> float:
    """The entropy in nats of the entries' distribution, from counts (vocabulary,), not all 0: the loss of a model that
    knows frequencies and nothing else."""
    probabilities = token_counts[token_counts > 0] / token_counts.sum()
    return float(-(probabilities * np.log(probabilities)).sum())


@dataclass(frozen=True, eq=False)
class NoContext:
    """The best predictor of masked tokens that uses no context: it sees the token shown at a target, and no other.

    A target is the entry w with its frequency p(w). `[MASK]` is shown with probability m, w itself with k, and a random
    entry with r, which is x with probability u(x). So w is the target and the entry x is shown with probability
    p(w) (k [x = w] + r u(x)). A shown `[MASK]` says nothing about w; another entry says what this joint distribution
    gives, and no prediction without context can be better.

    Where the tokens of a span are replaced alike, each has this same distribution: the others are context.

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
        mask_token_prob: float = 1.0,
        random_token_prob: float = 0.0,
        mask_id: int = -1,
        special_ids: Sequence[int] = (),
    ) -> Self:
        """From the counts of a store, (vocabulary,), not all 0, and the settings of an objective: random entries are
        drawn uniformly from all but the special ones."""
        ordinary = np.setdiff1d(np.arange(len(token_counts)), special_ids)
        random = np.zeros(len(token_counts))
        random[ordinary] = random_token_prob / len(ordinary)
        kept = max(0.0, 1 - mask_token_prob - random_token_prob)
        return cls(token_counts / token_counts.sum(), mask_token_prob, kept, random, mask_id)

    def loss(self) -> float:
        """Its mean loss in nats: the unigram entropy, less the mutual information of target and shown token."""
        if self.masked == 1:
            return unigram_entropy(self.frequencies)
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
        """(targets,) float64: its loss in nats at given targets, from the original entries and those shown in their
        place, (targets,) each."""
        probabilities = self.frequencies[labels]
        plain = (shown != self.mask_id) & (self.masked < 1)
        label, entry = labels[plain], shown[plain]
        joint = self.frequencies[label] * (self.kept * (label == entry) + self.random[entry])
        probabilities[plain] = joint / (self.kept * self.frequencies[entry] + self.random[entry])
        return np.asarray(-np.log(probabilities), dtype=np.float64)

    def guesses(self, shown: Ids) -> Ids:
        """(targets,) its best guesses: what is shown, where that is likelier kept than drawn, or the commonest one."""
        as_shown, commonest = self._chances(shown)
        copies = (shown != self.mask_id) & (as_shown > commonest) & (self.masked < 1)
        return np.where(copies, shown, self.frequencies.argmax())

    def _chances(self, shown: Ids) -> tuple[Floats, Floats]:
        """Two arrays (entries,): how often such an entry is shown and is the target, and how often it is shown while
        the commonest entry is the target."""
        p, random = self.frequencies, self.random[shown]
        return p[shown] * (self.kept + random), p.max() * random


def _relative_entropies(values: Floats, others: Floats) -> Floats:
    """a log(a / b) for each pair; 0 for a = 0."""
    ratios = np.divide(values, others, out=np.ones_like(values), where=values > 0)
    return values * np.log(ratios)
