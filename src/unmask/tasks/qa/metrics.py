"""Exact match and F1 of answers, in 0..100, as the scorers of SQuAD 1.1 and 2.0, KorQuAD 1.0 and TriviaQA count them.

Rajpurkar et al. 2016, section 6.1, and 2018; Lim et al. 2019; Joshi et al. 2017. The best over all right answers
counts. F1 is computed on bags of words, for KorQuAD on bags of characters. Names are those of Hugging Face `evaluate`:
`squad` and `squad_v2`. Unlike these scorers, an answer and the right ones are composed (NFC), since an answer has the
passage's composition.
"""

from __future__ import annotations

import logging
import math
import re
import string
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from unmask.io.encodings import normalized
from unmask.tasks.qa.examples import QaExample
from unmask.tasks.rows import wrong_prediction

logger = logging.getLogger("unmask")

Normalisation = Literal["squad", "korquad", "triviaqa"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_BLANKS_FOR_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation + "‘’´", " "))
_KOREAN_SIGNS = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def normalise_squad(text: str) -> str:
    """Composed (NFC), lower case, without ASCII punctuation, English articles and additional white space."""
    return " ".join(_ARTICLES.sub(" ", normalized("NFC", text).lower().translate(_WITHOUT_PUNCTUATION)).split())


def normalise_korquad(text: str) -> str:
    """Composed (NFC), quotation marks and brackets become blanks; then lower case, without ASCII punctuation and
    additional blanks."""
    return " ".join(normalized("NFC", text).translate(_KOREAN_SIGNS).lower().translate(_WITHOUT_PUNCTUATION).split())


def normalise_triviaqa(text: str) -> str:
    """As `normalise_squad`, but ASCII punctuation and the quotation marks ‘ ’ ´ become blanks."""
    return " ".join(_ARTICLES.sub(" ", normalized("NFC", text).lower().translate(_BLANKS_FOR_PUNCTUATION)).split())


@dataclass(frozen=True)
class _Rules:
    """How two texts are compared: how each is normalised, and the parts that F1 counts."""

    normalise: Callable[[str], str]
    parts: Callable[[str], list[str]]


_RULES: dict[Normalisation, _Rules] = {
    "squad": _Rules(normalise_squad, str.split),
    "triviaqa": _Rules(normalise_triviaqa, str.split),
    "korquad": _Rules(normalise_korquad, lambda text: list(text.replace(" ", ""))),
}


@lru_cache(maxsize=1 << 16)  # `unmask compare` scores the same answers many times
def compare(answer: str, golds: tuple[str, ...], normalisation: Normalisation = "squad") -> tuple[float, float]:
    """The best exact match and the best F1 of an answer over the right ones, each in 0..1.

    Args:
        golds: texts; none if there is no answer, which is matched by an answer that normalises to nothing.
    """
    rules = _RULES[normalisation]
    given = rules.normalise(answer)
    if not golds:
        return float(not given), float(not given)
    parts = Counter(rules.parts(given))
    exact, f1 = 0.0, 0.0
    for right in dict.fromkeys(map(rules.normalise, golds)):
        exact = max(exact, float(given == right))
        f1 = max(f1, _f1(parts, Counter(rules.parts(right))))
    return exact, f1


def _f1(given: Counter[str], right: Counter[str]) -> float:
    shared = (given & right).total()
    if not shared:
        return 0.0
    precision, recall = shared / given.total(), shared / right.total()
    return 2 * precision * recall / (precision + recall)


