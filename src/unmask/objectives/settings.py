"""Settings of the pre-training objectives."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from unmask.config import Settings


class MaskedLMSettings(Settings):
    """Masked language modelling, with or without next-sentence prediction (BERT, section 3.1)."""

    name: Literal["masked_lm"] = "masked_lm"

    masking: Literal["token", "whole_word"] = "token"
    """What is chosen together: single tokens, or all pieces of a word."""

    masking_mode: Literal["dynamic", "static"] = "dynamic"
    """`dynamic`: new masks in every epoch; `static`: ten masked copies, shown in turn (RoBERTa, section 4.1)."""

    sentence_objective: Literal["none", "nsp"] = "nsp"
    """`nsp`: also predict whether segment B follows segment A."""

    target_prob: float = Field(0.15, gt=0, le=1)
    """Share of a sequence's tokens that become targets."""

    mask_token_prob: float = Field(0.8, ge=0, le=1)
    """Share of the targets replaced by `[MASK]`."""

    random_token_prob: float = Field(0.1, ge=0, le=1)
    """Share of the targets replaced by a random entry of the vocabulary; the rest stay as they are."""

    @model_validator(mode="after")
    def _shares_fit(self) -> MaskedLMSettings:
        if self.mask_token_prob + self.random_token_prob > 1 + 1e-9:
            raise ValueError(
                f"mask_token_prob {self.mask_token_prob} + random_token_prob {self.random_token_prob} is over 1: "
                "the rest is the share that stays unchanged"
            )
        return self
