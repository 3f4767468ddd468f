"""The sizes of an encoder: what a recipe may say about them, and what they come to (Devlin et al. 2019, section 3).

The field names are those of `config.json` in the Hugging Face layout, of BERT's for every family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from unmask.errors import SettingsError

Count = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Scale = Annotated[float, Field(gt=0, allow_inf_nan=False)]

Architecture = Literal["bert", "roberta", "electra", "gpt1", "lstm"]
"""Families of encoders: Devlin et al. 2019, Liu et al. 2019, Clark et al. 2020, Radford et al. 2018; and the LSTM that
stands in the Transformer's place in the last one's section 5."""

AnyArchitecture = Literal[Architecture, "elmo"]
"""With ELMo (Peters et al. 2018), whose sizes are of other kinds: `unmask.models.elmo.settings`."""

Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "mish", "tanh"]
"""The names in `unmask.models.layers.ACTIVATIONS`: `gelu` is exact, `gelu_new` and `gelu_pytorch_tanh` approximate it
by tanh."""

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

_ROBERTA: dict[str, Any] = {"type_vocab_size": 1, "layer_norm_eps": 1e-5}

PRESETS_OF: dict[Architecture, dict[Preset, dict[str, Any]]] = {
    "bert": {preset: dict(sizes) for preset, sizes in PRESETS.items()},
    "roberta": {preset: {**sizes, **_ROBERTA} for preset, sizes in PRESETS.items()},
    "electra": {
        "tiny": {**PRESETS["tiny"], "embedding_size": 64},
        "mini": {**PRESETS["mini"], "embedding_size": 128},
        "small": {"num_hidden_layers": 12, "hidden_size": 256, "num_attention_heads": 4, "embedding_size": 128},
        "base": {**PRESETS["base"], "embedding_size": 768},
        "large": {**PRESETS["large"], "embedding_size": 1024},
    },
    "gpt1": {preset: dict(PRESETS[preset]) for preset in ("tiny", "mini", "base")},
    "lstm": {
        "tiny": {"num_hidden_layers": 1, "hidden_size": 128, "intermediate_size": 320},
        "mini": {"num_hidden_layers": 1, "hidden_size": 256, "intermediate_size": 640},
        "base": {"num_hidden_layers": 1, "hidden_size": 768, "intermediate_size": 2048},
    },
}
"""What each preset is for each architecture. RoBERTa: base and large of its paper, the rest of BERT's sizes. ELECTRA:
small, base and large of its table 6; mini and tiny are BERT's sizes with embeddings half as wide as the hidden states,
as in small. GPT-1: base is the paper's one model. LSTM: base has the paper's 2,048 units, the others about as many
for their width."""

FEED_FORWARD_FACTOR = 4
"""intermediate_size = 4 x hidden_size in every released BERT (section 3)."""

_LONGEST = 512
"""Positions of every published model."""


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
    "lstm": {
        "vocab_size": 40478,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 2048,
        "hidden_act": "tanh",
        "attention_probs_dropout_prob": 0.0,
        "type_vocab_size": 0,
        "pad_token_id": None,
    },
}
"""What differs from `EncoderSettings`' defaults: what a `config.json` of the family means by leaving a key out."""

GPT1_ACTIVATIONS = ("gelu_new", "relu", "silu", "swish")
"""Those that a GPT-1 directory can name."""

FIXED_IN_LSTM = (
    "num_attention_heads",
    "hidden_act",
    "attention_probs_dropout_prob",
    "type_vocab_size",
    "layer_norm_eps",
)
"""Settings that an LSTM does not have, or not with another value."""

LEFT_TO_RIGHT: tuple[Architecture, ...] = ("gpt1", "lstm")
"""Architectures whose tokens never see what stands behind them; BERT's do not where `causal` is True."""


class Sizes(Protocol):
    """What the settings of every encoder provide, ELMo's too; see `EncoderSettings`."""

    @property
    def architecture(self) -> AnyArchitecture: ...
    @property
    def causal(self) -> bool: ...
    @property
    def is_causal(self) -> bool: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def hidden_dropout_prob(self) -> float: ...
    @property
    def initializer_range(self) -> float: ...


