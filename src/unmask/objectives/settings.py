"""Settings of the pre-training objectives: one class each, told apart by `objective.name`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from unmask.config import Settings
from unmask.packing.settings import SentenceObjective

ObjectiveName = Literal["masked_lm", "causal_lm", "bilm", "replaced_token"]

_MASKED_LM, _REPLACED_TOKEN, _CAUSAL_LM, _BILM = (
    f"objective.name={name}" for name in ("masked_lm", "replaced_token", "causal_lm", "bilm")
)
CALLED_OTHERWISE: dict[str, str] = {
    **dict.fromkeys(("bert", "mlm"), _MASKED_LM),
    "roberta": f"{_MASKED_LM} objective.sentence_objective=none",
    "spanbert": f"{_MASKED_LM} objective.masking=span objective.span_boundary=true objective.sentence_objective=none",
    **dict.fromkeys(("sbo", "span_boundary"), f"{_MASKED_LM} objective.masking=span objective.span_boundary=true"),
    **dict.fromkeys(("wwm", "whole_word"), f"{_MASKED_LM} objective.masking=whole_word"),
    **dict.fromkeys(("nsp", "next_sentence"), f"{_MASKED_LM} objective.sentence_objective=nsp"),
    **dict.fromkeys(("sop", "sentence_order", "albert"), f"{_MASKED_LM} objective.sentence_objective=sop"),
    **dict.fromkeys(("electra", "rtd", "replaced_token_detection"), _REPLACED_TOKEN),
    **dict.fromkeys(("gpt", "gpt1", "gpt-1", "openai-gpt", "clm", "lm", "ltr", "causal", "lstm"), _CAUSAL_LM),
    **dict.fromkeys(("elmo", "bidirectional_lm"), _BILM),
}
"""What people also call an objective, by its model or for short, in lower case -> the settings that make it."""


AnnotationKind = Literal["entity", "noun_phrase"]


class _OfAnyObjective(Settings):
    """What the rest of a run asks of an objective, with the answers that hold unless it says otherwise."""

    @property
    def annotations(self) -> AnnotationKind | None:
        """The kind of annotations of the text that targets are chosen by; None where they are not."""
        return None

    @property
    def is_static(self) -> bool:
        """Whether masks are drawn once, for ten copies of the text."""
        return False

    @property
    def asked_of_pairs(self) -> SentenceObjective:
        """What is asked about a sequence's two segments."""
        return "none"

    @property
    def stages(self) -> tuple[float, ...]:
        """The shares of the budget at which the stages of a run end; see `unmask.objectives.base.StagedModule`."""
        return (1.0,)

    @property
    def main_term(self) -> str:
        """The loss term without whose targets nothing is learnt of words."""
        return "lm"

    @property
    def why_no_targets(self) -> str:
        """Why no sequence of a text has a target of this term, and what to do, for people."""
        return "none has a token of text: give text with longer documents"


class MaskedLMSettings(_OfAnyObjective):
    """Masked language modelling (BERT, section 3.1; SpanBERT), with or without a second objective on sentences."""

    name: Literal["masked_lm"] = "masked_lm"

    masking: Literal["token", "whole_word", "span", "entity", "noun_phrase"] = "token"
    """What is chosen together: single tokens, all pieces of a word, runs of words (SpanBERT, section 3.1), or what the
    text's annotations say is an entity or a noun phrase (its section 6.1)."""

    masking_mode: Literal["dynamic", "static"] = "dynamic"
    """`dynamic`: new masks in every epoch; `static`: ten masked copies, shown in turn (RoBERTa, section 4.1)."""

    sentence_objective: SentenceObjective = "nsp"
    """`nsp`: also predict whether segment B follows segment A; `sop`: whether they stand in their order (ALBERT)."""

    span_boundary: bool = False
    """True: also predict each token of a span from the tokens beside the span (SpanBERT, section 3.2)."""

    target_prob: float = Field(0.15, gt=0, le=1)
    """Share of a sequence's tokens that become targets."""

    mask_token_prob: float = Field(0.8, ge=0, le=1)
    """Share of the targets replaced by `[MASK]`; with `masking: span`, `entity` or `noun_phrase` share of the spans,
    whose tokens are all treated alike."""

    random_token_prob: float = Field(0.1, ge=0, le=1)
    """Share of the targets replaced by a random entry of the vocabulary; the rest stay as they are."""

    span_length_prob: float = Field(0.2, gt=0, lt=1)
    """p of the geometric distribution that a span's length in words is drawn from."""

    max_span_words: int = Field(10, ge=1, le=1_000_000)
    """Where that distribution is cut off and renormalised: with .2 and 10 the mean is 3.80 words."""

    max_boundary_targets: int = Field(20, ge=1)
    """Tokens of a span that the span boundary objective predicts, at most."""

    @property
    def annotations(self) -> AnnotationKind | None:
        return self.masking if self.masking == "entity" or self.masking == "noun_phrase" else None

    @property
    def is_static(self) -> bool:
        return self.masking_mode == "static"

    @property
    def asked_of_pairs(self) -> SentenceObjective:
        return self.sentence_objective

    @property
    def main_term(self) -> str:
        return "mlm"

    @property
    def why_no_targets(self) -> str:
        if self.masking != "whole_word":
            return super().why_no_targets
        return (
            f"objective.masking=whole_word masks words wholly, within objective.target_prob={self.target_prob:g} of a "
            "sequence's tokens, and every word is longer, since for the tokenizer words end only at spaces and "
            "punctuation: take objective.masking=token, or objective.masking=span, which cuts long words"
        )

    @model_validator(mode="after")
    def _shares_fit(self) -> MaskedLMSettings:
        if self.mask_token_prob + self.random_token_prob > 1 + 1e-9:
            raise ValueError(
                f"mask_token_prob {self.mask_token_prob} + random_token_prob {self.random_token_prob} is over 1: "
                "the rest is the share that stays unchanged"
            )
        return self

    @model_validator(mode="after")
    def _every_key_has_an_effect(self) -> MaskedLMSettings:
        _refuse_without_effect(
            self,
            {
                "span_length_prob": ("masking", "span"),
                "max_span_words": ("masking", "span"),
                "max_boundary_targets": ("span_boundary", True),
            },
        )
        return self


