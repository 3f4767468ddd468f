"""Looks inside a model, which the page at `/` draws; one text each, and never computed together.

Each function gets what the model is used for, tokenizes its text, and returns what the thread of the models computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from unmask.errors import InputError
from unmask.inference.example_sets import ExampleSet
from unmask.inference.features.rows import FeatureInput, tokenize
from unmask.inference.inspection import (
    NUM_STEPS,
    answers_of_layers,
    attention_weights,
    chances_of_spans,
    read_for_weighing,
    weigh_tokens,
)
from unmask.io.rows import Row
from unmask.reports.samples import show_tokens
from unmask.serving.engine.answerers import LikelihoodAnswerer, MaskAnswerer, TaskAnswerer, VectorAnswerer
from unmask.serving.engine.batching import Work
from unmask.tasks.base import ExampleCounts
from unmask.tasks.minimal_pairs.scorers import LeftToRightScorer

MOST_TOKENS, MOST_WEIGHED, MOST_OF_PASSAGE = 64, 128, 4096
"""Of a text that is looked at (attention of 12 layers of 12 heads is then half a million numbers), of one whose tokens
are weighed, and of a passage with its question, windows counted."""


class Looking:
    """One look, as the batcher computes it."""

    def compute(self, options: Callable[[], dict[str, Any]], payloads: Sequence[None]) -> list[dict[str, Any]]:
        return [options() for _ in payloads]


_LOOKING = Looking()


def _work(num_tokens: int, look: Callable[[], dict[str, Any]], cost: int | None = None) -> Work:
    """A look at so many tokens; the model reads each once where no `cost` is given."""
    return Work(_LOOKING, look, None, num_tokens if cost is None else cost, num_tokens, [])


def attention(vectors: VectorAnswerer, text: str) -> Work:
    """How much each token attends to each, by layer and head, in thousandths."""
    encoder: Any = vectors.model.encoder  # one that attends: others have no such endpoint
    tokenizer = vectors.model.tokenizer
    [encoded] = tokenizer.encode_inputs([(text, None)])
    ids = encoded.input_ids
    _check_length(ids, encoder)

    def look() -> dict[str, Any]:
        weights = attention_weights(encoder, ids)
        return {"tokens": show_tokens(tokenizer, ids), "weights": (weights * 1000).round().int().tolist()}

    return _work(len(ids), look)


def layers(masks: MaskAnswerer, text: str, top_k: int) -> Work:
    """What each layer would put in place of the first mask."""
    filler: Any = masks.filler  # one that attends, with its head: others have no such endpoint
    masked = filler.encode(text)
    _check_length(masked.ids)

    def look() -> dict[str, Any]:
        place = masked.places[0]
        found = answers_of_layers(filler.encoder, filler.head, filler.tokenizer, masked.ids, place, top_k)
        return {"layers": [vars(each) for each in found]}

    return _work(len(masked.ids), look)


def words(task: TaskAnswerer, fields: dict[str, Any], method: Literal["erasure", "integrated_gradients"]) -> Work:
    """Which tokens the label of a text rests on, and their `offsets` in their text; None of special tokens around."""
    row, tokenizer = Row(fields, "input"), task.predictor.tokenizer
    encoded = read_for_weighing(task.predictor, row, method, MOST_WEIGHED)
    [example] = task.predictor.task.read_all([row])
    first, second = (*example.texts, None)[:2]
    [its] = tokenize([FeatureInput(first, second, None, None, row.source)], tokenizer)
    places = {"A": its.offsets[: its.num_first], "B": its.offsets[its.num_first :]}
    template = tokenizer.template.single if second is None else tokenizer.template.pair
    offsets = [place for piece in template for place in places.get(piece.text, [None] * len(piece.ids))]

    def look() -> dict[str, Any]:
        found = weigh_tokens(task.predictor, encoded, method)
        tokens = show_tokens(tokenizer, encoded.input_ids.tolist())
        return {**vars(found), "tokens": tokens, "offsets": offsets, "weights": found.weights.tolist()}

    num_tokens = len(encoded.input_ids)
    return _work(num_tokens, look, num_tokens * (num_tokens if method == "erasure" else NUM_STEPS))


def spans(task: TaskAnswerer, fields: dict[str, Any]) -> Work:
    """Where in a passage an answer may begin and end."""
    predictor = task.predictor
    [given] = predictor.task.read_all([Row(fields, "input")])
    encoded = predictor.encode([given], ExampleCounts())
    if len(encoded.input_ids) > MOST_OF_PASSAGE:
        raise InputError(f"the passage has {len(encoded.input_ids):,} tokens: up to {MOST_OF_PASSAGE:,} are shown")

    def look() -> dict[str, Any]:
        return vars(chances_of_spans(encoded, predictor.outputs(ExampleSet([given], encoded))))

    return _work(len(encoded.input_ids), look)


def token_scores(likelihoods: LikelihoodAnswerer, text: str) -> Work:
    """How likely each token of a text is: the natural logarithm."""
    scorer, work = likelihoods.scorer, likelihoods.read([text])
    [sentence] = work.payload
    _check_length(sentence.ids)

    def look() -> dict[str, Any]:
        [found] = scorer.token_scores(work.payload)
        ids, scores = found.ids.tolist(), found.scores.tolist()
        if isinstance(scorer, LeftToRightScorer) and scorer.encoder.settings.family.reads_bare_text:
            ids, scores = sentence.ids.tolist(), [None, *scores]  # nothing stands before the first token
        return {"tokens": show_tokens(scorer.tokenizer, ids), "scores": scores}

    return _work(work.input_tokens, look, work.tokens)


def checkpoints(fillers: Mapping[int, MaskAnswerer], text: str, top_k: int, targets: Sequence[str]) -> Work:
    """What each checkpoint of the model's run puts in place of the first mask."""
    one = next(iter(fillers.values()))  # all have one tokenizer
    work = one.read([text], top_k, targets)
    _check_length(work.payload[0].ids)

    def look() -> dict[str, Any]:
        answers = []
        for step, filler in fillers.items():
            [[found]] = filler.compute(work.options, [work.payload])  # type: ignore[arg-type]  # as `read` made them
            first = [each for each in found if not each.get("mask")]
            answers.append(
                {
                    "step": step,
                    "tokens": [each["token_str"] for each in first],
                    "scores": [each["score"] for each in first],
                }
            )
        return {"checkpoints": answers}

    return _work(work.input_tokens, look, len(fillers) * work.tokens)


def _check_length(ids: Sequence[Any], encoder: Any = None) -> None:
    most = MOST_TOKENS if encoder is None else min(MOST_TOKENS, encoder.settings.num_positions)
    if len(ids) > most:
        raise InputError(f"the text has {len(ids)} tokens: up to {most} can be looked at")
