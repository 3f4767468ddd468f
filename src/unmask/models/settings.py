"""The sizes of an encoder: what a recipe may say about them, and what they come to (Devlin et al. 2019, section 3).

The field names are those of `config.json` in the Hugging Face layout.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from unmask.errors import SettingsError

Count = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Scale = Annotated[float, Field(gt=0)]

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


class EncoderSettings(BaseModel):
    """Every size of one encoder; the defaults are BERT-Base, uncased.

    Attributes:
        hidden_act: the activation in the feed-forward layers and in the masked-LM head.
        hidden_dropout_prob: dropout after the embeddings and after each sublayer.
        attention_probs_dropout_prob: dropout of the attention probabilities.
        max_position_embeddings: the longest sequence, in tokens.
        type_vocab_size: how many segments are told apart: 2 for A and B.
        initializer_range: the standard deviation of fresh weights.
        pad_token_id: the id whose embedding gets no gradient as an input; None where there is no such id.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    vocab_size: Count = 30522
    hidden_size: Count = 768
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 12
    intermediate_size: Count = 3072
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: Probability = 0.1
    attention_probs_dropout_prob: Probability = 0.1
    max_position_embeddings: Count = 512
    type_vocab_size: Count = 2
    initializer_range: Scale = 0.02
    layer_norm_eps: Scale = 1e-12
    pad_token_id: Annotated[int, Field(ge=0)] | None = 0

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads {self.num_attention_heads}"
            )
        if self.pad_token_id is not None and self.pad_token_id >= self.vocab_size:
            raise ValueError(f"pad_token_id {self.pad_token_id} is not below vocab_size {self.vocab_size}")
        return self

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads


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


def reasons(error: ValidationError) -> str:
    """What is wrong, in one line: each key with its value, and what was expected."""
    return "; ".join(
        (f"{detail['loc'][0]} is {detail['input']!r}: " if detail["loc"] else "")
        + detail["msg"].removeprefix("Value error, ")
        for detail in error.errors()
    )
