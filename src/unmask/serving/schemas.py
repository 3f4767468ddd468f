"""What requests and answers look like; the pages at /docs are made of these."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from unmask.io.encodings import is_text
from unmask.serving.settings import MOST_INPUTS

_DEEPEST = 64
"""Levels of what a row holds beside its texts; pydantic writes some 250."""
_MOST_KEYS = 100
"""Of an object that names what a request asks for; each that does not exist would be an error of its own."""
_MOST_VALUES = 100_000
"""Of all inputs, whatever is in lists and objects counted: they are looked at while others wait."""


def _checked(value: Any) -> Any:
    """A value that can be sent back: numbers that JSON has, text that UTF-8 has, and no deeper than is written."""
    waiting = [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        if depth > _DEEPEST:
            raise ValueError(f"lists and objects in each other: expected at most {_DEEPEST} levels")
        if isinstance(one, float) and not math.isfinite(one):
            raise ValueError("NaN and infinite numbers are not JSON: expected finite ones")
        if isinstance(one, str) and not is_text(one):
            raise ValueError("half of a surrogate pair is not text: expected text that UTF-8 can hold")
        if isinstance(one, dict):
            waiting += ((each, depth + 1) for pair in one.items() for each in pair)
        elif isinstance(one, list):
            waiting += ((each, depth + 1) for each in one)
    return value


def _input(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = {"text": value}
    if not isinstance(value, dict):
        raise ValueError("expected a text, or an object with named fields such as text")
    fields: dict[str, Any] = _checked(value)
    return fields


def _few(value: Any) -> Any:
    """Looked at before what the list holds, which takes long where it holds much."""
    if isinstance(value, list) and len(value) > MOST_INPUTS:
        what = f"{len(value):,} entries: a request has at most {MOST_INPUTS:,}: send several"
        raise PydanticCustomError("too_many", "{what}", {"what": what})
    return value


def _few_values(value: Any) -> Any:
    waiting, number = [value], 0
    while waiting:
        one = waiting.pop()
        if isinstance(one, list | dict):
            number += len(one)
            if number > _MOST_VALUES:
                what = f"over {_MOST_VALUES:,} values in lists and objects: send fewer at once"
                raise PydanticCustomError("too_many", "{what}", {"what": what})
            waiting += one.values() if isinstance(one, dict) else one
    return value


def _texts(value: Any) -> Any:
    """One error for all of them, where a union's would be one for each text and each form."""
    texts = _few(value) if isinstance(value, list) else [value]
    for text in texts:
        if not isinstance(text, str):
            raise ValueError("expected a text, or a list of texts (token ids are those of another tokenizer)")
        _checked(text)
    return texts


def _texts_or_pairs(value: Any) -> Any:
    for each in _few(value) if isinstance(value, list) else [value]:
        _texts(each)
    return value


Item = TypeVar("Item")
Inputs = Annotated[list[Item], Field(min_length=1, fail_fast=True), BeforeValidator(_few_values), BeforeValidator(_few)]
_TEXT = {"type": "string"}
_LIST = {"type": "array", "items": _TEXT}
Texts = Annotated[Any, AfterValidator(_texts), WithJsonSchema({"anyOf": [_TEXT, _LIST]})]
"""A text, or a list of texts; becomes a list."""
TextsOrPairs = Annotated[
    Any, AfterValidator(_texts_or_pairs), WithJsonSchema({"anyOf": [_TEXT, _LIST, {"type": "array", "items": _LIST}]})
]

Text = Annotated[str, AfterValidator(_checked)]
Fields = Annotated[
    Any, AfterValidator(_input), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}], "title": "Input"})
]
"""A text, or fields by name; becomes a dictionary."""
OneInput = Annotated[Fields, BeforeValidator(_few_values)]
"""Of a request that has no others."""


class Schema(BaseModel):
    """Values are of the types that the schema says: `"yes"` is not true. Unknown keys are refused, so that one that is
    misspelt, or would change the answer elsewhere, is not silently ignored."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _has_few_keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > _MOST_KEYS:
            raise ValueError(f"{len(value):,} keys: /docs lists those that exist")
        return value


class TaskRequest(Schema):
    """Inputs of a fine-tuned model: a text by itself, or the fields that `unmask predict` reads."""

    inputs: Inputs[Fields]


class TextsRequest(Schema):
    inputs: Inputs[Text]


Name = Annotated[str, Field(max_length=200), AfterValidator(_checked)]
"""Of a token, layers, a pool; one that does not exist is repeated, a token's for each mask."""

Targets = Annotated[
    list[Name],
    Field(
        fail_fast=True,
        description="words whose tokens are the answers, in place of the top_k likeliest; the score of one that is no "
        "token of the model is null",
    ),
    BeforeValidator(_few),
]


