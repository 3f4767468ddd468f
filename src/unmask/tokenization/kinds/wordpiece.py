"""WordPiece as in BERT (Wu et al. 2016; Devlin et al. 2019, section 3, and the released `tokenization.py`).

The steps: clean, set Han characters apart, lowercase and strip accents (uncased only), split at white space and
punctuation, then match the longest entry first. Tokenizers trained here depart in one thing: after normalisation the
text is composed (NFC). Stripping accents decomposes the text, which breaks Hangul syllables into their parts; composing
repairs that, and lets decomposed accents match in the cased form.

The library grows the vocabulary by the most frequent pair of pieces, not by the likelihood that Wu et al. describe;
their code was never released. Training leaves out every word with a character outside the alphabet, since encoding
turns the whole word into `[UNK]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from unmask.tokenization.definition import Definition, bert_normalizer, make_definition, special_added_tokens, template
from unmask.tokenization.kinds.alphabet import choose_alphabet
from unmask.tokenization.kinds.kind import Split, TokenizerKind
from unmask.tokenization.learning.library_training import grow_wordpiece

CONTINUATION_PREFIX = "##"
MAX_WORD_CHARACTERS = 100
"""A longer word becomes one `[UNK]`."""

PRE_TOKENIZER = {"type": "BertPreTokenizer"}

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def define(
    vocab: dict[str, int],
    merges: object,
    special_tokens: Mapping[str, str],
    others: tuple[str, ...],
    normalizer: Definition | None,
) -> Definition:
    """The definition of a tokenizer that makes of its input `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`."""
    cls, sep = special_tokens["cls_token"], special_tokens["sep_token"]
    return make_definition(
        added_tokens=special_added_tokens(vocab, [*special_tokens.values(), *others]),
        normalizer=normalizer,
        pre_tokenizer=PRE_TOKENIZER,
        post_processor=template(vocab, f"{cls}:0 $A:0 {sep}:0", f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1"),
        decoder={"type": "WordPiece", "prefix": CONTINUATION_PREFIX, "cleanup": True},
        model={
            "type": "WordPiece",
            "unk_token": special_tokens["unk_token"],
            "continuing_subword_prefix": CONTINUATION_PREFIX,
            "max_input_chars_per_word": MAX_WORD_CHARACTERS,
            "vocab": vocab,
        },
    )


def _base(alphabet: list[str], split: Split) -> list[str]:
    """The characters, and with the prefix those that can continue a word; punctuation and Han characters cannot."""
    # Of a to z, only "q" is composed (NFC) with no mark.
    continuing = [character for character in alphabet if split(f"q{character}") == [f"q{character}"]]
    return [*alphabet, *(f"{CONTINUATION_PREFIX}{character}" for character in continuing)]


WORDPIECE = TokenizerKind(
    special_tokens=SPECIAL_TOKENS,
    slots_after_first=99,  # Google's layout: [PAD], 99 slots, then [UNK] = 100, [CLS] = 101 ...
    has_segments=True,
    lowercase=True,
    max_word_characters=MAX_WORD_CHARACTERS,
    normalizer=partial(bert_normalizer, compose=True),
    pre_tokenizer=PRE_TOKENIZER,
    pre_tokens=str.split,
    alphabet=choose_alphabet,
    base=_base,
    grow=partial(grow_wordpiece, prefix=CONTINUATION_PREFIX),
    define=define,
)
