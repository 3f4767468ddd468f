"""Sizes of small encoders under short names, since many tests state them."""

from __future__ import annotations

from typing import Any

from unmask.models.elmo.settings import ElmoSettings
from unmask.models.settings import EncoderSettings

NAMES = {
    "vocab": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "positions": "max_position_embeddings",
    "std": "initializer_range",
}


def sizes_of(*, dropout: float | None = None, **given: Any) -> dict[str, Any]:
    """Fields of `EncoderSettings` from values under their names or short ones; `dropout` is that of both kinds."""
    kinds = () if dropout is None else ("hidden_dropout_prob", "attention_probs_dropout_prob")
    return {NAMES.get(name, name): value for name, value in given.items()} | dict.fromkeys(kinds, dropout)


def small(**given: Any) -> EncoderSettings:
    """The settings of these sizes."""
    return EncoderSettings(**sizes_of(**given))


def tiny(vocab_size: int, **others: Any) -> EncoderSettings:
    """A BERT of two layers of 32, with 2 heads and 64 positions, but for what is given."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return EncoderSettings(vocab_size=vocab_size, **{**sizes, "max_position_embeddings": 64, **others})


def small_elmo(**changes: Any) -> ElmoSettings:
    sizes = {"vocab_size": 10, "max_characters": 8, "character_size": 3, "projection_size": 5, "cell_size": 6}
    return ElmoSettings(**{**sizes, "filters": ((1, 4), (2, 4)), **changes})
