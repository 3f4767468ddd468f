"""Tokenizers of every kind: their common type, and how to open one from a directory."""

from __future__ import annotations

from pathlib import Path

from unmask.io.paths import TRAINING_REPORT, model_in
from unmask.tokenization.directory import KEPT_FILES, VOCABULARY_AND_MERGES, WORD_SETTINGS, WORDS_FILE
from unmask.tokenization.kinds.word_characters import WordTokenizer, is_word_tokenizer, load_word_tokenizer
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer

TOKENIZER_FILES = (*KEPT_FILES, WORDS_FILE, WORD_SETTINGS, TRAINING_REPORT)
"""All that `--overwrite` may remove of a tokenizer: a model's directory, for one, holds a tokenizer too."""

Tokenizer = TextTokenizer | WordTokenizer
"""A tokenizer of word pieces, or of words and their characters (ELMo)."""


def has_tokenizer(directory: Path) -> bool:
    """Whether a directory holds a tokenizer; that of a model saved by another program may not."""
    held = (("tokenizer.json",), ("vocab.txt",), *VOCABULARY_AND_MERGES)
    return is_word_tokenizer(directory) or any(all((directory / name).is_file() for name in names) for names in held)


def open_tokenizer(path: str | Path) -> Tokenizer:
    """Opens a tokenizer of any kind.

    Raises:
        ModelError: as in `load_tokenizer` and `load_word_tokenizer`.
    """
    path = model_in(Path(path))
    return load_word_tokenizer(path) if is_word_tokenizer(path) else load_tokenizer(path)
