"""Settings of a tokenizer to train, without heavy imports, so that reading a recipe stays quick."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from unmask.config import Settings


class TokenizerSettings(Settings):
    """What kind of tokenizer to train, and on how much text.

    Attributes:
        kind: a key of `unmask.tokenization.learning.train.TOKENIZERS`; or `word`, for ELMo: whole words, read by their
            characters; the vocabulary then holds only the words that are predicted.
        vocab_size: entries, special tokens and unused slots included; 30,522 is what Devlin et al. (2019) released. A
            text too small to fill it gives fewer, as the training report says.
        num_merges: merges to learn, for `bpe` and `byte_bpe`; if given, it replaces `vocab_size`, and the entries are
            those of the alphabet, the special tokens and one per merge (Radford et al. 2018: 40,000).
        lowercase: True lowercases; False keeps the case. None does as the kind's published tokenizer: True for
            `wordpiece` and `bpe`, False for `byte_bpe` and `word`.
        strip_accents: for `wordpiece` and `bpe`. True takes marks away from letters (Unicode's category Mn, which has
            many vowels of Hindi and Thai too); False keeps them. None strips where text is lowercased, as BERT.
        segmenter: a key of `unmask.corpus.segmenters.SEGMENTERS`, which puts spaces between the morphemes of a
            text before any other step; "none" leaves the text unchanged.
        unused_slots: entries `[unused0]` ..., kept free for tokens that are added after pre-training.
        extra_special_tokens: further special tokens, such as `[ENT]`.
        sample_bytes: most bytes of UTF-8 text to learn from. From a larger corpus a uniform sample of whole documents
            is taken, as a rule between half of this size and all of it; with few, long documents less, and a single one
            may exceed it. 100 MB need about 0.4 GB of memory for English and 1.2 GB for Korean, which has more distinct
            words; `byte_bpe` 0.6 GB and 3 GB.
        alphabet_size: most characters to keep, the most frequent first; None takes 1,000, or 6,000 if Hangul or Han
            is present. `byte_bpe` always has the 256 bytes.
        min_character_count: how often a character must occur to be kept.
        min_pair_count: how often two neighbouring pieces must occur to be joined into a new entry.
        model_max_length: in tokens, as written into `tokenizer_config.json`.
    """

    kind: Literal["wordpiece", "bpe", "byte_bpe", "word"] = "wordpiece"
    vocab_size: int = Field(default=30522, ge=8, le=1_000_000)
    num_merges: int | None = Field(default=None, ge=1, le=1_000_000)
    lowercase: bool | None = None
    strip_accents: bool | None = None
    segmenter: Literal["none", "kiwi"] = "none"
    unused_slots: int = Field(default=0, ge=0, le=100_000)
    extra_special_tokens: tuple[str, ...] = ()
    sample_bytes: int = Field(default=100_000_000, ge=1)
    alphabet_size: int | None = Field(default=None, ge=1)
    min_character_count: int = Field(default=3, ge=1)
    min_pair_count: int = Field(default=2, ge=1)
    model_max_length: int = Field(default=512, ge=3)

    @field_validator("extra_special_tokens")
    @classmethod
    def _tokens_are_distinct(cls, tokens: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(tokens)) < len(tokens) or any(not token or token != token.strip() for token in tokens):
            raise ValueError("expected different tokens, none empty and none with white space around it")
        return tokens

    @model_validator(mode="after")
    def _merges_are_of_bpe(self) -> TokenizerSettings:
        if self.num_merges is not None and self.kind in ("wordpiece", "word"):
            raise ValueError(f"num_merges is for the kinds bpe and byte_bpe: give vocab_size for {self.kind}")
        return self

    @model_validator(mode="after")
    def _accents_are_of_words(self) -> TokenizerSettings:
        if self.strip_accents is not None and self.kind not in ("wordpiece", "bpe"):
            raise ValueError(f"strip_accents is for the kinds wordpiece and bpe: {self.kind} always keeps accents")
        return self


PRESETS: dict[str, TokenizerSettings] = {
    "bert": TokenizerSettings(vocab_size=30522, unused_slots=994),
    "bert-cased": TokenizerSettings(vocab_size=28996, lowercase=False, unused_slots=101),
    "roberta": TokenizerSettings(kind="byte_bpe", vocab_size=50265),
    "gpt1": TokenizerSettings(kind="bpe", num_merges=40000),
    "elmo": TokenizerSettings(kind="word", vocab_size=793471),
}
"""The sizes of the released vocabularies: Devlin et al. (2019), Liu et al. (2019), Radford et al. (2018), Peters et al.
(2018)."""
