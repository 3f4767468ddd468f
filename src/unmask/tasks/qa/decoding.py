"""From start and end scores of a passage's windows to answers: the best spans, and whether there is an answer at all.

Devlin et al. 2019, sections 4.2 and 4.3. A span's score is S.T_i + E.T_j, j >= i; the score of no answer is S.C + E.C,
the lowest over the windows, as in Google's run_squad. Departures from that code: it tries the twenty best starts with
the twenty best ends of each window; here every span of up to `max_answer_length` tokens is considered. And here an
answer is the text of the passage from the first character of its first token to the last of its last, whatever the
script; Google's code maps tokens back to whitespace-separated words and searches these for the tokens' text, which
gives the same text (even part of a word) if the search succeeds, and whole words if it fails.

Where answerability is classified (`unmask.tasks.qa.module`), the classifier's logit alone decides, the lowest over the
windows. The score of no answer is then the best span's plus this logit, so that the one's lead over the other is the
logit, the probability of no answer is the classifier's, and thresholds, figures and ensembles are the same for both
ways. Scores of spans have no scale by themselves: only their differences within a row are learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from unmask.tasks.encoded import EncodedExamples
from unmask.tasks.qa.examples import QaExample
from unmask.tasks.qa.windows import windows_of_examples
from unmask.tasks.settings import TaskSettings

Floats = NDArray[np.float32]


def decode_answers(
    examples: Sequence[QaExample], encoded: EncodedExamples, logits: Floats, settings: TaskSettings
) -> list[dict[str, Any]]:
    """One prediction for each example.

    Args:
        encoded: these same examples, with their alignment.
        logits: (tokens, 2), for start and end; or (tokens, 3), the third the logit that the row holds no answer.
        settings: `max_answer_length`, `n_best`, `unanswerable` and `null_threshold` (0 if None).

    Returns:
        `id`; `answer`, `start`, `end` (characters of the passage; an empty text and None for no answer); `score` of
        the answer given; `null_score` of no answer; `no_answer_probability`: the logistic function of the null score
        minus the best span's (without tau), so that a threshold on one is a threshold on the other, or 0 if every
        question has an answer; `n_best`: the best spans with different texts, each with `answer`, `start`, `end`,
        `score` and `probability`, a softmax over them, including no answer where that is possible.
    """
    places = encoded.alignment
    is_classified = logits.shape[1] == 3
    of_rows = logits[places["is_cls"].astype(np.bool_)]
    nulls = of_rows[:, 2] if is_classified else of_rows.sum(1)  # (units,)
    padded = np.concatenate([logits[:, 1], np.full(settings.max_answer_length - 1, -np.inf, dtype=np.float32)])
    ends_ahead = sliding_window_view(padded, settings.max_answer_length)  # scores of ends 0, 1 ... tokens ahead
    lasts = _last_of_rows(encoded, places["starts"].astype(np.int64) >= 0)
    lengths = np.arange(settings.max_answer_length)
    predictions = []
    for example, units in zip(examples, windows_of_examples(encoded, len(examples)), strict=True):
        tokens = slice(int(encoded.bounds[units.start]), int(encoded.bounds[units.stop]))
        begins = np.flatnonzero(places["max_context"][tokens]) + tokens.start
        scores = logits[begins, 0, None] + ends_ahead[begins]
        scores[lengths > (lasts[begins] - begins)[:, None]] = -np.inf
        spans = _best_spans(example.context, scores, begins, places, settings.n_best)
        null_score = float(nulls[units.start : units.stop].min())
        if is_classified and spans:
            null_score += spans[0].score
        predictions.append(_prediction(example, spans, null_score, settings))
    return predictions


@dataclass(frozen=True)
class _Span:
    """What a prediction says of an answer; without a place for no answer."""

    answer: str
    start: int | None
    end: int | None
    score: float


def _last_of_rows(encoded: EncodedExamples, inside: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(tokens,) int64: the passage's last token in each token's row; the token before the row if there is none."""
    counts = np.add.reduceat(inside, encoded.bounds[:-1], dtype=np.int64)
    numbers = np.flatnonzero(inside)
    ends = np.cumsum(counts)
    lasts = np.where(counts > 0, numbers[np.maximum(ends, 1) - 1] if len(numbers) else -1, encoded.bounds[:-1] - 1)
    return np.repeat(lasts, np.diff(encoded.bounds))


def _best_spans(
    context: str, scores: Floats, begins: NDArray[np.int64], places: Mapping[str, NDArray[np.generic]], n_best: int
) -> list[_Span]:
    """The best spans with different texts, best first, at most `n_best`.

    Args:
        scores: (begins, width), of answers that end 0, 1 ... tokens after they begin.
        begins: tokens at which an answer may begin: each token of the passage, in the window where it has most context.
        places: `starts` and `ends` of all tokens, characters of the passage.
    """
    flat, width = scores.ravel(), scores.shape[1]
    found: dict[str, _Span] = {}
    for index in _descending(flat, 2 * n_best):
        if flat[index] == -np.inf:
            break
        first, last = begins[index // width], begins[index // width] + index % width
        span = _trimmed(context, int(places["starts"][first]), int(places["ends"][last]), float(flat[index]))
        if span.answer and span.answer not in found:
            found[span.answer] = span
            if len(found) == n_best:
                break
    return list(found.values())


def _descending(values: Floats, count: int) -> Iterator[int]:
    """The indices of all values in descending order, stable; all of them are sorted only if more than `count` are
    requested."""
    bound = np.partition(values, len(values) - count)[len(values) - count] if count < len(values) else -np.inf
    for chosen in (values >= bound, values < bound):
        places = np.flatnonzero(chosen)
        yield from places[np.argsort(-values[places], kind="stable")].tolist()


def _trimmed(context: str, start: int, end: int, score: float) -> _Span:
    text = context[start:end]
    start += len(text) - len(text.lstrip())
    text = text.strip()
    return _Span(text, start, start + len(text), score)


def _prediction(
    example: QaExample, spans: Sequence[_Span], null_score: float, settings: TaskSettings
) -> dict[str, Any]:
    best = spans[0] if spans else None
    answered = best is not None and (
        not settings.unanswerable or best.score > null_score + (settings.null_threshold or 0.0)
    )
    probability = 0.0
    if settings.unanswerable:
        probability = 1.0 if best is None else _logistic(null_score - best.score)
    chosen = best if best is not None and answered else _Span("", None, None, null_score)
    return {
        "id": example.id,
        **vars(chosen),
        "null_score": null_score,
        "no_answer_probability": probability,
        "n_best": _n_best(spans, [null_score] if settings.unanswerable else []),
    }


def _n_best(spans: Sequence[_Span], others: Sequence[float]) -> list[Mapping[str, Any]]:
    scores = np.array([*(span.score for span in spans), *others], dtype=np.float64)
    weights = np.exp(scores - scores.max()) if len(scores) else scores
    total = weights.sum()
    return [{**vars(span), "probability": float(each / total)} for span, each in zip(spans, weights, strict=False)]


def _logistic(value: float) -> float:
    """1 / (1 + e^-value), without overflow."""
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))
