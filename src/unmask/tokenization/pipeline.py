"""BERT's text pipeline, from characters to pieces of words, and the files of a tokenizer's directory.

Devlin et al. (2019), section 3, and the released code's `tokenization.py`: clean, set Han characters apart, lowercase
and strip accents (uncased only), split at white space and punctuation, then the longest matching entry first (Wu et al.
2016). What is trained here departs in one thing: the text is composed (NFC) afterwards. Stripping accents decomposes
the text, which leaves Hangul in pieces of syllables; composing mends it, and lets decomposed accents match in the cased
form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import NFC, BertNormalizer, Normalizer
from tokenizers.normalizers import Sequence as NormalizerSequence
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

CONTINUATION_PREFIX = "##"
MAX_WORD_CHARACTERS = 100
"""A longer word becomes one `[UNK]`."""

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
"""Role in `tokenizer_config.json` -> BERT's entry, in the order of the ids that a trained vocabulary gives them."""


def make_normalizer(
    lowercase: bool, compose: bool, strip_accents: bool | None = None, split_han: bool = True
) -> Normalizer:
    """BERT's normaliser.

    Args:
        lowercase: True for an uncased vocabulary.
        compose: True ends with NFC, as in all that is trained here; False is exactly what Google released.
        strip_accents: None does it where `lowercase`.
        split_han: True sets spaces around Han characters.
    """
    bert = BertNormalizer(
        clean_text=True, handle_chinese_chars=split_han, strip_accents=strip_accents, lowercase=lowercase
    )
    return NormalizerSequence([bert, NFC()]) if compose else bert


def make_backend(vocab: dict[str, int], normalizer: Normalizer, special_tokens: Mapping[str, str]) -> Tokenizer:
    """Assembles a tokenizer that frames its input as `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

    Args:
        vocab: entry -> id.
        normalizer: see `make_normalizer`.
        special_tokens: the entries by role, as `SPECIAL_TOKENS`; all of them in `vocab`.
    """
    unk, cls, sep = special_tokens["unk_token"], special_tokens["cls_token"], special_tokens["sep_token"]
    backend = Tokenizer(
        WordPiece(
            vocab,
            unk_token=unk,
            max_input_chars_per_word=MAX_WORD_CHARACTERS,
            continuing_subword_prefix=CONTINUATION_PREFIX,
        )
    )
    backend.normalizer = normalizer
    backend.pre_tokenizer = BertPreTokenizer()
    backend.decoder = WordPieceDecoder(prefix=CONTINUATION_PREFIX)
    backend.post_processor = TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, vocab[cls]), (sep, vocab[sep])],
    )
    backend.add_special_tokens(sorted(special_tokens.values(), key=vocab.__getitem__))
    return backend


def directory_files(
    backend: Tokenizer, special_tokens: Mapping[str, str], config: Mapping[str, object]
) -> dict[str, bytes]:
    """The files of a tokenizer's directory, by name.

    Args:
        backend: as from `make_backend`.
        special_tokens: the entries by role.
        config: what `tokenizer_config.json` states beside the special tokens: `tokenizer_class` ...
    """
    vocab = backend.get_vocab()
    model_inputs = ["input_ids", "token_type_ids", "attention_mask"]
    full_config = {"model_input_names": model_inputs, "clean_up_tokenization_spaces": False, **special_tokens, **config}
    return {
        "tokenizer.json": (backend.to_str(pretty=True) + "\n").encode(),
        "tokenizer_config.json": _json_bytes(full_config),
        "special_tokens_map.json": _json_bytes(special_tokens),
        "vocab.txt": "".join(f"{entry}\n" for entry in sorted(vocab, key=vocab.__getitem__)).encode(),
    }


def _json_bytes(value: Mapping[str, object]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()
