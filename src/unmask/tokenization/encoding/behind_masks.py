"""What stands directly behind a mask continues its word, as it does in the text that a model has learnt from."""

from __future__ import annotations

from itertools import pairwise

import tokenizers

from unmask.tokenization.library import words_of
from unmask.tokenization.offsets import AlignedText
from unmask.tokenization.tokenizer import TextTokenizer


def continuing_ids(tokenizer: TextTokenizer, text: str, aligned: AlignedText) -> list[int]:
    """The ids of a text in which what stands directly behind a mask, up to the end of the word, is cut into entries
    that continue one: `[MASK] ##에서` for `[MASK]에서`. The library begins a word behind every special token.

    Ids are as they were where a letter in the mask's place would not be of one word with what follows (`.`, an
    ideograph), where an ideograph is directly before the mask, which then hides another one, where the vocabulary
    cannot continue a word so, and for tokenizers that mark a word's beginning, or put morphemes apart.
    """
    if tokenizer.kind != "wordpiece" or tokenizer.segmenter != "none":
        return aligned.ids
    masks = [index for index, token in enumerate(aligned.ids) if token == tokenizer.mask_id]
    ids = aligned.ids[: masks[0] + 1] if masks else aligned.ids[:]
    for index, following in pairwise([*masks, len(aligned)]):
        limit = aligned.starts[following] if following < len(aligned) else len(text)
        after = text[aligned.ends[index] : limit]
        begun = aligned.ids[index + 1 : following + 1]
        before = text[: aligned.starts[index]][-1:]
        if after and not after[0].isspace() and not (before.isalpha() and not _joins(tokenizer.backend, before, "a")):
            word = _continuing_word(tokenizer.backend, after.split(maxsplit=1)[0])
            replaced = [token.id for token in tokenizer.backend.model.tokenize(word)]
            if replaced == begun[: len(replaced)]:
                inside = [token.id for token in tokenizer.inside_words.tokenize(word)]
                begun[: len(replaced)] = replaced if tokenizer.unk_id in inside else inside
        ids += begun
    return ids


def _joins(backend: tokenizers.Tokenizer, before: str, after: str) -> bool:
    """Whether two texts directly behind each other are of one word where they meet, as two letters are."""
    return len(words_of(backend, before + after)) < len(words_of(backend, before)) + len(words_of(backend, after))


def _continuing_word(backend: tokenizers.Tokenizer, text: str) -> str:
    """What would be of one word with a letter directly before it; empty where nothing would."""
    return words_of(backend, text)[0] if _joins(backend, "a", text) else ""
