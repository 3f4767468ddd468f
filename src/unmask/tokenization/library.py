"""What this package asks of the `tokenizers` library: it opens a definition, and splits a text into words."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from unmask.errors import ModelError
from unmask.tokenization.definition import Definition, make_definition


def open_definition(definition: Definition, where: object = "the tokenizer") -> Tokenizer:
    """Opens a definition, without its truncation and padding. Raises ModelError if the library rejects it."""
    text = json.dumps(definition | {"truncation": None, "padding": None}, ensure_ascii=False)
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more specific
        raise ModelError(f"{where} is not a tokenizer that this version can open: {error}") from error


def word_splitter(normalizer: Definition | None, pre_tokenizer: Definition) -> Callable[[str], list[str]]:
    """A function that splits a text into words, as encoding does before it applies the model."""
    model = {"type": "WordPiece", "unk_token": "", "continuing_subword_prefix": "", "max_input_chars_per_word": 1}
    shell = open_definition(
        make_definition(
            added_tokens=[],
            normalizer=normalizer,
            pre_tokenizer=pre_tokenizer,
            post_processor=None,
            decoder={"type": "Fuse"},
            model=model | {"vocab": {}},
        )
    )
    return partial(words_of, shell)


def words_of(backend: Tokenizer, text: str) -> list[str]:
    """The words that a tokenizer sees in a text, normalised, before it applies the model."""
    normalizer, pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    normalized = text if normalizer is None else normalizer.normalize_str(text)
    return [normalized] if pre_tokenizer is None else [word for word, _ in pre_tokenizer.pre_tokenize_str(normalized)]


def inside_words(backend: Tokenizer) -> WordPiece:
    """WordPiece's rule as it works inside a word: of entries that continue one."""
    model = json.loads(backend.to_str())["model"]
    prefix, unknown = model["continuing_subword_prefix"], model["unk_token"]
    continuing = {entry: index for entry, index in model["vocab"].items() if entry.startswith(prefix)}
    begins = {entry.removeprefix(prefix): index for entry, index in continuing.items()}
    return WordPiece(
        begins | continuing | {unknown: model["vocab"][unknown]},
        unk_token=unknown,
        max_input_chars_per_word=model["max_input_chars_per_word"],
        continuing_subword_prefix=prefix,
    )
