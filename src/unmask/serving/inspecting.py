"""Endpoints for looking inside a model, which the page at `/` draws; one text a request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from unmask.serving.endpoints import FAILURES, ask, example, examples
from unmask.serving.schemas import OneInput, Schema, Targets, Text

router = APIRouter(prefix="/v1/models", responses=FAILURES)


async def _look(request: Request, name: str, endpoint: str, reader: str, *arguments: Any) -> Any:
    return {"model": name, **(await ask(request, name, endpoint, reader, *arguments)).result}


class LookRequest(Schema):
    text: Text


class MaskLookRequest(LookRequest):
    top_k: int = Field(default=5, ge=1, le=20)


class CheckpointsRequest(MaskLookRequest):
    targets: Targets = Field(default=[])


class WordsRequest(Schema):
    input: OneInput
    method: Literal["erasure", "integrated_gradients"] = "erasure"


class SpansRequest(Schema):
    question: Text
    context: Text


_WORDS = {"input": "a fine film"}, {"input": {"text_a": "A man plays.", "text_b": "Nobody plays."}}


@router.post("/{name}/attention", summary="How much each token attends to each, by layer and head")
async def attention(request: Request, name: str, body: Annotated[LookRequest, example(text="The cats sleep.")]) -> Any:
    return await _look(request, name, "attention", "attention", body.text)


@router.post("/{name}/layers", summary="What each layer would put in place of the first [MASK]")
async def layers(
    request: Request, name: str, body: Annotated[MaskLookRequest, example(text="The sky is [MASK] .")]
) -> Any:
    return await _look(request, name, "layers", "layers", body.text, body.top_k)


@router.post("/{name}/words", summary="Which tokens the label of a text rests on")
async def words(request: Request, name: str, body: Annotated[WordsRequest, examples(*_WORDS)]) -> Any:
    return await _look(request, name, "words", "words", body.input, body.method)


@router.post("/{name}/spans", summary="Where in a passage an answer may begin and end")
async def spans(
    request: Request,
    name: str,
    body: Annotated[SpansRequest, example(question="Who wrote it?", context="The book was written by Ada in London.")],
) -> Any:
    return await _look(request, name, "spans", "spans", body.model_dump())


@router.post("/{name}/token-scores", summary="How likely each token of a text is: the natural logarithm")
async def token_scores(
    request: Request, name: str, body: Annotated[LookRequest, example(text="The cats sleep.")]
) -> Any:
    return await _look(request, name, "token-scores", "token scores", body.text)


@router.post("/{name}/checkpoints", summary="What each checkpoint of the model's run puts in place of the first [MASK]")
async def checkpoints(
    request: Request, name: str, body: Annotated[CheckpointsRequest, example(text="The sky is [MASK] .")]
) -> Any:
    return await _look(request, name, "checkpoints", "checkpoints", body.text, body.top_k, body.targets)
