"""The sizes of an encoder: what a recipe may say about them, and what they come to (Devlin et al. 2019, section 3).

The field names are those of `config.json` in the Hugging Face layout, of BERT's for every family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from unmask.errors import SettingsError

Count = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Scale = Annotated[float, Field(gt=0)]

Architecture = Literal["bert", "roberta", "electra", "gpt1"]
"""Families of encoders: Devlin et al. 2019, Liu et al. 2019, Clark et al. 2020, Radford et al. 2018."""

Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "mish", "tanh"]
"""The names in `unmask.models.layers.ACTIVATIONS`: `gelu` is exact, `gelu_new` and `gelu_pytorch_tanh` go by tanh."""

Preset = Literal["tiny", "mini", "small", "medium", "base", "large"]

PRESETS: dict[Preset, dict[str, int]] = {
    "tiny": {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2},
    "mini": {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4},
    "small": {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8},
    "medium": {"num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8},
    "base": {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12},
    "large": {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16},
}
"""The released BERTs: Base and Large of the paper, the rest of Turc et al. 2019 ("Well-Read Students Learn Better")."""

FEED_FORWARD_FACTOR = 4
"""intermediate_size = 4 x hidden_size in every released BERT (section 3)."""


FAMILY_DEFAULTS: dict[Architecture, dict[str, Any]] = {
    "bert": {},
    "roberta": {"vocab_size": 50265, "pad_token_id": 1},
    "electra": {"embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    "gpt1": {
        "vocab_size": 40478,
        "hidden_act": "gelu_new",
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-5,
        "pad_token_id": None,
    },
}
"""What differs from `EncoderSettings`' defaults: what a `config.json` of the family means by leaving a key out."""

GPT1_ACTIVATIONS = ("gelu_new", "relu", "silu", "swish")
"""Those that a GPT-1 directory can name."""


