"""Endpoints for looking inside a model, which the page at `/` draws; one text a request.

Their texts are tokenized in threads too; they wait in the same queue as all other work and are computed by the same
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from unmask.errors import InputError
from unmask.inference.example_sets import ExampleSet
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
from unmask.serving.batching import Work
from unmask.serving.endpoints import FAILURES, example, service_of
from unmask.serving.schemas import Fields, Schema, Targets, Text
from unmask.tasks.base import ExampleCounts
from unmask.tasks.minimal_pairs.scorers import LeftToRightScorer

router = APIRouter(prefix="/v1/models", responses=FAILURES)

MOST_TOKENS, MOST_WEIGHED, MOST_OF_PASSAGE = 64, 128, 4096
"""Of a text that is looked at (attention of 12 layers of 12 heads is then half a million numbers), of one whose tokens
are weighed, and of a passage with its question, windows counted."""


class Looking:
    """One look, as the batcher computes it; looks are never computed together."""

    def compute(self, options: Callable[[], Any], payloads: Sequence[None]) -> list[Any]:
        return [options() for _ in payloads]


_LOOKING = Looking()


Look = tuple[int, Callable[[], dict[str, Any]]]
"""What a look has read: how many tokens the model will, and what computes the answer."""


async def _look(request: Request, name: str, endpoint: str, use: str, read: Callable[[Any], Look]) -> Any:
    """Looks at what a model is used for: `read` gets the attribute `use` of `ServedModel`, and tokenizes."""
    service = service_of(request)
    model = service.model(name, endpoint)

    def work() -> Work:
        num_tokens, look = read(model.use(use))  # loaded here: the thread that computes waits for no file
        return Work(_LOOKING, look, None, num_tokens, [])

    result, _ = await service.compute(request, work)
    return {"model": name, **result}


class LookRequest(Schema):
    text: Text


class MaskLookRequest(LookRequest):
    top_k: int = Field(default=5, ge=1, le=20)


class CheckpointsRequest(MaskLookRequest):
    targets: Targets = Field(default=[])


class WordsRequest(Schema):
    input: Fields
    method: Literal["erasure", "integrated_gradients"] = "erasure"


class SpansRequest(Schema):
    question: Text
    context: Text


@router.post("/{name}/attention", summary="How much each token attends to each, by layer and head")
async def attention(request: Request, name: str, body: Annotated[LookRequest, example(text="The cats sleep.")]) -> Any:
    def read(vectors: Any) -> Look:
        encoder, tokenizer = vectors.model.encoder, vectors.model.tokenizer
        [encoded] = tokenizer.encode_inputs([(body.text, None)])
        ids = encoded.input_ids
        _check_length(ids, encoder)

        def look() -> dict[str, Any]:
            weights = attention_weights(encoder, ids)
            return {"tokens": show_tokens(tokenizer, ids), "weights": (weights * 1000).round().int().tolist()}

        return len(ids), look

    return await _look(request, name, "attention", "vectors", read)


@router.post("/{name}/layers", summary="What each layer would put in place of the first [MASK]")
async def layers(
    request: Request, name: str, body: Annotated[MaskLookRequest, example(text="The sky is [MASK] .")]
) -> Any:
    def read(masks: Any) -> Look:
        filler = masks.filler
        masked = filler.encode(body.text)
        _check_length(masked.ids)

        def look() -> dict[str, Any]:
            place = masked.places[0]
            found = answers_of_layers(filler.encoder, filler.head, filler.tokenizer, masked.ids, place, body.top_k)
            return {"layers": [vars(each) for each in found]}

        return len(masked.ids), look

    return await _look(request, name, "layers", "masks", read)


@router.post("/{name}/words", summary="Which tokens the label of a text rests on")
async def words(
    request: Request, name: str, body: Annotated[WordsRequest, example(input="a gripping , beautifully acted film")]
) -> Any:
    def read(task: Any) -> Look:
        encoded = read_for_weighing(task.predictor, Row(body.input, "input"), body.method, MOST_WEIGHED)

        def look() -> dict[str, Any]:
            found = weigh_tokens(task.predictor, encoded, body.method)
            tokens = show_tokens(task.predictor.tokenizer, encoded.input_ids.tolist())
            return {**vars(found), "tokens": tokens, "weights": found.weights.tolist()}

        num_tokens = len(encoded.input_ids)
        return num_tokens * (num_tokens if body.method == "erasure" else NUM_STEPS), look

    return await _look(request, name, "words", "task", read)


@router.post("/{name}/spans", summary="Where in a passage an answer may begin and end")
async def spans(
    request: Request,
    name: str,
    body: Annotated[SpansRequest, example(question="Who wrote it?", context="The book was written by Ada in London.")],
) -> Any:
    def read(task: Any) -> Look:
        predictor = task.predictor
        [given] = predictor.task.read_all([Row(body.model_dump(), "input")])
        encoded = predictor.task.encode([given], predictor.tokenizer, ExampleCounts(), predictor.num_segments)
        if len(encoded.input_ids) > MOST_OF_PASSAGE:
            raise InputError(f"the passage has {len(encoded.input_ids):,} tokens: up to {MOST_OF_PASSAGE:,} are shown")

        def look() -> dict[str, Any]:
            return vars(chances_of_spans(encoded, predictor.outputs(ExampleSet([given], encoded))))

        return len(encoded.input_ids), look

    return await _look(request, name, "spans", "task", read)


@router.post("/{name}/token-scores", summary="How likely each token of a text is: the natural logarithm")
async def token_scores(
    request: Request, name: str, body: Annotated[LookRequest, example(text="The cats sleep.")]
) -> Any:
    def read(likelihoods: Any) -> Look:
        scorer, work = likelihoods.scorer, likelihoods.read([body.text])
        [sentence] = work.payload
        _check_length(sentence.ids)

        def look() -> dict[str, Any]:
            [found] = scorer.token_scores(work.payload)
            ids, scores = found.ids.tolist(), found.scores.tolist()
            if isinstance(scorer, LeftToRightScorer) and scorer.encoder.settings.family.reads_bare_text:
                ids, scores = sentence.ids.tolist(), [None, *scores]  # nothing stands before the first token
            return {"tokens": show_tokens(scorer.tokenizer, ids), "scores": scores}

        return work.tokens, look

    return await _look(request, name, "token-scores", "likelihoods", read)


@router.post("/{name}/checkpoints", summary="What each checkpoint of the model's run puts in place of the first [MASK]")
async def checkpoints(
    request: Request, name: str, body: Annotated[CheckpointsRequest, example(text="The sky is [MASK] .")]
) -> Any:
    def read(uses: Any) -> Look:
        one = next(iter(uses.values()))  # all have one tokenizer
        work = one.read([body.text], body.top_k, body.targets)
        _check_length(work.payload[0].ids)

        def look() -> dict[str, Any]:
            answers = []
            for step, use in uses.items():
                [[found]] = use.compute(work.options, [work.payload])
                first = [each for each in found if not each.get("mask")]
                answers.append(
                    {
                        "step": step,
                        "tokens": [each["token_str"] for each in first],
                        "scores": [each["score"] for each in first],
                    }
                )
            return {"checkpoints": answers}

        return len(uses) * work.tokens, look

    return await _look(request, name, "checkpoints", "checkpoints", read)


def _check_length(ids: Sequence[Any], encoder: Any = None) -> None:
    most = MOST_TOKENS if encoder is None else min(MOST_TOKENS, encoder.settings.num_positions)
    if len(ids) > most:
        raise InputError(f"the text has {len(ids)} tokens: up to {most} can be looked at")
