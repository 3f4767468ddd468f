"""How often a model finds the grammatical sentence of a minimal pair likelier (Warstadt et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.tasks.pairs.reading import Paradigm
from unmask.tasks.pairs.scorers import SentenceScorer, score_sentences

_PAIRS_AT_ONCE = 500
"""Pairs whose sentences are sorted by length together."""

_RESAMPLES = 2000
_PERCENTILES = (2.5, 97.5)
"""Of the bootstrap, for 95 % intervals."""


@dataclass(frozen=True)
class Accuracy:
    """The percentage of pairs whose grammatical sentence is likelier, with a 95 % bootstrap interval."""

    percent: float
    low: float
    high: float


@dataclass(frozen=True)
class PairResults:
    """What minimal pairs say of a model.

    Attributes:
        mean: over paradigms, each counting the same; its interval is that of resampled pairs within paradigms.
        terms: the mean over the paradigms of each phenomenon, where they name one.
        term_of: the phenomenon of each paradigm; "" where it names none.
        paradigms: by name, in the order in which they were given.
        num_pairs: how many were compared.
        num_alike: of how many the model reads two equal sentences: they count as wrong.
    """

    mean: Accuracy
    terms: dict[str, Accuracy]
    term_of: dict[str, str]
    paradigms: dict[str, Accuracy]
    num_pairs: int
    num_alike: int


def compare_pairs(
    scorer: SentenceScorer, paradigms: Sequence[Paradigm], advance: Callable[[int], None] = lambda _: None
) -> PairResults:
    """Which sentences of the pairs a model finds likelier. Two that are equally likely count as wrong.

    Args:
        advance: given the number of pairs whenever some are done.
    """
    pairs = [pair for paradigm in paradigms for pair in paradigm.pairs]
    right = np.zeros(len(pairs), dtype=bool)
    num_alike = 0
    chance = np.random.default_rng(0)
    order = chance.permutation(len(pairs))  # long and short ones mixed, so that the time left is a fair estimate
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        numbers = order[start : start + _PAIRS_AT_ONCE]
        sentences = [text for number in numbers for text in (pairs[number].good, pairs[number].bad)]
        ids = scorer.encode(sentences)
        differ = [not np.array_equal(good, bad) for good, bad in zip(ids[0::2], ids[1::2], strict=True)]
        scores = score_sentences(scorer, sentences)
        right[numbers] = (scores[0::2] > scores[1::2]) & differ  # equal ids may get scores that differ in a digit
        num_alike += differ.count(False)
        advance(len(numbers))
    resampled: dict[str, tuple[float, NDArray[np.float64]]] = {}
    first = 0
    for paradigm in paradigms:
        size = len(paradigm.pairs)
        share = float(right[first : first + size].mean())
        # Pairs drawn with replacement, so many as there are: how many of them are right is binomial.
        resampled[paradigm.name] = share, chance.binomial(size, share, _RESAMPLES) / size
        first += size
    by_term: dict[str, list[str]] = {}
    for paradigm in paradigms:
        if paradigm.term:
            by_term.setdefault(paradigm.term, []).append(paradigm.name)
    return PairResults(
        _mean(resampled.values()),
        {term: _mean(resampled[name] for name in names) for term, names in by_term.items()},
        {paradigm.name: paradigm.term for paradigm in paradigms},
        {name: _mean([each]) for name, each in resampled.items()},
        len(pairs),
        num_alike,
    )


def _mean(parts: Iterable[tuple[float, NDArray[np.float64]]]) -> Accuracy:
    """Of paradigms, each with its share of right pairs and the resampled ones."""
    shares, resamples = zip(*parts, strict=True)
    low, high = np.percentile(np.mean(resamples, 0), _PERCENTILES)
    return Accuracy(100 * float(np.mean(shares)), 100 * float(low), 100 * float(high))


def as_figures(results: PairResults) -> dict[str, Any]:
    """What `evaluate_pairs` returns."""

    def figures(accuracy: Accuracy) -> dict[str, float]:
        return {"accuracy": accuracy.percent, "low": accuracy.low, "high": accuracy.high}

    return {
        "task": "pairs",
        "n": results.num_pairs,
        "alike": results.num_alike,
        "metrics": figures(results.mean),
        "terms": {name: accuracy.percent for name, accuracy in results.terms.items()},
        "paradigms": {
            name: {"term": results.term_of[name], **figures(accuracy)} for name, accuracy in results.paradigms.items()
        },
    }