class EncoderSettings(BaseModel):
    """Every size of one encoder; the defaults are BERT-Base, uncased, and for other families as in `FAMILY_DEFAULTS`.

    Attributes:
        architecture: the family.
        embedding_size: of the embeddings, where they are projected to `hidden_size` (ELECTRA); None: there is no such
            projection.
        hidden_act: the activation in the feed-forward layers and in BERT's masked-LM head.
        hidden_dropout_prob: dropout after the embeddings and after each sublayer.
        embedding_dropout_prob: dropout after the embeddings, where it is another (GPT-1 has a key for each).
        attention_probs_dropout_prob: dropout of the attention probabilities.
        max_position_embeddings: rows of the position embeddings; `num_positions` is the longest sequence.
        type_vocab_size: how many segments are told apart: 2 for A and B, 0 for GPT-1, which has none.
        initializer_range: the standard deviation of fresh weights.
        pad_token_id: the id whose embedding gets no gradient as an input; None where there is no such id. RoBERTa's
            positions start after it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    architecture: Architecture = "bert"
    vocab_size: Count = 30522
    embedding_size: Count | None = None
    hidden_size: Count = 768
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 12
    intermediate_size: Count = 3072
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: Probability = 0.1
    embedding_dropout_prob: Probability | None = None
    attention_probs_dropout_prob: Probability = 0.1
    max_position_embeddings: Count = 512
    type_vocab_size: Annotated[int, Field(ge=0)] = 2
    initializer_range: Scale = 0.02
    layer_norm_eps: Scale = 1e-12
    pad_token_id: Annotated[int, Field(ge=0)] | None = 0

    @model_validator(mode="before")
    @classmethod
    def _of_the_family(cls, given: dict[str, Any]) -> dict[str, Any]:
        family = given.get("architecture", "bert")
        sizes = FAMILY_DEFAULTS.get(family, {}) | given
        if family == "gpt1" and "hidden_size" in sizes:
            sizes.setdefault("intermediate_size", FEED_FORWARD_FACTOR * sizes["hidden_size"])
        return sizes

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads {self.num_attention_heads}"
            )
        if self.pad_token_id is not None and self.pad_token_id >= self.vocab_size:
            raise ValueError(f"pad_token_id {self.pad_token_id} is not below vocab_size {self.vocab_size}")
        if self.architecture != "electra" and self.embedding_size not in (None, self.hidden_size):
            raise ValueError(
                f"embedding_size {self.embedding_size} is not hidden_size {self.hidden_size}: only ELECTRA projects"
            )
        if self.architecture != "gpt1" and self.type_vocab_size == 0:
            raise ValueError(f"type_vocab_size is 0: {self.architecture} has at least one segment")
        if self.architecture != "gpt1" and self.embedding_dropout_prob not in (None, self.hidden_dropout_prob):
            raise ValueError(
                f"embedding_dropout_prob {self.embedding_dropout_prob} is not hidden_dropout_prob "
                f"{self.hidden_dropout_prob}: only GPT-1 has both"
            )
        return self

    @model_validator(mode="after")
    def _agree_with_roberta(self) -> Self:
        if self.architecture != "roberta":
            return self
        if self.pad_token_id is None:
            raise ValueError("pad_token_id is null: RoBERTa's positions are counted from it")
        if self.num_positions < 1:
            raise ValueError(
                f"max_position_embeddings {self.max_position_embeddings} leaves no position: RoBERTa's start after "
                f"pad_token_id {self.pad_token_id}"
            )
        return self

    @model_validator(mode="after")
    def _agree_with_gpt1(self) -> Self:
        if self.architecture != "gpt1":
            return self
        if self.type_vocab_size:
            raise ValueError(f"type_vocab_size {self.type_vocab_size}: GPT-1 has no segments, expected 0")
        if self.intermediate_size != FEED_FORWARD_FACTOR * self.hidden_size:
            raise ValueError(
                f"intermediate_size {self.intermediate_size} is not {FEED_FORWARD_FACTOR} x hidden_size "
                f"{self.hidden_size}, as it is in every GPT-1"
            )
        if self.hidden_act not in GPT1_ACTIVATIONS:
            raise ValueError(f"hidden_act {self.hidden_act!r}: GPT-1 has one of {', '.join(GPT1_ACTIVATIONS)}")
        return self

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def first_position(self) -> int:
        """The row of the position embeddings that belongs to the first token of a sequence."""
        return self.pad_token_id + 1 if self.architecture == "roberta" and self.pad_token_id is not None else 0

    @property
    def num_positions(self) -> int:
        """The longest sequence, in tokens."""
        return self.max_position_embeddings - self.first_position


class ModelSettings(BaseModel):
    """`model.*` of a recipe: a preset, and what differs from it (None: as in the preset).

    Where `hidden_size` is given and `intermediate_size` is not, the latter is 4 x the former.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    architecture: Literal["bert"] = "bert"
    preset: Preset = "base"
    vocab_size: Count | None = None
    hidden_size: Count | None = None
    num_hidden_layers: Count | None = None
    num_attention_heads: Count | None = None
    intermediate_size: Count | None = None
    hidden_act: Activation | None = None
    hidden_dropout_prob: Probability | None = None
    attention_probs_dropout_prob: Probability | None = None
    max_position_embeddings: Count | None = None
    type_vocab_size: Count | None = None
    initializer_range: Scale | None = None
    layer_norm_eps: Scale | None = None

    def resolve(self, vocab_size: int, pad_token_id: int | None = 0) -> EncoderSettings:
        """The encoder's sizes for a tokenizer.

        Args:
            vocab_size: how many ids the tokenizer has.
            pad_token_id: the tokenizer's id of its padding token; None if it has none.

        Raises:
            SettingsError: `vocab_size` here is not the tokenizer's, the hidden size cannot be divided among the heads,
                or the padding token is not in the vocabulary.
        """
        if self.vocab_size not in (None, vocab_size):
            raise SettingsError(
                f"model.vocab_size is {self.vocab_size} but the tokenizer has {vocab_size} entries: "
                "leave model.vocab_size out, or use the tokenizer that it was meant for"
            )
        given = self.model_dump(exclude={"architecture", "preset", "vocab_size"}, exclude_none=True)
        sizes = PRESETS[self.preset] | given
        sizes.setdefault("intermediate_size", FEED_FORWARD_FACTOR * sizes["hidden_size"])
        try:
            return EncoderSettings(vocab_size=vocab_size, pad_token_id=pad_token_id, **sizes)
        except ValidationError as error:
            raise SettingsError(
                f"the model settings contradict each other (preset {self.preset!r}): {reasons(error)}: "
                "change one of them under `model:`"
            ) from error


def reasons(error: ValidationError, keys: Mapping[str, str] | None = None) -> str:
    """What is wrong, in one line: each key with its value, and what was expected.

    Args:
        keys: what our names are called where the values came from, if otherwise.
    """
    called = keys or {}
    return "; ".join(
        (f"{called.get(str(detail['loc'][0]), detail['loc'][0])} is {detail['input']!r}: " if detail["loc"] else "")
        + detail["msg"].removeprefix("Value error, ")
        for detail in error.errors()
    )