class MaskRequest(TextsRequest):
    top_k: int = Field(default=5, ge=1, le=1000, description="answers for each mask")
    targets: Targets = Field(default=[])
    step: int | None = Field(
        default=None, ge=0, lt=2**63, description="of a checkpoint of the model's run, to ask it and not the model"
    )


class FeaturesRequest(TextsRequest):
    layers: Name = Field(default="last", description="embeddings, layer-N, second-to-last, last or concat-last-4")
    pool: Name | None = Field(
        default=None, description="mean, max, cls or mean-with-special; as the model has it, or mean, where left out"
    )
    normalise: bool = Field(default=False, description="true divides each vector by its length")


class TextPair(Schema):
    text_a: Text
    text_b: Text


class SimilarityRequest(Schema):
    inputs: Inputs[TextPair]
    layers: Name = "last"
    pool: Name | None = None


class GenerateRequest(Schema):
    inputs: Inputs[Text] = Field(description="prompts")
    num_tokens: int = Field(
        default=50, ge=0, lt=2**31, description="how many to add to each prompt; 256 to all of a request"
    )
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False, description="0 takes the likeliest token")
    top_k: int = Field(default=0, ge=0, lt=2**31, description="draw among so many of the likeliest; 0: among all")
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int = Field(default=0, ge=0, lt=2**63, description="the same gives the same text")


class MinimalPair(Schema):
    good: Text = Field(validation_alias=AliasChoices("good", "sentence_good"), description="or sentence_good, as BLiMP")
    bad: Text = Field(validation_alias=AliasChoices("bad", "sentence_bad"), description="or sentence_bad")


class PairsRequest(Schema):
    inputs: Inputs[MinimalPair]


class Answer(BaseModel):
    """What every use answers.

    Attributes:
        predictions: one for each input, as the command line writes them; `score` and `pairs` have keys of their own.
        truncated: whether anything of an input was not read.
        tokens_left_out: of each input, how many tokens were not read.
        tokens_unknown: of each input, how many tokens are unknown to the vocabulary, and so all the same to the model,
            each as often as it is read; null where none ever is.
    """

    model: str
    predictions: list[Any]
    truncated: bool
    tokens_left_out: list[int]
    tokens_unknown: list[int] | None


class Failure(BaseModel):
    """Why a request was not answered, in OpenAI's form."""

    class Error(BaseModel):
        message: str
        type: str
        param: str | None = None
        code: str | None = None

    error: Error


# ---- Shapes of others


class OpenAIEmbeddings(Schema):
    """OpenAI's `/v1/embeddings`."""

    input: Texts = Field(description="texts; lists of token ids are another tokenizer's and are refused")
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(
        default=None, ge=1, lt=2**31, description="keep the first so many, and divide by the length again"
    )
    user: str | None = None


Direction = Literal["right", "Right"]
"""Where a text that is too long is cut: at its end."""
NoPrompt = Annotated[None, Field(description="models here have no prompts")]


class TeiRequest(Schema):
    """text-embeddings-inference's; `model` is ours, for a server of several."""

    model: str | None = None
    prompt_name: NoPrompt = None


class EmbedRequest(TeiRequest):
    """text-embeddings-inference's `/embed`."""

    inputs: Texts
    normalize: bool = True
    dimensions: int | None = Field(default=None, ge=1, lt=2**31, description="keep the first so many, then normalize")
    truncation_direction: Direction = "right"
    truncate: bool | None = Field(default=None, description="makes no difference: long texts are read in windows")


class PredictParameters(Schema):
    """Those of Hugging Face's client."""

    top_k: int | None = Field(default=None, ge=1, lt=2**31, description="only so many labels, the likeliest")
    function_to_apply: None = Field(default=None, description="scores are the probabilities that the model has learnt")


class PredictRequest(TeiRequest):
    """text-embeddings-inference's `/predict`: a text, a pair, or a list whose items are lists of one or two texts."""

    inputs: TextsOrPairs
    raw_scores: Literal[False] = False
    truncation_direction: Direction = "right"
    truncate: bool | None = Field(
        default=None, description="without it a text of which tokens would not be read is refused"
    )
    parameters: PredictParameters | None = Field(
        default=None, description="Hugging Face's client sends it, and expects a list for each input, also of one"
    )


class SimilarInputs(Schema):
    source_sentence: Text
    sentences: Inputs[Text]


class SimilarityParameters(Schema):
    prompt_name: NoPrompt = None
    truncation_direction: Direction = "right"
    truncate: bool | None = Field(default=None, description="makes no difference: long texts are read in windows")


class TeiSimilarityRequest(TeiRequest):
    """text-embeddings-inference's `/similarity`."""

    inputs: SimilarInputs
    parameters: SimilarityParameters | None = None


class TokenizeRequest(TeiRequest):
    """text-embeddings-inference's `/tokenize`."""

    inputs: Texts
    add_special_tokens: bool = True
