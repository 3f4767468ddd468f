"""How often a model finds the grammatical sentence of a minimal pair likelier (Warstadt et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.tasks.minimal_pairs.reading import Paradigm
from unmask.tasks.minimal_pairs.scorers import SentenceScorer, score_sentences

_PAIRS_AT_ONCE = 500
"""Pairs whose sentences are sorted by length together."""

_RESAMPLES = 2000
_PERCENTILES = (2.5, 97.5)
"""Of the bootstrap, for 95 % intervals."""


def compare_pairs(
    scorer: SentenceScorer, paradigms: Sequence[Paradigm], advance: Callable[[float], None] = lambda _: None
) -> dict[str, Any]:
    """Which sentences of the pairs a model finds likelier. Two that are equally likely count as wrong.

    Args:
        advance: given how many pairs more are done, in fractions, whenever a batch is scored.

    Returns:
        As `unmask.inference.pairs.evaluate_pairs`. The mean is over paradigms, each counting the same, and so is that
        of each phenomenon (`terms`); intervals are of 95 %, by a bootstrap of the pairs within paradigms.
    """
    pairs = [pair for paradigm in paradigms for pair in paradigm.pairs]
    right = np.zeros(len(pairs), dtype=bool)
    num_alike = 0
    chance = np.random.default_rng(0)
    order = chance.permutation(len(pairs))  # long and short ones mixed, so that the time left is a fair estimate
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        numbers = order[start : start + _PAIRS_AT_ONCE]
        texts = [text for number in numbers for text in (pairs[number].good, pairs[number].bad)]
        sentences = scorer.encode(texts)
        two = zip(sentences[0::2], sentences[1::2], strict=True)
        differ = [not np.array_equal(good.ids, bad.ids) for good, bad in two]
        scores = score_sentences(scorer, sentences, lambda count: advance(count / 2))
        right[numbers] = (scores[0::2] > scores[1::2]) & differ  # equal ids may get scores that differ in a digit
        num_alike += differ.count(False)
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
    return {
        "task": "pairs",
        "n": len(pairs),
        "alike": num_alike,
        "metrics": _mean(resampled.values()),
        "terms": {term: _mean(resampled[name] for name in names)["accuracy"] for term, names in by_term.items()},
        "paradigms": {each.name: {"term": each.term, **_mean([resampled[each.name]])} for each in paradigms},
    }


def _mean(parts: Iterable[tuple[float, NDArray[np.float64]]]) -> dict[str, float]:
    """Of paradigms, each with its share of right pairs and the resampled ones, in percent."""
    shares, resamples = zip(*parts, strict=True)
    low, high = np.percentile(np.mean(resamples, 0), _PERCENTILES)
    return {"accuracy": 100 * float(np.mean(shares)), "low": 100 * float(low), "high": 100 * float(high)}
