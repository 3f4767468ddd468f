"""Either generation of the `tokenizers` library, behind the part of the older one's interface that this package uses.

With versions up to 0.23 a tokenizer can be taken apart and trained. The release candidates of 1.0 only offer a
tokenizer that encodes and decodes, several times faster: with them everything here works except training.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import tokenizers
from tokenizers import Tokenizer

from unmask.errors import ModelError, SettingsError
from unmask.tokenization.definition import Definition, make_definition

CAN_TRAIN = hasattr(Tokenizer, "from_str")
"""True for the older generation."""


def open_definition(definition: Definition, where: object = "the tokenizer") -> Tokenizer:
    """Opens a definition, without its truncation and padding.

    Raises:
        ModelError: the library rejects it, or encodes wrongly with it.
    """
    text = json.dumps(definition | {"truncation": None, "padding": None}, ensure_ascii=False)
    try:
        if CAN_TRAIN:
            return Tokenizer.from_str(text)
        opened = cast(Tokenizer, Pipeline(text))
    except Exception as error:  # the library raises nothing more specific
        raise ModelError(f"{where} is not a tokenizer that this version can open: {error}") from error
    _refuse_lost_marks(opened, definition, where)
    return opened


def word_splitter(normalizer: Definition | None, pre_tokenizer: Definition) -> Callable[[str], list[str]]:
    """A function that splits a text into words, as encoding does before it applies the model.

    Raises:
        SettingsError: the library installed is of the generation that cannot train.
    """
    if not CAN_TRAIN:
        raise SettingsError(
            f"tokenizers {tokenizers.__version__} cannot train: install an older one to train with "
            "(pip install 'tokenizers<1'); what it makes encodes the same under both"
        )
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


@dataclass(frozen=True)
class AddedToken:
    """A token that is looked for before anything else."""

    content: str
    special: bool


class Pipeline:
    """A tokenizer of the newer generation, with the methods of the older one that this package calls.

    Attributes:
        encode_special_tokens: True reads special tokens in a text as ordinary characters.
        normalizer: always None: this generation does not show it.
    """

    normalizer = None

    def __init__(self, definition: str) -> None:
        self._definition = definition
        self.encode_special_tokens = False
        with tempfile.TemporaryDirectory() as directory:  # it only opens files
            path = Path(directory) / "tokenizer.json"
            path.write_text(definition, encoding="utf-8")
            self._opened: Any = Tokenizer.from_file(str(path))

    def to_str(self) -> str:
        """The definition."""
        return self._definition

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]:
        """Entry -> id."""
        definition = json.loads(self._definition)
        added = {token["content"]: token["id"] for token in definition["added_tokens"]}
        return dict(definition["model"]["vocab"]) | (added if with_added_tokens else {})

    def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
        """Id -> added token."""
        tokens = json.loads(self._definition)["added_tokens"]
        return {token["id"]: AddedToken(token["content"], token["special"]) for token in tokens}

    def encode_batch_fast(self, texts: Sequence[Any], add_special_tokens: bool = True) -> list[Any]:
        """Encodings with `ids` and `type_ids`."""
        encoded: list[Any] = self._opened.encode_batch(
            list(texts), add_special_tokens=add_special_tokens, encode_special_tokens=self.encode_special_tokens
        )
        return encoded

    encode_batch = encode_batch_fast

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of some ids."""
        return str(self._opened.decode(ids, skip_special_tokens=skip_special_tokens))


def _refuse_lost_marks(opened: Tokenizer, definition: Definition, where: object) -> None:
    """Raises ModelError if a word of one letter loses its end-of-word mark, as with 1.0.0rc3."""
    model = definition["model"]
    mark = model.get("end_of_word_suffix")
    if not mark:
        return
    letters = (entry for entry in model["vocab"] if len(entry) == 1 and f"{entry}{mark}" in model["vocab"])
    for letter in letters:
        [encoding] = opened.encode_batch_fast([letter], add_special_tokens=False)
        if encoding.ids == [model["vocab"][letter]]:
            raise ModelError(
                f"{where}: tokenizers {tokenizers.__version__} encodes words of one letter without their end-of-word "
                "mark, so a BPE vocabulary of GPT-1's kind is not safe with it: pip install 'tokenizers<1'"
            )
        if encoding.ids == [model["vocab"][f"{letter}{mark}"]]:
            return
