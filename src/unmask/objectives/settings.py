"""Settings of the pre-training objectives: one class each, by `objective.name` in `unmask.objectives.table.OBJECTIVES`.

A class also says, without PyTorch, what the rest of the program asks of its objective before anything is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from unmask.io.paths import GENERATOR
from unmask.models.families.table import ARCHITECTURES
from unmask.models.family import Family
from unmask.objectives.settings_base import (
    AnnotationKind,
    ObjectiveSettings,
    Remark,
    a_model_of,
    called,
    refuse_without_effect,
    unusual_share,
    why_not_left_to_right,
)
from unmask.packing.settings import SentenceObjective

CAUSAL_SHARE = "causal_share"
"""The column () float64 of a training batch: the share of sequences that are read from left to right."""
TARGET_PROB = "target_prob"
"""The column () float64 of a training batch: the share of tokens to mask at this point of the run."""

_DIRECTIONS_APART_NATS = 0.2
"""A forward and a backward model of the same words differ by less: by .04 to .10 in the runs of ELMo's mini size."""


class MaskedLMSettings(ObjectiveSettings):
    """Masked language modelling (BERT, section 3.1; SpanBERT), with or without a second objective on sentences."""

    why_these = "a masked token is predicted from both sides"
    direction = "both"
    needs_mask = True
    main_term = "mlm"

    name: Literal["masked_lm"] = "masked_lm"

    masking: Literal["token", "whole_word", "span", "entity", "noun_phrase"] = "token"
    """What is chosen together: single tokens, all pieces of a word, runs of words (SpanBERT, section 3.1), or what the
    text's annotations say is an entity or a noun phrase (its section 6.1)."""

    masking_mode: Literal["dynamic", "static"] = "dynamic"
    """`dynamic`: new masks in every epoch; `static`: ten masked copies, shown in turn (RoBERTa, section 4.1)."""

    sentence_objective: SentenceObjective = "nsp"
    """`nsp`: also predict whether segment B follows segment A; `sop`: whether they are in their order (ALBERT)."""

    span_boundary: bool = False
    """True: also predict each token of a span from the tokens beside the span (SpanBERT, section 3.2)."""

    target_prob: float = Field(default=0.15, gt=0, le=1)
    """Share of a sequence's tokens that become targets."""

    target_prob_end: float | None = Field(default=None, gt=0, le=1)
    """The share at the end of the run, to which `target_prob` goes linearly; held-out text is masked at this one. Null:
    it stays (Charpentier and Samuel 2024 go from .3 to .15)."""

    causal_share: float = Field(default=0.0, ge=0, le=1)
    """Share of a step's sequences that are read from left to right, each token predicting the next; the others are
    masked. `phases.*.causal_share` gives a phase its own (GPT-BERT, Charpentier and Samuel 2024)."""

    sentence_weight: float = Field(default=1.0, gt=0)
    """The weight of the loss of `sentence_objective` beside that of the masked tokens (BERT, appendix A.2, adds the
    two)."""

    boundary_weight: float = Field(default=1.0, gt=0)
    """The weight of the loss of `span_boundary` beside that of the masked tokens (SpanBERT, section 3.2, adds the
    two)."""

    z_loss: float = Field(default=0.0, ge=0)
    """Weight of the squared logarithm of the softmax's denominator, which is added to the loss of each token and keeps
    the logits from drifting (Chowdhery et al. 2022, PaLM, section 5, 1e-4). The losses of training include it, those of
    evaluations do not."""

    mask_token_prob: float = Field(default=0.8, ge=0, le=1)
    """Share of the targets replaced by `[MASK]`; with `masking: span`, `entity` or `noun_phrase` share of the spans,
    whose tokens are all treated alike."""

    random_token_prob: float = Field(default=0.1, ge=0, le=1)
    """Share of the targets replaced by a random entry of the vocabulary; the rest stay as they are."""

    span_length_prob: float = Field(default=0.2, gt=0, lt=1)
    """p of the geometric distribution that a span's length in words is drawn from."""

    max_span_words: int = Field(default=10, ge=1, le=1_000_000)
    """Where that distribution is cut off and renormalised: with .2 and 10 the mean is 3.80 words."""

    max_boundary_targets: int = Field(default=20, ge=1)
    """Tokens of a span that the span boundary objective predicts, at most."""

    @classmethod
    def trains(cls, family: Family) -> bool:
        return family.has("masked_lm_head") and not family.left_to_right

    @property
    def annotations(self) -> AnnotationKind | None:
        return self.masking if self.masking == "entity" or self.masking == "noun_phrase" else None

    @property
    def is_static(self) -> bool:
        return self.masking_mode == "static"

    @property
    def last_target_prob(self) -> float:
        """The share of tokens that are masked at the end of the run, and in held-out text."""
        return self.target_prob if self.target_prob_end is None else self.target_prob_end

    def rates(self, progress: float, causal_share: float | None) -> dict[str, float]:
        rates = {}
        if self.target_prob_end is not None:
            rates[TARGET_PROB] = self.target_prob + (self.target_prob_end - self.target_prob) * progress
        if self.causal_share:
            rates[CAUSAL_SHARE] = self.causal_share if causal_share is None else causal_share
        return rates

    @property
    def pair_objective(self) -> SentenceObjective:
        return self.sentence_objective

    @property
    def no_pair_objective(self) -> str:
        return "objective.sentence_objective=none"

    @property
    def if_default_pairs(self) -> str:
        if "sentence_objective" in self.model_fields_set:
            return ""
        return f" ({self.pair_objective} is the default of objective.name={self.name}, since nothing else is said)"

    @property
    def why_no_targets(self) -> str:
        if self.masking != "whole_word":
            return super().why_no_targets
        return (
            f"objective.masking=whole_word masks words wholly, within objective.target_prob={self.target_prob:g} of a "
            "sequence's tokens, and every word is longer, since for the tokenizer words end only at spaces and "
            "punctuation: take objective.masking=token, or objective.masking=span, which cuts long words"
        )

    def why_not_trained(self, family: Family, init_from: str | None) -> str | None:
        if self.sentence_objective == "none" or family.has("next_sentence_head"):
            return why_not_left_to_right(self, self.causal_share, family, init_from)
        having = tuple(name for name, each in ARCHITECTURES.items() if each.has("next_sentence_head"))
        return (
            f"objective.sentence_objective={self.sentence_objective} is not for {called(family, init_from)}, which has "
            f"no head for it: take objective.sentence_objective=none, or {a_model_of(having, init_from)}, with any "
            f"tokenizer{self.if_default_pairs}"
        )

    def unusual(self) -> Iterator[Remark]:
        return unusual_share(self.target_prob)

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
        refuse_without_effect(
            self,
            {
                "span_length_prob": ("masking", "span"),
                "max_span_words": ("masking", "span"),
                "max_boundary_targets": ("span_boundary", True),
                "boundary_weight": ("span_boundary", True),
            },
        )
        if self.sentence_weight != 1 and self.sentence_objective == "none":
            raise ValueError(
                f"sentence_weight {self.sentence_weight:g} has no effect with sentence_objective none: leave it out"
            )
        if self.causal_share and (self.sentence_objective != "none" or self.span_boundary):
            second = "span_boundary true" if self.span_boundary else f"sentence_objective {self.sentence_objective}"
            raise ValueError(
                f"causal_share {self.causal_share:g} and {second} do not go together: what is read from left to right "
                "has no [CLS] that sees a pair, and no spans; set sentence_objective=none and span_boundary=false, or "
                "leave out causal_share"
            )
        return self


