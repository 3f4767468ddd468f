"""BPE with a mark at the end of a word, as in GPT-1 (Radford et al. 2018, section 4.1: 40,000 merges).

Text goes through BERT's normaliser and splitting, as in `transformers`; the released code cleans with ftfy and splits
with spaCy instead, so its tokens differ where these do. An unknown character alone becomes `<unk>`. Tokenizers trained
here compose the normalised text (NFC), as with WordPiece.

The published vocabulary has only `<unk>`. The released code appends `_start_`, `_delimiter_` and `_classify_` for
fine-tuning, and makes of a text start, text, extract and of a pair start, text, delimiter, text, extract. Tokenizers
trained here have them in the roles bos, sep and cls; the one saved with a pre-trained model does not use them
(`unmask.tokenization.gpt1_template`).
`<pad>` is for users of padded batches. There is no mask token: GPT-1 predicts the next token, and has no use for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from unmask.tokenization.definition import (
    Definition,
    bert_normalizer,
    bpe_model,
    make_definition,
    special_added_tokens,
    template,
)
from unmask.tokenization.kinds.alphabet import choose_alphabet
from unmask.tokenization.kinds.kind import Split, TokenizerKind
from unmask.tokenization.learning.library_training import grow_bpe

END_OF_WORD = "</w>"

PRE_TOKENIZER = {"type": "BertPreTokenizer"}

SPECIAL_TOKENS = {
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "bos_token": "_start_",
    "sep_token": "_delimiter_",
    "cls_token": "_classify_",
}

ROLES = ("bos_token", "sep_token", "cls_token")
"""The roles of start, delimiter and extract."""


def define(
    vocab: dict[str, int],
    merges: list[tuple[str, str]] | None,
    special_tokens: Mapping[str, str],
    others: tuple[str, ...],
    normalizer: Definition | None,
) -> Definition:
    """The definition of a tokenizer, with a special-token template if it has the three tokens for fine-tuning."""
    return make_definition(
        added_tokens=special_added_tokens(vocab, [*special_tokens.values(), *others]),
        normalizer=normalizer,
        pre_tokenizer=PRE_TOKENIZER,
        post_processor=gpt1_template(vocab, special_tokens) if set(ROLES) <= set(special_tokens) else None,
        decoder={"type": "BPEDecoder", "suffix": END_OF_WORD},
        model=bpe_model(vocab, merges or (), special_tokens["unk_token"], END_OF_WORD),
    )


def gpt1_template(vocab: Mapping[str, int], special_tokens: Mapping[str, str]) -> Definition:
    """The post-processor for fine-tuning."""
    start, delimiter, extract = (special_tokens[role] for role in ROLES)
    return template(vocab, f"{start}:0 $A:0 {extract}:0", f"{start}:0 $A:0 {delimiter}:0 $B:0 {extract}:0")


def _base(alphabet: list[str], split: Split) -> list[str]:
    """The characters, then each as the end of a word, like the beginning of the published vocabulary."""
    return [*alphabet, *(f"{character}{END_OF_WORD}" for character in alphabet)]


BPE = TokenizerKind(
    special_tokens=SPECIAL_TOKENS,
    slots_after_first=0,
    has_segments=False,
    lowercase=True,
    max_word_characters=None,
    normalizer=partial(bert_normalizer, compose=True),
    pre_tokenizer=PRE_TOKENIZER,
    pre_tokens=str.split,
    alphabet=choose_alphabet,
    base=_base,
    grow=partial(grow_bpe, suffix=END_OF_WORD),
    define=define,
)
