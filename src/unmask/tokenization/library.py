"""What this package asks of the `tokenizers` library: it opens a definition, and splits a text into words."""

from __future__ import annotations

import json
from collections.abc import Callable

from tokenizers import Tokenizer

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
    first, second = shell.normalizer, shell.pre_tokenizer
    assert second is not None

    def split(text: str) -> list[str]:
        return [word for word, _ in second.pre_tokenize_str(text if first is None else first.normalize_str(text))]

    return split