class CausalLMSettings(_OfAnyObjective):
    """Left-to-right language modelling (GPT-1, section 3.1; the left-to-right model of BERT, section 5.1)."""

    name: Literal["causal_lm"] = "causal_lm"

    @property
    def why_no_targets(self) -> str:
        return "none has a token that follows another: give text with longer documents"


class BiLMSettings(_OfAnyObjective):
    """A forward and a backward language model, trained jointly (ELMo, section 3.1)."""

    name: Literal["bilm"] = "bilm"

    num_negatives: int = Field(8192, ge=1)
    """Words that each window's softmax is sampled from, beside its targets. If the vocabulary has not twice as many,
    the full softmax is taken: to draw nearly all words, each once, takes longer."""

    empty_memory_prob: float = Field(0.0, ge=0, le=1)
    """Share of each lane's windows that begin with an empty memory, as a text does when the model is used. None in the
    paper: the memory is then empty only once, and a model that never sees that again may come to read badly from it."""

    def is_sampled(self, vocab_size: int) -> bool:
        return 2 * self.num_negatives <= vocab_size


class ReplacedTokenSettings(_OfAnyObjective):
    """Replaced-token detection (ELECTRA, section 2): a small generator replaces tokens, the discriminator tells
    which."""

    name: Literal["replaced_token"] = "replaced_token"

    target_prob: float = Field(0.15, gt=0, le=1)
    """Share of a sequence's tokens that the generator replaces; ELECTRA-Large: .25."""

    mask_token_prob: float = Field(1.0, ge=0, le=1)
    """Share of them that the generator sees as `[MASK]`, the rest as they are: 1 in the paper, .85 in its code."""

    masking_mode: Literal["dynamic", "static"] = "dynamic"
    """As in `masked_lm`."""

    generator_size: float = Field(0.25, gt=0)
    """The generator's width as a share of the discriminator's: hidden size, feed-forward size and heads; the depth is
    the same."""

    tie_embeddings: Literal["all", "none"] = "all"
    """`all`: both share their token, position and segment embeddings (section 3.2). In two stages they never do."""

    discriminator_weight: float = Field(50.0, gt=0)
    """lambda: the weight of the discriminator's mean loss beside the generator's."""

    schedule: Literal["joint", "two_stage"] = "joint"
    """`two_stage`: the generator alone for half of the run, then a discriminator of equal size that starts from its
    weights, with the generator frozen (section 3.2, where it does worse than `joint`)."""

    @property
    def is_static(self) -> bool:
        return self.masking_mode == "static"

    @property
    def main_term(self) -> str:
        return "generator"

    @property
    def stages(self) -> tuple[float, ...]:
        return (0.5, 1.0) if self.schedule == "two_stage" else (1.0,)

    @model_validator(mode="after")
    def _every_key_has_an_effect(self) -> ReplacedTokenSettings:
        _refuse_without_effect(self, {"discriminator_weight": ("schedule", "joint")})
        return self

    @field_validator("generator_size")
    @classmethod
    def _is_no_wider(cls, size: float) -> float:
        if size > 1:
            raise ValueError(
                f"{size:g} makes the generator wider than the discriminator, whose width is model.hidden_size: set it "
                "to 1 or less"
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


def _refuse_without_effect(settings: Settings, needed: Mapping[str, tuple[str, object]]) -> None:
    """Refuses keys that differ from their defaults but have no effect beside the others.

    Args:
        needed: for each such key, the other key and the value that it must have.
    """
    for key, (other, value) in needed.items():
        given, found = getattr(settings, key), getattr(settings, other)
        if found != value and given != type(settings).model_fields[key].default:
            raise ValueError(
                f"objective.{key}={given} has an effect with objective.{other}={_written(value)} alone, and "
                f"objective.{other} is {_written(found)}: leave it out, or set objective.{other}={_written(value)}"
            )


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
