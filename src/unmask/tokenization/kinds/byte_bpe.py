"""BPE over the 256 bytes of UTF-8, as in GPT-2 and RoBERTa (Radford et al. 2019, 2.2; Liu et al. 2019, 4.4).

No text is unknown, and decoding gives back what was encoded, to the byte; but tokenizers trained here compose a text
first (NFC), which the published ones do not: decomposed Hangul is ten times the tokens. The space before a word belongs
to it: the first word of a text, which has no space before it, is encoded differently from the same word further on. The
sentences of a store, which are encoded one by one, begin with the space before them (`unmask.store.encoding`), except
the first of a document and one that follows without a space. Counting for training reads whole documents, where a word
has its space wherever the document has one.

Special tokens are RoBERTa's, and so is the template, `<s> A </s>` and `<s> A </s></s> B </s>`. Here the mask token is
among the other special tokens, where the published vocabulary had it appended. It absorbs a space before it, since it
stands for a word with its space.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from unmask.tokenization.definition import Definition, bpe_model, make_definition, special_added_tokens
from unmask.tokenization.kinds.kind import TokenizerKind
from unmask.tokenization.learning.library_training import grow_bpe

SPECIAL_TOKENS = {
    "cls_token": "<s>",
    "pad_token": "<pad>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "bos_token": "<s>",
    "eos_token": "</s>",
}

_SHOWN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_HIDDEN = [byte for byte in range(256) if byte not in _SHOWN]
BYTE_OF = {chr(byte): byte for byte in _SHOWN} | {chr(0x100 + place): byte for place, byte in enumerate(_HIDDEN)}
"""The byte that each character represents; printable bytes represent themselves."""
BYTES = tuple(sorted(BYTE_OF))
"""The characters that represent the 256 bytes, in the order of GPT-2's ids."""

_PRE_TOKENIZER = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def define(
    vocab: dict[str, int],
    merges: list[tuple[str, str]] | None,
    special_tokens: Mapping[str, str],
    others: tuple[str, ...],
    normalizer: Definition | None,
    *,
    prefix_space: bool = False,
) -> Definition:
    """The definition of a tokenizer, with a special-token template if it has RoBERTa's special tokens.

    Args:
        vocab, merges, special_tokens, others, normalizer: see `unmask.tokenization.kinds.kind.Define`.
        prefix_space: True puts a space before a text that begins without one.
    """
    byte_level = _PRE_TOKENIZER | {"add_prefix_space": prefix_space}
    post_processor: Definition | None = None
    if {"cls_token", "sep_token"} <= set(special_tokens):
        cls, sep = special_tokens["cls_token"], special_tokens["sep_token"]
        post_processor = {
            "type": "RobertaProcessing",
            "sep": [sep, vocab[sep]],
            "cls": [cls, vocab[cls]],
            "trim_offsets": True,
            "add_prefix_space": prefix_space,
        }
    mask = [special_tokens["mask_token"]] if "mask_token" in special_tokens else []
    return make_definition(
        added_tokens=special_added_tokens(vocab, [*special_tokens.values(), *others], takes_space=mask),
        normalizer=normalizer,
        pre_tokenizer=byte_level,
        post_processor=post_processor,
        decoder=_PRE_TOKENIZER | {"add_prefix_space": True},
        model=bpe_model(vocab, merges or (), None, ""),
    )


def _normalizer(lowercase: bool, strip_accents: bool | None = None) -> Definition:
    assert strip_accents is None, "it keeps them always"
    compose = {"type": "NFC"}
    return {"type": "Sequence", "normalizers": [compose, {"type": "Lowercase"}]} if lowercase else compose


_BEFORE_WHITE_SPACE = re.compile(r"(?<=\S)(?=[ \t\n\r])")
"""Before white space that follows anything else: no word spans such a cut."""

BYTE_BPE = TokenizerKind(
    special_tokens=SPECIAL_TOKENS,
    slots_after_first=0,
    has_segments=False,
    lowercase=False,
    max_word_characters=None,
    normalizer=_normalizer,
    pre_tokenizer=_PRE_TOKENIZER,
    pre_tokens=_BEFORE_WHITE_SPACE.split,
    alphabet=lambda characters, settings: list(BYTES),  # whatever the text holds
    base=lambda alphabet, split: alphabet,
    grow=partial(grow_bpe, suffix=""),
    define=define,
)