class EncoderSettings(BaseModel):
    """Every size of one encoder; the defaults are BERT-Base, uncased, and for other families as in `FAMILY_DEFAULTS`.

    Attributes:
        architecture: the family.
        causal: True for BERT's left-to-right model (Devlin et al. 2019, section 5.1): every token sees only itself and
            those before it. `is_causal` covers every family.
        intermediate_size: of the feed-forward layers; the units of an LSTM, whose output is projected to `hidden_size`
            where that is another.
        embedding_size: of the embeddings, where they are projected to `hidden_size` (ELECTRA); None: there is no such
            projection.
        hidden_act: the activation in the feed-forward layers and in BERT's masked-LM head.
        hidden_dropout_prob: dropout after the embeddings and after each sublayer.
        embedding_dropout_prob: dropout after the embeddings, if it is a different one (GPT-1 has a key for each).
        attention_probs_dropout_prob: dropout of the attention probabilities.
        max_position_embeddings: rows of the position embeddings; `num_positions` is the longest sequence. An LSTM has
            no such rows, but gets no longer sequences either.
        type_vocab_size: how many segments are told apart: 2 for A and B, 0 for GPT-1 and LSTMs, which have none.
        initializer_range: the standard deviation of fresh weights.
        pad_token_id: the id whose embedding gets no gradient as an input; None where there is no such id. RoBERTa's
            positions start after it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    architecture: Architecture = "bert"
    causal: bool = False
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
        if family == "gpt1" and isinstance(sizes.get("hidden_size"), int):
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
        if self.causal and self.architecture != "bert":
            always = self.architecture in LEFT_TO_RIGHT
            raise ValueError(
                f"causal is True: that is for BERT, and {self.architecture} "
                + ("is left-to-right anyway: leave it out" if always else "reads in both directions")
            )
        if self.architecture not in LEFT_TO_RIGHT and self.type_vocab_size == 0:
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

    @model_validator(mode="after")
    def _agree_with_lstm(self) -> Self:
        if self.architecture != "lstm":
            return self
        for name in FIXED_IN_LSTM:
            fixed = FAMILY_DEFAULTS["lstm"].get(name, type(self).model_fields[name].default)
            if getattr(self, name) != fixed:
                raise ValueError(f"{name} {getattr(self, name)!r} means nothing to an LSTM: leave it out ({fixed!r})")
        return self

    @property
    def is_causal(self) -> bool:
        """Whether a token sees only itself and what stands before it; the last token then sums up its sequence."""
        return self.causal or self.architecture in LEFT_TO_RIGHT

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


class DropoutSettings(BaseModel):
    """`model.*` of a fine-tuning recipe: dropout in place of that in the `config.json` of `init_from` (None: as there).

    A model that was pre-trained without dropout, as the `_mini` recipes do, is fine-tuned without it too, unless it is
    given here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    hidden_dropout_prob: Probability | None = None
    attention_probs_dropout_prob: Probability | None = None


DROPOUTS = tuple(DropoutSettings.model_fields)
"""Settings of `model.*` that are no sizes: beside `init_from` they replace that model's."""


class ModelSettings(BaseModel):
    """`model.*` of a recipe: a preset, and what differs from it (None: as in the preset).

    Where `hidden_size` is given and `intermediate_size` is not, the latter is 4 x the former, except for an LSTM, whose
    units are the preset's. RoBERTa's `max_position_embeddings` includes the rows up to `pad_token_id`, which no token
    uses: 514 for 512 tokens.

    Beside `init_from` the sizes are that model's: what is given here has to agree, and dropout replaces that model's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    architecture: Architecture = "bert"
    preset: Preset = "base"
    causal: bool = False
    """True: left-to-right (BERT, section 5.1), for `objective.name: causal_lm`."""
    vocab_size: Count | None = None
    embedding_size: Count | None = None
    """Of ELECTRA's embeddings, where they are projected."""
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

    @model_validator(mode="after")
    def _has_the_preset(self) -> Self:
        if self.preset not in PRESETS_OF[self.architecture]:
            known = ", ".join(PRESETS_OF[self.architecture])
            raise ValueError(f"preset {self.preset!r} is none of {self.architecture}: expected one of {known}")
        return self

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
        given = self.model_dump(exclude={"preset", "vocab_size"}, exclude_none=True)
        sizes = PRESETS_OF[self.architecture][self.preset] | given
        if self.architecture == "roberta" and pad_token_id is not None:
            sizes.setdefault("max_position_embeddings", _LONGEST + pad_token_id + 1)
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
        keys: what our names are called in the source of the values, if different.
    """
    called = keys or {}
    return "; ".join(
        (f"{called.get(str(detail['loc'][0]), detail['loc'][0])} is {detail['input']!r}: " if detail["loc"] else "")
        + detail["msg"].removeprefix("Value error, ")
        for detail in error.errors()
    )
