"""The sizes of an encoder: what a recipe may say about them, and what they come to (Devlin et al. 2019, section 3).

The field names are those of `config.json` in the Hugging Face layout, of BERT's for every family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticKnownError

from unmask.errors import SettingsError
from unmask.models.families.table import ARCHITECTURES
from unmask.models.family import Activation, Family

Count = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Scale = Annotated[float, Field(gt=0, allow_inf_nan=False)]

Preset = Literal["tiny", "mini", "small", "medium", "base", "large"]

NumLayers = Annotated[int, Field(ge=1, le=1000)]
MOST_PARAMETERS = 10**11
"""400 GB: a `config.json` of unknown origin may ask for any sizes, and they are refused before memory is taken."""

_LONGEST = 512
"""Tokens of the longest sequence where positions start after the padding token and a recipe does not say how many."""


def token_families() -> list[str]:
    """The architectures whose sizes are `EncoderSettings`: all but ELMo."""
    return [name for name, family in ARCHITECTURES.items() if not family.reads_words]


def _known(name: Any) -> Any:
    if name not in token_families():
        *names, last = token_families()
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(names)} or {last}"})
    return name


Architecture = Annotated[str, BeforeValidator(_known)]
"""The name of a family of encoders."""


class EncoderSettings(BaseModel):
    """Every size of one encoder; the defaults are BERT-Base, uncased, and for other families as in their `defaults`.

    Attributes:
        causal: True for BERT's left-to-right model (Devlin et al. 2019, section 5.1): every token sees only itself and
            those before it. `is_causal` covers every family.
        intermediate_size: of the feed-forward layers; the units of an LSTM, whose output is projected to `hidden_size`
            where that is another.
        embedding_size: of the embeddings, where they are projected to `hidden_size` (ELECTRA); None: there is no such
            projection.
        hidden_act: the activation in the feed-forward layers and in BERT's masked-LM head.
        hidden_dropout_prob: dropout after the embeddings and after each sublayer.
        embedding_dropout_prob: dropout after the embeddings, if it is a different one (GPT-1 and ModernBERT have a key
            for each).
        max_position_embeddings: rows of the position embeddings; `num_positions` is the longest sequence. An LSTM has
            no such rows, but gets no longer sequences either.
        type_vocab_size: how many segments are distinguished: 2 for A and B, 1 for RoBERTa and ModernBERT, 0 for GPT-1
            and LSTMs, which read the two texts of a pair in both orders where it asks how alike they are.
        initializer_range: the standard deviation of fresh weights.
        pad_token_id: the id whose embedding gets no gradient as an input; None where there is no such id. RoBERTa's
            positions start after it.
        global_attn_every_n_layers: of ModernBERT, as all that follow: the first layer and every n-th after it attend to
            the whole sequence.
        local_attention: tokens in the window of the other layers; each token sees half of them on either side, and a
            decoder's the half that ends with itself.
        global_rope_theta, local_rope_theta: the bases of the rotary positions of both kinds of layers.
        norm_bias, attention_bias, mlp_bias, classifier_bias, decoder_bias: whether LayerNorms, attention, feed-forward,
            the dense layer of the heads and the decoder of the masked-LM head have a bias.
        classifier_activation: of the heads.
        classifier_pooling: what represents a sequence: its first token, or the mean of all.
        tie_word_embeddings: whether the masked-LM head decodes with the word embeddings.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    architecture: Architecture = Field(default="bert", examples=token_families())
    causal: bool = False
    vocab_size: Count = 30522
    embedding_size: Count | None = None
    hidden_size: Count = 768
    num_hidden_layers: NumLayers = 12
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
    global_attn_every_n_layers: Count = 3
    local_attention: Annotated[int, Field(ge=2)] = 128
    global_rope_theta: Scale = 160_000.0
    local_rope_theta: Scale = 10_000.0
    norm_bias: bool = True
    attention_bias: bool = True
    mlp_bias: bool = True
    classifier_bias: bool = True
    classifier_activation: Activation | None = None
    classifier_pooling: Literal["cls", "mean"] = "cls"
    decoder_bias: bool = True
    tie_word_embeddings: bool = True

    @model_validator(mode="before")
    @classmethod
    def _of_the_family(cls, given: dict[str, Any]) -> dict[str, Any]:
        family = ARCHITECTURES.get(str(given.get("architecture", "bert")))
        if family is None:
            return given
        sizes = {**family.defaults, **given}
        if "intermediate_size" not in family.keys and isinstance(sizes.get("hidden_size"), int):
            sizes.setdefault("intermediate_size", round(family.feed_forward_factor * sizes["hidden_size"]))
        return sizes

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads {self.num_attention_heads}"
            )
        check_num_parameters(
            (self.vocab_size + self.max_position_embeddings + self.type_vocab_size) * self.embedding_width
            + self.num_hidden_layers * self.hidden_size * (4 * self.hidden_size + 2 * self.intermediate_size)
        )
        if self.pad_token_id is not None and self.pad_token_id >= self.vocab_size:
            raise ValueError(f"pad_token_id {self.pad_token_id} is not below vocab_size {self.vocab_size}")
        if self.causal and not self.family.may_be_causal:
            families = " or ".join(each.title for each in ARCHITECTURES.values() if each.may_be_causal)
            raise ValueError(
                f"causal is True: that is for {families}, and {self.architecture} "
                + ("is left-to-right anyway: leave it out" if self.family.left_to_right else "reads in both directions")
            )
        return self

    @model_validator(mode="after")
    def _agree_with_the_family(self) -> Self:
        family = self.family
        if "type_vocab_size" in family.keys and self.type_vocab_size == 0:
            raise ValueError(f"type_vocab_size is 0: {self.architecture} has at least one segment")
        if family.positions_after_padding and self.pad_token_id is None:
            raise ValueError(f"pad_token_id is null: {family.title}'s positions are counted from it")
        if self.num_positions < 1:
            raise ValueError(
                f"max_position_embeddings {self.max_position_embeddings} leaves no position: {family.title}'s start "
                f"after pad_token_id {self.pad_token_id}"
            )
        if "global_rope_theta" in family.keys and self.head_size % 2:
            raise ValueError(
                f"hidden_size {self.hidden_size} and num_attention_heads {self.num_attention_heads} make heads of "
                f"{self.head_size}: {family.title}'s rotary positions turn pairs of numbers, so it has to be even"
            )
        if family.activations and self.hidden_act not in family.activations.values():
            known = ", ".join(family.activations.values())
            raise ValueError(f"hidden_act {self.hidden_act!r}: {family.title} has one of {known}")
        follows: dict[str, Any] = {
            "embedding_size": self.hidden_size,
            "embedding_dropout_prob": self.hidden_dropout_prob,
            "intermediate_size": round(family.feed_forward_factor * self.hidden_size),
        }
        for name, field in type(self).model_fields.items():
            usual = family.defaults.get(name, field.default)
            fixed = follows.get(name, usual)
            value = getattr(self, name)
            if name not in ("architecture", "causal", *family.keys) and value not in (None, fixed):
                raise ValueError(f"{name} {value!r} means nothing to {family.title}: leave it out ({fixed!r})")
        return self

    @property
    def family(self) -> Family:
        return ARCHITECTURES[self.architecture]

    @property
    def is_causal(self) -> bool:
        """Whether a token sees only itself and those before it; the last token then represents its sequence."""
        return self.causal or self.family.left_to_right

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def attended(self, length: float) -> float:
        """The tokens that a token attends to in sequences of this mean length, a mean over the layers."""
        share = 0.5 if self.is_causal else 1
        if "local_attention" not in self.family.keys:
            return share * length
        num_global = len(range(0, self.num_hidden_layers, self.global_attn_every_n_layers))
        num_local = self.num_hidden_layers - num_global
        seen = num_global * length + num_local * min(length, self.local_attention + 1)
        return share * seen / self.num_hidden_layers

    @property
    def embedding_width(self) -> int:
        """Of the word embeddings: `embedding_size`, or where that is not set that of the hidden states."""
        return self.embedding_size or self.hidden_size

    @property
    def first_position(self) -> int:
        """The row of the position embeddings that belongs to the first token of a sequence."""
        return self.pad_token_id + 1 if self.family.positions_after_padding and self.pad_token_id is not None else 0

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

    Where neither the recipe nor the preset gives `intermediate_size`, it follows `hidden_size`: 4 x, for ModernBERT
    1.5 x. The presets of LSTMs give it, and ModernBERT's large does. RoBERTa's `max_position_embeddings` includes the
    rows up to `pad_token_id`, which no token uses: 514 for 512 tokens.

    Beside `init_from` the sizes are that model's: what is given here has to agree, and dropout replaces that model's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    architecture: Architecture = Field(default="bert", examples=token_families())
    preset: Preset = "base"
    causal: bool = False
    """True: left-to-right (BERT, section 5.1), for `objective.name: causal_lm`."""
    vocab_size: Count | None = None
    embedding_size: Count | None = None
    """Of ELECTRA's embeddings, where they are projected."""
    hidden_size: Count | None = None
    num_hidden_layers: NumLayers | None = None
    num_attention_heads: Count | None = None
    intermediate_size: Count | None = None
    hidden_act: Activation | None = None
    hidden_dropout_prob: Probability | None = None
    attention_probs_dropout_prob: Probability | None = None
    max_position_embeddings: Count | None = None
    type_vocab_size: Count | None = None
    initializer_range: Scale | None = None
    layer_norm_eps: Scale | None = None
    global_attn_every_n_layers: Count | None = None
    """Of ModernBERT, as all that follow; see `EncoderSettings`."""
    local_attention: Annotated[int, Field(ge=2)] | None = None
    global_rope_theta: Scale | None = None
    local_rope_theta: Scale | None = None
    norm_bias: bool | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    classifier_bias: bool | None = None
    classifier_activation: Activation | None = None
    classifier_pooling: Literal["cls", "mean"] | None = None
    decoder_bias: bool | None = None
    tie_word_embeddings: bool | None = None
    zero_output_projections: bool = False
    """True: the random weights of what a block adds to its input begin at 0."""

    @model_validator(mode="after")
    def _has_the_preset(self) -> Self:
        known = ", ".join(self.family.presets)
        if self.preset not in self.family.presets:
            raise ValueError(f"preset {self.preset!r} is none of {self.architecture}: expected one of {known}")
        return self

    @property
    def family(self) -> Family:
        return ARCHITECTURES[self.architecture]

    def resolve(self, vocab_size: int, pad_token_id: int | None = 0) -> EncoderSettings:
        """The encoder's sizes for a tokenizer.

        Args:
            vocab_size: how many ids the tokenizer has.
            pad_token_id: the tokenizer's id of its padding token; None if it has none.

        Raises:
            SettingsError: `vocab_size` here is not the tokenizer's, the hidden size cannot be divided among the heads,
                or the padding token is not in the vocabulary.
        """
        check_vocab_size(self.vocab_size, vocab_size)
        given = self.model_dump(exclude={"preset", "vocab_size", "zero_output_projections"}, exclude_none=True)
        sizes = {**self.family.presets[self.preset], **given}
        if self.family.positions_after_padding and pad_token_id is not None:
            sizes.setdefault("max_position_embeddings", _LONGEST + pad_token_id + 1)
        sizes.setdefault("intermediate_size", round(self.family.feed_forward_factor * sizes["hidden_size"]))
        try:
            return EncoderSettings(vocab_size=vocab_size, pad_token_id=pad_token_id, **sizes)
        except ValidationError as error:
            raise sizes_error(self.preset, error) from error


def check_num_parameters(number: int) -> None:
    """Raises ValueError for sizes of more than `MOST_PARAMETERS`."""
    if number > MOST_PARAMETERS:
        raise ValueError(
            f"these sizes come to {number:,} parameters, {number * 4 / 1e9:,.0f} GB of memory in float32; expected at "
            f"most {MOST_PARAMETERS:,}"
        )


def check_vocab_size(given: int | None, found: int) -> None:
    """Raises SettingsError if a recipe names another size than its tokenizer has."""
    if given not in (None, found):
        raise SettingsError(
            f"model.vocab_size is {given} but the tokenizer has {found} entries: "
            "leave model.vocab_size out, or use the tokenizer that it was meant for"
        )


def sizes_error(preset: str, error: ValidationError) -> SettingsError:
    """The error for sizes that do not fit each other."""
    return SettingsError(
        f"the model settings contradict each other (preset {preset!r}): {reasons(error)}: "
        "change one of them under `model:`"
    )


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