class QaScore:
    """Accumulates exact match and F1, and, if questions may have no answer, the other metrics of SQuAD 2.0's scorer.

    Memory: 48 bytes per question if there may be no answer, for the best thresholds; otherwise constant.

    Args:
        normalisation: of answers.
        unanswerable: whether questions may have no answer; None: they may as soon as one has none.
    """

    lower_is_better: ClassVar[frozenset[str]] = frozenset()
    reliability: ClassVar[None] = None

    def __init__(self, normalisation: Normalisation = "squad", unanswerable: bool | None = False) -> None:
        self._normalisation = normalisation
        self.unanswerable = unanswerable
        self._sums = {True: np.zeros(3), False: np.zeros(3)}  # exact, F1, questions: with and without answer
        self._rows = array("d")  # see `_table`
        self._all_have_probabilities = self._all_have_leads = True
        self._answers: set[str] = set()  # the first two different ones; likewise `_golds`
        self._golds: set[tuple[str, ...]] = set()

    @property
    def num_examples(self) -> int:
        return int(self._sums[True][2] + self._sums[False][2])

    @property
    def num_unanswerable(self) -> int:
        """Counted examples whose passage holds no answer."""
        return int(self._sums[False][2])

    def add(self, examples: Sequence[QaExample], predictions: Sequence[Mapping[str, Any]]) -> None:
        """See `Score`; examples without a known right answer are ignored."""
        for example, prediction in zip(examples, predictions, strict=True):
            if example.gold_texts is None:
                continue
            answer = _text(example, prediction, "answer")
            golds = example.gold_texts
            if self.unanswerable is not False:
                golds = tuple(filter(normalise_squad, golds))  # SQuAD 2.0's scorer drops those that become empty
            scores = compare(answer, golds, self._normalisation)
            withheld = prediction.get(WITHHELD) and example.gold_texts
            self._sums[bool(example.gold_texts)] += (0, 0, 1) if withheld else (*scores, 1)
            if len(self._answers) < 2:
                self._answers.add(answer)
            if len(self._golds) < 2:
                self._golds.add(golds)
            if self.unanswerable is not False:
                best = _best_text(example, prediction)
                raw = scores if best == answer else compare(best, golds, self._normalisation)
                probability = _probability(example, prediction)
                lead = _lead(prediction) if probability else None
                self._all_have_probabilities &= probability is not None
                self._all_have_leads &= lead is not None
                self._rows.extend((bool(example.gold_texts), *raw, bool(best), probability or 0.0, lead or 0.0))

    def metrics(self) -> dict[str, float]:
        """`f1` and `exact_match`; if questions may have no answer, the metrics of `squad_v2`: `exact`, `f1`, `total`,
        the same with `HasAns_` and `NoAns_` for the questions with and without an answer, and, if the predictions have
        `no_answer_probability`, `best_exact`, `best_f1` and the thresholds on it (`_thresh`) that give them.

        Runs are compared by the first: `f1`, or `best_f1`, since the threshold is only chosen after training. Of test
        `f1` is shown first, with the threshold that the model has; see `unmask.tasks.base.chosen_last`.
        """
        with_answer, without = self._sums[True], self._sums[False]
        if self.unanswerable is False or (self.unanswerable is None and not without[2]):
            exact, f1, total = with_answer + without
            return {"f1": 100 * float(f1 / max(1, total)), "exact_match": 100 * float(exact / max(1, total))}
        best: dict[str, float] = {}
        if self._all_have_probabilities and self._rows:
            for name, column in (("f1", 2), ("exact", 1)):
                order, sums = self._sums_by_answered(column)
                most = int(sums.argmax())
                best[f"best_{name}"] = 100 * float(sums[most] / len(order))
                best[f"best_{name}_thresh"] = float(self._table()[order[most - 1], 4]) if most else 0.0
        metrics = {"best_f1": best["best_f1"]} if best else {}
        for prefix, (exact, f1, total) in {
            "": with_answer + without,
            "HasAns_": with_answer,
            "NoAns_": without,
        }.items():
            if total or not prefix:
                metrics[f"{prefix}f1"] = 100 * float(f1 / max(1, total))
                metrics[f"{prefix}exact"] = 100 * float(exact / max(1, total))
                metrics[f"{prefix}total"] = int(total)
        return metrics | best

    def best_null_threshold(self) -> float:
        """By how much the best span's score must exceed that of no answer for the highest F1 on these questions.

        It lies midway between the last question that is answered and the first that is not; 0 if every question has an
        answer, or `no_answer_probability` is missing.
        """
        if not self.num_unanswerable or not self._all_have_probabilities:
            return 0.0
        order, sums = self._sums_by_answered(2)
        leads = self._table()[order, 5]
        if not self._all_have_leads:
            probabilities = np.clip(self._table()[order, 4], 1e-300, 1 - 1e-16)
            leads = np.log1p(-probabilities) - np.log(probabilities)
        leads = leads[leads > -np.inf]  # descending; whatever the threshold, the last ones have no span to answer with
        if not len(leads):
            return 0.0
        sums = sums[: len(leads) + 1]
        bounds = np.concatenate([[leads[0] + 2], leads, [leads[-1] - 2]])
        parts = bounds[1:] < bounds[:-1]  # no threshold separates equally probable ones
        most = int(np.where(parts, sums, -1.0).argmax())
        return float((bounds[most] + bounds[most + 1]) / 2)

    def degenerate(self) -> str | None:
        if self.num_examples < 2 or len(self._answers) != 1 or len(self._golds) < 2:
            return None
        (answer,) = self._answers
        what = f"answers are {answer[:60]!r}" if answer else "questions were given no answer"
        return f"all {self.num_examples:,} {what}"

    def _table(self) -> NDArray[np.float64]:
        """(questions, 6): has an answer; exact match and F1 of the best span; there is one; no-answer probability; the
        best span's score minus that of no answer."""
        return np.frombuffer(self._rows, dtype=np.float64).reshape(-1, 6)

    def _sums_by_answered(self, column: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The questions by ascending probability of no answer, and the sum of the column when the first 0, 1 ... of
        them are answered and the others are not, as in SQuAD 2.0's scorer. Scores order them where all have some: from
        a difference of 37 on the probability is 1."""
        table = self._table()
        order = np.argsort(-table[:, 5] if self._all_have_leads else table[:, 4], kind="stable")
        has_answer, answered = table[order, 0] > 0, table[order, 3] > 0
        gains = np.where(has_answer, table[order, column], np.where(answered, -1.0, 0.0))
        return order, np.cumsum(np.concatenate([[float((~has_answer).sum())], gains]))


WITHHELD = "is_withheld"
"""The key of predictions that a threshold on --na-probs made empty. SQuAD 2.0's scorer counts them as wrong where there
is an answer, though this may normalise to nothing, as they do."""


def _text(example: QaExample, prediction: Mapping[str, Any], key: str) -> str:
    text = prediction.get(key)
    if not isinstance(text, str):
        raise wrong_prediction(example.source, key, text, "a text, an empty one for no answer")
    return text


def _best_text(example: QaExample, prediction: Mapping[str, Any]) -> str:
    """The best non-empty answer, whether or not it was given."""
    listed = prediction.get("n_best")
    best = listed[0] if isinstance(listed, list) and listed else prediction
    if not isinstance(best, Mapping):
        raise wrong_prediction(example.source, "n_best", listed, "a list of objects with answer")
    return _text(example, best, "answer")


def _probability(example: QaExample, prediction: Mapping[str, Any]) -> float | None:
    value = prediction.get("no_answer_probability")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1):
        raise wrong_prediction(example.source, "no_answer_probability", value, "a number in 0..1")
    return value


def _lead(prediction: Mapping[str, Any]) -> float | None:
    """The best span's score minus that of no answer; minus infinity without a span; None where a score is missing."""
    listed, null_score = prediction.get("n_best"), prediction.get("null_score")
    if not isinstance(listed, list) or not isinstance(null_score, int | float):
        return None
    score = listed[0].get("score") if listed else -math.inf
    return score - null_score if isinstance(score, int | float) else None
