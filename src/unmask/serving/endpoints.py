"""One endpoint for each use of a model, under `/v1/models/NAME/`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request

from unmask.serving.engine.asks import Ask, Reading, Refused, Reply
from unmask.serving.schemas import (
    Answer,
    Failure,
    FeaturesRequest,
    GenerateRequest,
    MaskRequest,
    PairsRequest,
    SimilarityRequest,
    TaskRequest,
    TextsRequest,
)
from unmask.serving.service import Service
from unmask.tasks.kinds import FACTS

FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": Failure, "description": what}
    for status, what in {
        400: "the body is not JSON in UTF-8",
        404: "no such model",
        409: "the model is for something else; the message says for what",
        413: "too much in one request",
        415: "the body is compressed",
        422: "the request cannot be used; the message says why",
        429: "too many requests wait: try again after Retry-After seconds",
        503: "not answered in time, or the server is being stopped",
    }.items()
}

router = APIRouter(prefix="/v1/models", responses=FAILURES)


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def ask(request: Request, name: str, endpoint: str, reader: str, *arguments: Any) -> Reply:
    """What a reader (`unmask.serving.engine.readers.READERS`) replies of a model that has the endpoint."""
    service = service_of(request)
    return await service.compute(request, Ask(service.model(name, endpoint).name, reader, arguments))


def _answer(name: str, reply: Reply, predictions: list[Any]) -> Answer:
    left_out, unknown = reply.left_out, reply.unknown
    return Answer(
        model=name, predictions=predictions, truncated=any(left_out), tokens_left_out=left_out, tokens_unknown=unknown
    )


@router.get("", summary="The models, and what each is for")
async def list_models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [model.description for model in service_of(request).models.values()]}


@router.get("/{name}", summary="A model, and what it is for")
async def describe_model(request: Request, name: str) -> dict[str, Any]:
    return service_of(request).named(name).description


def _task_endpoint(endpoint: str) -> Callable[..., Awaitable[Answer]]:
    async def predict(request: Request, name: str, body: TaskRequest) -> Answer:
        reply = await ask(request, name, endpoint, "predictions", body.inputs)
        return _answer(name, reply, reply.result)

    return predict


for _facts in FACTS.values():
    _examples = {f"example {number}": {"value": {"inputs": [each]}} for number, each in enumerate(_facts.examples, 1)}
    router.add_api_route(
        f"/{{name}}/{_facts.endpoint}",
        _task_endpoint(_facts.endpoint),
        methods=["POST"],
        summary=_facts.summary,
        name=_facts.endpoint,
        openapi_extra={"requestBody": {"content": {"application/json": {"examples": _examples}}}},
    )


def examples(*bodies: dict[str, Any]) -> Any:
    """Bodies for /docs, which shows the last one for a model that reads pairs, and else the first."""
    return Body(examples=list(bodies))


def example(**body: Any) -> Any:
    """A body for /docs."""
    return examples(body)


@router.post("/{name}/fill-mask", summary="The likeliest tokens for each [MASK], special ones left out")
async def fill_mask(
    request: Request, name: str, body: Annotated[MaskRequest, example(inputs=["The sky is [MASK] ."], top_k=3)]
) -> Answer:
    asked = (body.inputs, body.top_k, body.targets)
    if body.step is None:
        reply = await ask(request, name, "fill-mask", "masks", *asked)
    else:
        reply = await ask(request, name, "checkpoints", "masks of a checkpoint", body.step, *asked)
    return _answer(name, reply, reply.result)


@router.post("/{name}/features", summary="A vector for each text; long ones are read in windows")
async def features(
    request: Request, name: str, body: Annotated[FeaturesRequest, example(inputs=["A fine film."])]
) -> Answer:
    reading = Reading(body.layers, body.pool, body.normalise)
    reply = await ask(request, name, "features", "vectors", body.inputs, reading)
    return _answer(name, reply, reply.result.tolist())


@router.post("/{name}/similarity", summary="How similar the two texts of each pair are, from -1 to 1")
async def similarity(
    request: Request,
    name: str,
    body: Annotated[SimilarityRequest, example(inputs=[{"text_a": "a fine film", "text_b": "an awful film"}])],
) -> Answer:
    pairs = [(pair.text_a, pair.text_b) for pair in body.inputs]
    reading = Reading(body.layers, body.pool)
    reply = await ask(request, name, "similarity", "similarities", pairs, reading)
    return _answer(name, reply, reply.result)


@router.post("/{name}/tokenize", summary="The tokens of each text, without special ones")
async def tokenize(request: Request, name: str, body: Annotated[TextsRequest, example(inputs=["unaffable"])]) -> Answer:
    most = service_of(request).limits.queue_tokens
    reply = await ask(request, name, "tokenize", "tokens", body.inputs, most)
    return _answer(name, reply, reply.result)


@router.post("/{name}/generate", summary="Texts that continue prompts, by a left-to-right model")
async def generate(
    request: Request, name: str, body: Annotated[GenerateRequest, example(inputs=["Once upon a"], num_tokens=20)]
) -> Answer:
    most = service_of(request).limits.new_tokens
    if body.num_tokens * len(body.inputs) > most:
        raise Refused(413, f"{body.num_tokens * len(body.inputs):,} new tokens: a request adds at most {most:,}")
    sampling = {"temperature": body.temperature, "top_k": body.top_k, "top_p": body.top_p}
    reply = await ask(request, name, "generate", "continuations", body.inputs, body.num_tokens, sampling, body.seed)
    predictions = [{"prompt": prompt, "text": text} for prompt, text in zip(body.inputs, reply.result, strict=True)]
    return _answer(name, reply, predictions)


@router.post("/{name}/score", summary="How likely each text is: the natural logarithm, higher for what is likelier")
async def score(
    request: Request, name: str, body: Annotated[TextsRequest, example(inputs=["The cats sleep."])]
) -> Answer:
    reply = await ask(request, name, "score", "scores", body.inputs)
    predictions = [{"text": text, "score": score} for text, score in zip(body.inputs, reply.result, strict=True)]
    return _answer(name, reply, predictions)


def _likelier(good: float, bad: float) -> str | None:
    """None where both are equally likely."""
    return None if good == bad else "good" if good > bad else "bad"


@router.post("/{name}/pairs", summary="Which of two sentences the model finds likelier")
async def pairs(
    request: Request,
    name: str,
    body: Annotated[PairsRequest, example(inputs=[{"good": "The cats sleep.", "bad": "The cats sleeps."}])],
) -> Answer:
    texts = [text for pair in body.inputs for text in (pair.good, pair.bad)]
    reply = await ask(request, name, "pairs", "scores", texts, 2)
    scores = reply.result
    predictions = [
        {**pair.model_dump(), "score_good": good, "score_bad": bad, "prefers": _likelier(good, bad)}
        for pair, good, bad in zip(body.inputs, scores[::2], scores[1::2], strict=True)
    ]
    return _answer(name, reply, predictions)
