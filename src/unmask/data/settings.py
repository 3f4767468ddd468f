"""Settings of packing: how documents become sequences."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from unmask.config import Settings


class PackingSettings(Settings):
    """How documents become sequences (BERT, appendix A.2)."""

    format: Literal["segment_pair"] = "segment_pair"
    """`segment_pair`: `[CLS] A [SEP] B [SEP]`, each segment a run of sentences."""

    max_length: int = Field(128, ge=8)
    """Tokens in a sequence, special ones included."""

    short_sequence_prob: float = Field(0.1, ge=0, le=1)
    """Share of sequences whose target length is drawn evenly between 2 and the longest."""

    copies: int | None = Field(None, ge=1)
    """Epoch e repeats the sequences of epoch e modulo `copies`; null draws new ones in every epoch."""
