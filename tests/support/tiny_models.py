"""Sizes of the encoders that tests make: as small as shows what is tested."""

from __future__ import annotations

from typing import Any

from unmask.models.settings import EncoderSettings


def tiny(vocab_size: int, **others: Any) -> EncoderSettings:
    """A BERT of two layers of 32, with 2 heads and 64 positions, but for what is given."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return EncoderSettings(vocab_size=vocab_size, **{**sizes, "max_position_embeddings": 64, **others})
