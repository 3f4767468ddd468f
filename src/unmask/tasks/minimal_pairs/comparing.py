"""How often a model finds the grammatical sentence of a minimal pair likelier (Warstadt et al. 2020)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InputError
from unmask.io.rows import RowFaults
from unmask.tasks.base import share_with_interval
from unmask.tasks.minimal_pairs.reading import MinimalPair, Paradigm
from unmask.tasks.minimal_pairs.scorers import Sentence, SentenceScorer, score_sentences

logger = logging.getLogger("unmask")

MOST_ALIKE = 0.01
"""The share of pairs over which a warning says that the model reads their two sentences as the same."""

_PAIRS_AT_ONCE = 500
"""Pairs whose sentences are sorted by length together."""


@dataclass(frozen=True)
class PairScores:
    """Which sentences of the pairs a model finds likelier. Two that are equally likely count as wrong.

    Attributes:
        paradigms: what was scored.
        scores: (pairs, 2) of the right and of the wrong sentence, in the order of the paradigms.
        alike: (pairs,) whether the model reads both as the same.
    """

    paradigms: Sequence[Paradigm]
    scores: NDArray[np.float64]
    alike: NDArray[np.bool_]

    @property
    def right(self) -> NDArray[np.bool_]:
        """(pairs,) whether the right sentence is likelier."""
        is_right: NDArray[np.bool_] = self.scores[:, 0] > self.scores[:, 1]
        return is_right & ~self.alike  # equal ids may get scores that differ in a digit

    def figures(self) -> dict[str, Any]:
        """What `unmask.inference.pairs.evaluate_pairs` returns. The mean is over paradigms, each counting the same, and
        so is that of each phenomenon (`terms`). Intervals are of 95 %: Wilson's for the share of a paradigm, which has
        a width at 0 and 100 % too, and for means what Newcombe (1998) makes of these."""
        right = self.right
        shares: dict[str, NDArray[np.float64]] = {}
        first = 0
        for paradigm in self.paradigms:
            size = len(paradigm.pairs)
            shares[paradigm.name] = share_with_interval(int(right[first : first + size].sum()), size)
            first += size
        by_term: dict[str, list[str]] = {}
        for paradigm in self.paradigms:
            if paradigm.term:
                by_term.setdefault(paradigm.term, []).append(paradigm.name)
        return {
            "task": "pairs",
            "n": len(right),
            "alike": int(self.alike.sum()),
            "metrics": _mean(shares.values()),
            "terms": {term: _mean(shares[name] for name in names) for term, names in by_term.items()},
            "paradigms": {each.name: {"term": each.term, **_mean([shares[each.name]])} for each in self.paradigms},
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each pair with its scores, as a line of JSON."""
        pairs = ((paradigm.name, pair) for paradigm in self.paradigms for pair in paradigm.pairs)
        for (name, pair), scores, right in zip(pairs, self.scores.tolist(), self.right.tolist(), strict=True):
            yield {
                "paradigm": name,
                "place": pair.place,
                "sentence_good": pair.good,
                "sentence_bad": pair.bad,
                "score_good": scores[0],
                "score_bad": scores[1],
                "right": right,
            }


def score_pairs(
    scorer: SentenceScorer,
    paradigms: Sequence[Paradigm],
    encoded: Sequence[tuple[Sentence, Sentence]],
    advance: Callable[[float], None] = lambda _: None,
) -> PairScores:
    """Scores both sentences of all pairs.

    Args:
        encoded: all pairs, as `encode_pairs` gives them.
        advance: given how many pairs more are done, in fractions, whenever a batch is scored.

    Raises:
        ModelError: what the model computes is not finite.
    """
    scores = np.empty((len(encoded), 2))
    # Long and short ones mixed, so that the time left is a fair estimate.
    order = np.random.default_rng(0).permutation(len(encoded))
    for start in range(0, len(encoded), _PAIRS_AT_ONCE):
        numbers = order[start : start + _PAIRS_AT_ONCE]
        sentences = [sentence for number in numbers for sentence in encoded[number]]
        found = score_sentences(scorer, sentences, lambda count: advance(count / 2))
        scores[numbers] = found.reshape(-1, 2)
    return PairScores(paradigms, scores, np.array([read_alike(*both) for both in encoded], dtype=bool))


def encode_pairs(
    scorer: SentenceScorer, pairs: Sequence[MinimalPair], advance: Callable[[float], None] = lambda _: None
) -> list[tuple[Sentence, Sentence]]:
    """What the model reads of the right and of the wrong sentence of each pair.

    Args:
        advance: given how many pairs more are encoded, every few hundred.

    Raises:
        InputError: the model cannot score a sentence; file and line are named, the first few together.
    """
    encoded: list[tuple[Sentence, Sentence]] = []
    faults = RowFaults()
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        part = pairs[start : start + _PAIRS_AT_ONCE]
        try:
            sentences = scorer.encode([text for pair in part for text in (pair.good, pair.bad)])
            encoded += zip(sentences[0::2], sentences[1::2], strict=True)
        except InputError:
            for pair in part:
                try:
                    scorer.encode([pair.good, pair.bad])
                except InputError as error:
                    faults.add(InputError(f"{pair.place}: {error}"))
        advance(len(part))
    faults.raise_any()
    return encoded


def read_alike(good: Sentence, bad: Sentence) -> bool:
    """Whether two sentences are one and the same to the model."""
    return np.array_equal(good.ids, bad.ids)


def warn_of_alike(
    encoded: Sequence[tuple[Sentence, Sentence]], paradigms: Sequence[Paradigm], scorer: SentenceScorer
) -> None:
    """Warns where the model reads the two sentences of many pairs as the same; those that are the same text have their
    own warning when they are read.

    Args:
        encoded: all pairs, as `encode_pairs` gives them.
    """
    pairs = [pair for each in paradigms for pair in each.pairs]
    alike = [
        good.ids
        for pair, (good, bad) in zip(pairs, encoded, strict=True)
        if pair.good != pair.bad and read_alike(good, bad)
    ]
    if len(alike) > MOST_ALIKE * len(pairs):
        num_unknown = sum(scorer.tokenizer.unk_id in ids.tolist() for ids in alike)
        logger.warning(
            "pairs of two sentences that this model reads as the same, which count as wrong: %s of %s; its vocabulary "
            "lacks words of %s, its tokenizer makes no difference (case, accents, blanks) in %s: take a model whose "
            "tokenizer was made for such text, or other pairs",
            f"{len(alike):,}",
            f"{len(pairs):,}",
            f"{num_unknown:,}",
            f"{len(alike) - num_unknown:,}",
        )


def _mean(shares: Iterable[NDArray[np.float64]]) -> dict[str, float]:
    """Of paradigms, from their `share_with_interval`, in percent. To either side, how far the ends of their intervals
    are from their shares is added as deviations are: by squares."""
    share, low, high = 100 * np.array(list(shares)).T
    mean, size = float(share.mean()), len(share)
    return {
        "accuracy": mean,
        "low": max(0.0, mean - float(np.linalg.norm(share - low)) / size),
        "high": min(100.0, mean + float(np.linalg.norm(high - share)) / size),
    }
