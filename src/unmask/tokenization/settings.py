"""Settings of a tokenizer that is to be trained; free of everything heavy, so that reading a recipe stays quick."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from unmask.config import Settings


class TokenizerSettings(Settings):
    """What kind of tokenizer to train, and on how much text.

    Attributes:
        kind: a key of `unmask.tokenization.train.TOKENIZERS`.
        vocab_size: entries, special tokens included; 30,522 is what Devlin et al. (2019) released. A text too small
            to fill it gives fewer, which the training report tells.
        lowercase: True lowercases and strips accents (BERT uncased); False keeps both (BERT cased).
        sample_bytes: bytes of UTF-8 text to learn from at most. Of a larger corpus a uniform sample of the documents
            is taken, between half of this and all of it. 100 MB need about 0.4 GB of memory for English and 1.2 GB
            for Korean, which has more distinct words.
        alphabet_size: most characters to keep, the most frequent first; None takes 1,000, or 6,000 where Hangul or Han
            is present.
        min_character_count: times that a character must be seen to be kept.
        min_pair_count: times that two neighbouring pieces must be seen to be joined into a new entry.
        model_max_length: tokens, as written into `tokenizer_config.json`.
    """

    kind: Literal["wordpiece"] = "wordpiece"
    vocab_size: int = Field(30522, ge=8, le=1_000_000)
    lowercase: bool = True
    sample_bytes: int = Field(100_000_000, ge=1)
    alphabet_size: int | None = Field(None, ge=1)
    min_character_count: int = Field(3, ge=1)
    min_pair_count: int = Field(2, ge=1)
    model_max_length: int = Field(512, ge=3)
