"""Settings of the pre-training objectives: one class each, told apart by `objective.name`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from unmask.config import Settings

ObjectiveName = Literal["masked_lm", "causal_lm", "bilm", "replaced_token"]


class MaskedLMSettings(Settings):
    """Masked language modelling (BERT, section 3.1; SpanBERT), with or without a second objective on sentences."""

    name: Literal["masked_lm"] = "masked_lm"

    masking: Literal["token", "whole_word", "span", "entity", "noun_phrase"] = "token"
    """What is chosen together: single tokens, all pieces of a word, runs of words (SpanBERT, section 3.1), or what the
    text's annotations say is an entity or a noun phrase (its section 5.1)."""

    masking_mode: Literal["dynamic", "static"] = "dynamic"
    """`dynamic`: new masks in every epoch; `static`: ten masked copies, shown in turn (RoBERTa, section 4.1)."""

    sentence_objective: Literal["none", "nsp", "sop"] = "nsp"
    """`nsp`: also predict whether segment B follows segment A; `sop`: whether they stand in their order (ALBERT)."""

    span_boundary: bool = False
    """True: also predict each token of a span from the tokens beside the span (SpanBERT, section 3.2)."""

    target_prob: float = Field(0.15, gt=0, le=1)
    """Share of a sequence's tokens that become targets."""

    mask_token_prob: float = Field(0.8, ge=0, le=1)
    """Share of the targets replaced by `[MASK]`; of the spans, with `masking: span`, `entity` or `noun_phrase`, whose
    tokens share one fate."""

    random_token_prob: float = Field(0.1, ge=0, le=1)
    """Share of the targets replaced by a random entry of the vocabulary; the rest stay as they are."""

    span_length_prob: float = Field(0.2, gt=0, lt=1)
    """p of the geometric distribution that a span's length in words is drawn from."""

    max_span_words: int = Field(10, ge=1)
    """Where that distribution is cut off and renormalised: with .2 and 10 the mean is 3.80 words."""

    max_boundary_targets: int = Field(20, ge=1)
    """Tokens of a span that the span boundary objective predicts, at most."""

    @model_validator(mode="after")
    def _shares_fit(self) -> MaskedLMSettings:
        if self.mask_token_prob + self.random_token_prob > 1 + 1e-9:
            raise ValueError(
                f"mask_token_prob {self.mask_token_prob} + random_token_prob {self.random_token_prob} is over 1: "
                "the rest is the share that stays unchanged"
            )
        return self


class CausalLMSettings(Settings):
    """Left-to-right language modelling (GPT-1, section 3.1; the left-to-right model of BERT, section 5.1)."""

    name: Literal["causal_lm"] = "causal_lm"


class BiLMSettings(Settings):
    """A forward and a backward language model, trained jointly (ELMo, section 3.1)."""

    name: Literal["bilm"] = "bilm"

    num_negatives: int = Field(8192, ge=1)
    """Words that each window's softmax is sampled from, beside its targets; as many as the vocabulary has or more:
    the full softmax."""


class ReplacedTokenSettings(Settings):
    """Replaced-token detection (ELECTRA, section 2): a small generator proposes, the discriminator tells."""

    name: Literal["replaced_token"] = "replaced_token"

    target_prob: float = Field(0.15, gt=0, le=1)
    """Share of a sequence's tokens that the generator replaces; ELECTRA-Large: .25."""

    mask_token_prob: float = Field(1.0, ge=0, le=1)
    """Share of them that the generator sees as `[MASK]`, the rest as they are: 1 in the paper, .85 in its code."""

    masking_mode: Literal["dynamic", "static"] = "dynamic"
    """As in `masked_lm`."""

    generator_size: float = Field(0.25, gt=0)
    """The generator's width as a share of the discriminator's: hidden size, feed-forward size and heads; as deep."""

    tie_embeddings: Literal["all", "none"] = "all"
    """`all`: both share their token, position and segment embeddings (section 3.2)."""

    discriminator_weight: float = Field(50.0, gt=0)
    """lambda: what the discriminator's mean loss counts beside the generator's."""

    schedule: Literal["joint", "two_stage"] = "joint"
    """`two_stage`: the generator alone for half of the run, then a discriminator of equal size that starts from its
    weights, with the generator frozen (section 3.2, where it is the weaker one)."""

    @field_validator("generator_size")
    @classmethod
    def _is_no_wider(cls, size: float) -> float:
        if size > 1:
            raise ValueError(
                f"objective.generator_size={size:g} makes the generator wider than the discriminator, whose width is "
                "model.hidden_size: set it to 1 or less"
            )
        return size

    @model_validator(mode="after")
    def _stages_fit(self) -> ReplacedTokenSettings:
        if self.schedule == "two_stage" and self.generator_size != 1:
            raise ValueError(
                f"schedule two_stage starts the discriminator from the generator's weights, and generator_size "
                f"{self.generator_size} makes them of unequal sizes: set objective.generator_size=1"
            )
        return self


def _name_of(given: Any) -> str:
    """The member of the union that values belong to; its tag is in brackets, which keeps it out of dotted keys."""
    name = given.get("name", "masked_lm") if isinstance(given, dict) else getattr(given, "name", "masked_lm")
    return f"<{name}>" if name in get_args(ObjectiveName) else "<masked_lm>"  # which then says what names there are


ObjectiveSettings = Annotated[
    Annotated[MaskedLMSettings, Tag("<masked_lm>")]
    | Annotated[CausalLMSettings, Tag("<causal_lm>")]
    | Annotated[BiLMSettings, Tag("<bilm>")]
    | Annotated[ReplacedTokenSettings, Tag("<replaced_token>")],
    Discriminator(_name_of),
]
"""`objective.*` of a recipe; without a name it is `masked_lm`."""
