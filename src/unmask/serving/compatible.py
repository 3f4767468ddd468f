"""The shapes that people already call: OpenAI's `/v1/embeddings`, and text-embeddings-inference's `/embed`, `/predict`,
`/similarity` and `/tokenize`. Their clients work unchanged, with the fields of `unmask.serving.schemas`."""

from __future__ import annotations

import base64
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray

from unmask.serving.endpoints import FAILURES, example, examples, service_of
from unmask.serving.engine.asks import Ask, ModelFacts, Refused, Reply
from unmask.serving.schemas import EmbedRequest, OpenAIEmbeddings, PredictRequest, TeiSimilarityRequest, TokenizeRequest
from unmask.serving.service import Service
from unmask.tasks.kinds import labelling_endpoints

router = APIRouter(responses=FAILURES)


def answering(path: str) -> tuple[str, ...]:
    """A model that has one of these endpoints can answer at this address; none if the address is not one of these."""
    if path == "/predict":
        return labelling_endpoints()
    uses = {**dict.fromkeys(("/v1/embeddings", "/embed", "/similarity"), "features"), "/tokenize": "tokenize"}
    return (uses[path],) if path in uses else ()


async def _vectors(
    request: Request, name: str | None, texts: list[str], dimensions: int | None = None, *, normalise: bool = True
) -> Reply:
    service = service_of(request)
    model = service.model(name, "features")
    if not texts:
        raise Refused(422, "no texts: expected at least one")
    return await service.compute(request, Ask(model.name, "cut vectors", (texts, dimensions, normalise)))


@router.post("/v1/embeddings", summary="Embeddings, as OpenAI's clients ask for them")
async def embeddings(
    request: Request, body: Annotated[OpenAIEmbeddings, example(model="en", input=["A fine film."])]
) -> dict[str, Any]:
    reply = await _vectors(request, body.model, body.input, body.dimensions)
    encoded: list[Any]
    if body.encoding_format == "base64":
        encoded = [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in reply.result]
    else:
        encoded = reply.result.tolist()
    return {
        "object": "list",
        "data": [{"object": "embedding", "embedding": vector, "index": index} for index, vector in enumerate(encoded)],
        "model": body.model,
        "usage": {"prompt_tokens": reply.tokens, "total_tokens": reply.tokens},
    }


@router.post("/embed", summary="Embeddings, as text-embeddings-inference gives them")
async def embed(request: Request, body: Annotated[EmbedRequest, example(inputs=["A fine film."])]) -> list[list[float]]:
    reply = await _vectors(request, body.model, body.inputs, body.dimensions, normalise=body.normalize)
    listed: list[list[float]] = reply.result.tolist()
    return listed


_TEXTS = {"inputs": "a fine film"}, {"inputs": ["A man plays.", "Nobody plays."]}


@router.post("/predict", summary="Labels with scores, as text-embeddings-inference gives them")
async def predict(request: Request, body: Annotated[PredictRequest, examples(*_TEXTS)]) -> list[Any]:
    service = service_of(request)
    is_batch = not isinstance(body.inputs, str) and any(isinstance(each, list) for each in body.inputs)
    given: list[Any] = list(body.inputs) if is_batch else [body.inputs]
    rows = [_fields([each] if isinstance(each, str) else list(each)) for each in given]
    model = service.model(_first_fitting(service, rows) if body.model is None else body.model, *labelling_endpoints())
    _check_texts(model, rows)
    reply = await service.compute(request, Ask(model.name, "predictions", (rows,)))
    if not body.truncate and (left_out := sum(reply.left_out)):
        raise Refused(422, f"{left_out:,} tokens would not be read: send shorter inputs, or truncate=true", "too_long")
    most = None if body.parameters is None else body.parameters.top_k
    scored = [_likeliest(each["probabilities"], most) for each in reply.result]
    return scored if is_batch or body.parameters is not None else scored[0]


def _first_fitting(service: Service, rows: list[dict[str, str]]) -> str | None:
    """The first model that labels as many texts at once as each row has."""
    lengths = {len(row) for row in rows}
    endpoints = set(labelling_endpoints())
    labelling = (each for each in service.models.values() if not endpoints.isdisjoint(each.endpoints))
    reading = (each.name for each in labelling if lengths <= {len(texts) for texts in each.columns})
    return next(reading, None)


def _check_texts(model: ModelFacts, rows: list[dict[str, str]]) -> None:
    """Refuses pairs for a model of single texts, and single texts for one of pairs."""
    lengths = {len(texts) for texts in model.columns}
    if wrong := {len(row) for row in rows} - lengths:
        if 2 in wrong:
            what = (
                f'a list of two texts is one pair, and {model.name} reads single texts: send several as [["a"], ["b"]]'
            )
        else:
            what = f'{model.name} reads pairs: send one as ["a", "b"], several as [["a", "b"], ["c", "d"]]'
        raise Refused(422, what)


def _likeliest(probabilities: dict[str, float], most: int | None) -> list[dict[str, Any]]:
    ranked = sorted(probabilities.items(), key=lambda each: -each[1])
    return [{"score": score, "label": label} for label, score in ranked[:most]]


def _fields(texts: list[str]) -> dict[str, str]:
    if len(texts) not in (1, 2):
        raise Refused(422, f"an input of {len(texts)} texts: expected one, or a pair")
    return {"text": texts[0]} if len(texts) == 1 else {"text_a": texts[0], "text_b": texts[1]}


@router.post("/similarity", summary="Similarities to a sentence, as text-embeddings-inference gives them")
async def similarity(
    request: Request,
    body: Annotated[
        TeiSimilarityRequest, example(inputs={"source_sentence": "a fine film", "sentences": ["a good film"]})
    ],
) -> list[float]:
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    reply = await _vectors(request, body.model, texts)
    vectors: NDArray[np.float32] = reply.result
    cosines: list[float] = (vectors[1:] @ vectors[0]).clip(-1, 1).tolist()
    return cosines


@router.post("/tokenize", summary="Tokens, as text-embeddings-inference gives them")
async def tokenize(
    request: Request, body: Annotated[TokenizeRequest, example(inputs="unaffable")]
) -> list[list[dict[str, Any]]]:
    service = service_of(request)
    model = service.model(body.model, "tokenize")
    arguments = (body.inputs, body.add_special_tokens, service.limits.queue_tokens)
    reply = await service.compute(request, Ask(model.name, "template tokens", arguments))
    tokens: list[list[dict[str, Any]]] = reply.result
    return tokens
