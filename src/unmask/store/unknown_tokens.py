"""How large a share of unknown tokens in a store is still usual."""

from __future__ import annotations

from unmask.store.store import TokenStore

NOTABLE, MUCH, TOO_MUCH = 0.005, 0.02, 0.1
"""Shares of `[UNK]` among tokens: for a WordPiece vocabulary trained on the same text the share is far below the first;
above the last, the text is probably in another script."""

NOTABLE_OF_WORDS, MUCH_OF_WORDS = 0.05, 0.15
"""Shares of `<UNK>` among the words of a store of words, whose vocabulary is only that of the softmax."""


ADVICE = (
    "train the tokenizer on this very text, with a larger alphabet; `unmask tokenizer report` shows which scripts are "
    "missing"
)
ADVICE_OF_WORDS = "train the word tokenizer on this very text, with a larger vocabulary"


def unknown_warning(store: TokenStore) -> str | None:
    """A warning, for before pre-training, about a store with too many unknown tokens; None if there are few."""
    share = store.unknown_share
    if share <= (MUCH_OF_WORDS if store.has_words else MUCH):
        return None
    if store.has_words:
        what, unknown, advice = "words", "<UNK>", ADVICE_OF_WORDS
    else:
        what, unknown, advice = "tokens", "[UNK]", ADVICE
    return (
        f"{share:.1%} of the {what} of {store.directory} are unknown to its tokenizer, and {unknown} is all that is "
        f"learnt of them: {advice}; to continue from a model, which keeps its entries, take one of such text"
    )
