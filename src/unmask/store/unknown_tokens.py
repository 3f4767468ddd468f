"""How large a share of unknown tokens in a store is still usual."""

from __future__ import annotations

from unmask.store.store import TokenStore

NOTABLE, MUCH, TOO_MUCH = 0.005, 0.02, 0.1
"""Shares of `[UNK]` among tokens: for a WordPiece vocabulary trained on the same text the share is far below the first;
above the last, the text is probably in another script."""

NOTABLE_OF_WORDS, MUCH_OF_WORDS = 0.05, 0.15
"""Shares of `<UNK>` among the words of a store of words, whose vocabulary is only that of the softmax."""


def unknown_warning(store: TokenStore, *, is_own: bool = False, is_continued: bool = False) -> str | None:
    """A warning, for before pre-training, about a store with too many unknown tokens; None if there are few.

    Args:
        is_own: the tokenizer was trained for this run, on this text.
        is_continued: the run continues from a model, whose entries stay.
    """
    share = store.unknown_share
    if share <= (MUCH_OF_WORDS if store.has_words else MUCH):
        return None
    if store.has_words:
        what, kind, larger = "words of {} are unknown to its tokenizer, and <UNK> is", " --kind word", "vocabulary"
    else:
        what, kind, larger = "tokens of {} are unknown to its tokenizer, and [UNK] is", "", "alphabet"
    if is_continued:
        more = "" if store.has_words else "add words, `unmask tokenizer extend MODEL --words FILE --out DIR`, or "
        advice = f"the model's entries stay: {more}take a model of such text"
    elif is_own:
        larger = "tokenizer.vocab_size, where it is used up" if store.has_words else "tokenizer.alphabet_size"
        advice = f"give more text, or raise {larger}"
    else:
        advice = (
            f"train one on this very text with a larger {larger}, `unmask tokenizer train TEXT{kind} --out DIR`, and "
            "prepare the text with it, `unmask prepare TEXT --tokenizer DIR --out STORE`"
        )
    shown = "" if store.has_words else "; `unmask tokenizer report` shows what is missing"
    return f"{share:.1%} of the {what.format(store.directory)} all that is learnt of them: {advice}{shown}"