class CausalLMSettings(ObjectiveSettings):
    """Left-to-right language modelling (GPT-1, section 3.1; the left-to-right model of BERT, section 5.1)."""

    why_these = "the tokens of a bidirectional encoder see the one to predict"
    direction = "left_to_right"
    beside: ClassVar = {"model": {"architecture": "gpt1"}, "packing": {"format": "single_segment"}}
    most_epochs = (100, "GPT-1")  # Radford et al. 2018, section 4.1

    name: Literal["causal_lm"] = "causal_lm"

    @classmethod
    def trains(cls, family: Family) -> bool:
        return family.left_to_right or family.may_be_causal

    @property
    def why_no_targets(self) -> str:
        return "none has a token that follows another: give text with longer documents"


class BiLMSettings(ObjectiveSettings):
    """A forward and a backward language model, trained jointly (ELMo, section 3.1)."""

    why_these = "its two directions are LSTMs over the characters of words"
    reads = "words"
    beside: ClassVar = {"model": {"architecture": "elmo"}, "packing": {"format": "stream"}}

    name: Literal["bilm"] = "bilm"

    num_negatives: int = Field(default=8192, ge=1)
    """Words that each window's softmax is sampled from, beside its targets. If the vocabulary has not twice as many,
    the full softmax is taken: to draw nearly all words, each once, takes longer."""

    empty_memory_prob: float = Field(default=0.0, ge=0, le=1)
    """Share of each lane's windows that begin with an empty memory, as a text does when the model is used. None in the
    paper: the memory is then empty only once, and a model that never sees that again may come to read badly from it."""

    @classmethod
    def trains(cls, family: Family) -> bool:
        return family.reads_words

    def is_sampled(self, vocab_size: int) -> bool:
        return 2 * self.num_negatives <= vocab_size

    def remarks_on(self, evaluation: Mapping[str, float]) -> Iterator[Remark]:
        """One of the two models that does much worse counts on a memory that is never empty (docs/notebook.md)."""
        forward, backward = (evaluation.get(f"eval/lm_{direction}_loss") for direction in ("forward", "backward"))
        if forward is None or backward is None or abs(forward - backward) < _DIRECTIONS_APART_NATS:
            return
        yield Remark(
            "directions-apart",
            "warning",
            f"held out, the forward model ends at {forward:.2f} nats and the backward one at {backward:.2f}",
            "the worse one may have come to count on a memory that holds something, while every evaluation and every "
            "text begins with an empty one: train again with objective.empty_memory_prob=0.05, or more",
        )


class ReplacedTokenSettings(ObjectiveSettings):
    """Replaced-token detection (ELECTRA, section 2): a small generator replaces tokens, the discriminator
    detects which."""

    why_these = "generator and discriminator share embeddings, which ELECTRA has apart from its layers"
    becomes: ClassVar = {"bert": "electra"}
    direction = "both"
    needs_mask = True
    beside: ClassVar = {"model": {"architecture": "electra"}, "packing": {"format": "single_segment"}}
    folders = (GENERATOR,)
    main_term = "generator"

    name: Literal["replaced_token"] = "replaced_token"

    target_prob: float = Field(default=0.15, gt=0, le=1)
    """Share of a sequence's tokens that the generator replaces; ELECTRA-Large: .25."""

    mask_token_prob: float = Field(default=1.0, ge=0, le=1)
    """Share of them that the generator sees as `[MASK]`, the rest as they are: 1 in the paper, .85 in its code."""

    masking_mode: Literal["dynamic", "static"] = "dynamic"
    """As in `masked_lm`."""

    generator_size: float = Field(default=0.25, gt=0, le=1)
    """The generator's width as a share of the discriminator's: hidden size, feed-forward size and heads; the depth is
    the same."""

    tie_embeddings: Literal["all", "none"] = "all"
    """`all`: both share their token, position and segment embeddings (section 3.2); under
    `schedule: two_stage` they never do."""

    variant: Literal["electra", "electra_15", "replace_mlm", "all_tokens_mlm"] = "electra"
    """What the discriminator learns, by the names of section 3.4: which of all tokens were replaced; which of the
    targets (`electra_15`); the original tokens at the targets, or at all places, where it may copy what is shown."""

    discriminator_weight: float = Field(default=50.0, gt=0)
    """lambda: the weight of the discriminator's mean loss beside the generator's, where it detects what was replaced;
    where it predicts tokens both count once, of which the paper says nothing."""

    tie_weights: bool = False
    """True: generator and discriminator are one encoder, each with its head (section 3.2, "tying all weights"); for two
    of one size."""

    schedule: Literal["joint", "two_stage"] = "joint"
    """`two_stage`: the generator alone for half of the run, then a discriminator of equal size that starts from its
    weights, with the generator frozen (section 3.2, where it does worse than `joint`)."""

    discriminator_after: float = Field(default=0.0, ge=0, lt=1)
    """The share of a `joint` run in which the generator learns alone; then both learn, by a schedule of their own. 0 in
    the paper; a small discriminator learns nothing from a generator that knows no more than frequencies."""

    causal_share: float = Field(default=0.0, ge=0, le=1)
    """As in `masked_lm`, for the generator while it learns alone: it is soon ready then."""

    @classmethod
    def trains(cls, family: Family) -> bool:
        return family.has("discriminator_head")

    @property
    def is_static(self) -> bool:
        return self.masking_mode == "static"

    def rates(self, progress: float, causal_share: float | None) -> dict[str, float]:
        if not self.causal_share or progress >= self.discriminator_after:
            return {}
        return {CAUSAL_SHARE: self.causal_share if causal_share is None else causal_share}

    @property
    def predicts_tokens(self) -> bool:
        """Whether the discriminator predicts tokens, in place of detecting which were replaced."""
        return self.variant in ("replace_mlm", "all_tokens_mlm")

    @property
    def stages(self) -> tuple[float, ...]:
        if self.schedule == "two_stage":
            return 0.5, 1.0
        return (self.discriminator_after, 1.0) if self.discriminator_after else (1.0,)

    def why_not_trained(self, family: Family, init_from: str | None) -> str | None:
        return why_not_left_to_right(self, self.causal_share, family, init_from)

    @property
    def why_large_gradients(self) -> str:
        if self.schedule != "joint" or self.predicts_tokens:
            return ""
        return f", and for a discriminator whose loss counts {self.discriminator_weight:g}-fold"

    def unusual(self) -> Iterator[Remark]:
        return unusual_share(self.target_prob)

    @model_validator(mode="after")
    def _every_key_has_an_effect(self) -> ReplacedTokenSettings:
        joint = ("schedule", "joint")
        refuse_without_effect(self, {"discriminator_weight": joint, "discriminator_after": joint, "tie_weights": joint})
        if self.discriminator_weight != 50 and self.predicts_tokens:
            raise ValueError(
                f"discriminator_weight {self.discriminator_weight:g} has no effect with variant {self.variant}, whose "
                "losses count once: leave it out"
            )
        if self.tie_weights and (self.generator_size != 1 or self.tie_embeddings == "none"):
            raise ValueError(
                f"tie_weights true makes generator and discriminator one encoder, and generator_size is "
                f"{self.generator_size:g}, tie_embeddings {self.tie_embeddings}: set objective.generator_size=1 and "
                "objective.tie_embeddings=all"
            )
        if self.causal_share and not self.discriminator_after:
            raise ValueError(
                f"causal_share {self.causal_share:g} is for a generator that learns alone, and discriminator_after is "
                "0: set objective.discriminator_after=.3, or leave out causal_share"
            )
        return self

    @model_validator(mode="after")
    def _stages_fit(self) -> ReplacedTokenSettings:
        if self.schedule == "two_stage" and self.generator_size != 1:
            raise ValueError(
                f"schedule two_stage starts the discriminator from the generator's weights, and generator_size "
                f"{self.generator_size} makes them of unequal sizes: set objective.generator_size=1"
            )
        return self
