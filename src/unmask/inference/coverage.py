"""How much of some texts a vocabulary covers, and a warning where that is little."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unmask.tasks.base import ExampleCounts
from unmask.tokenization.offsets import align
from unmask.tokenization.opening import Tokenizer

logger = logging.getLogger("unmask")

TokenIds = Sequence[int] | NDArray[Any]

MOST_UNKNOWN, MANY_UNKNOWN = 0.05, 3
"""Share of unknown tokens above which a warning says that the vocabulary does not cover the texts, and the least number
of them: one strange word says nothing of a language."""

_LONGEST = 40
"""Characters of an example."""

WARNED_OF: set[str] = set()
"""Fingerprints of the tokenizers that this process has warned of: every fold of a cross-validation opens them again."""


@dataclass
class Coverage:
    """A running count of how much of some texts a vocabulary covers; a byte-level one covers everything.

    Attributes:
        tokenizer: the one with the vocabulary.
        name: what the warning calls the texts.
        counts: what else is counted of them, by whoever reads them.
        tokens: of the texts, each as often as a model reads it; the special tokens around them do not count.
        unknown: how many of them are `[UNK]`.
        lost: how many texts, or windows of longer ones, have no other token.
    """

    tokenizer: Tokenizer
    name: str
    counts: ExampleCounts = field(default_factory=ExampleCounts)
    tokens: int = 0
    unknown: int = 0
    lost: int = 0
    _has_warned: bool = False

    def add(self, input_ids: NDArray[np.int32], bounds: ArrayLike, texts: Sequence[str]) -> None:
        """Counts the tokens of rows; warns where `MANY_UNKNOWN` are unknown, and over `MOST_UNKNOWN` of all, once
        of each tokenizer.

        Args:
            input_ids: of the rows, one after another.
            bounds: where each row begins.
            texts: that the rows are of, for an example in the warning.
        """
        if self.tokenizer.unk_id is None:
            return
        is_unknown: NDArray[np.bool_] = input_ids == self.tokenizer.unk_id
        is_own = ~np.isin(input_ids, self.tokenizer.special_ids) | is_unknown
        self.tokens += int(is_own.sum())
        if not is_unknown.any():
            return
        self.unknown += int(is_unknown.sum())
        self.lost += _num_lost(is_own, is_unknown, np.asarray(bounds))
        is_much = self.unknown >= MANY_UNKNOWN and self.unknown > MOST_UNKNOWN * self.tokens
        if is_much and not self._has_warned:
            self._has_warned = True
            if (vocabulary := self.tokenizer.fingerprint()) in WARNED_OF:
                return
            WARNED_OF.add(vocabulary)
            example = self._example(texts)
            logger.warning(
                "%s: %.0f %% of the tokens (%s of %s) are %s%s: the vocabulary does not cover these texts, and all "
                "such tokens are the same to the model. Take a model whose tokenizer was made for such texts, or train "
                "one (`unmask tokenizer train`); a blank before a strange sign saves the word beside it",
                self.name,
                100 * self.unknown / self.tokens,
                f"{self.unknown:,}",
                f"{self.tokens:,}",
                self._unknown_token,
                f", such as {example[:_LONGEST]!r}" if example else "",
            )

    def log(self) -> None:
        """Logs the summary of `counts` with what `note` adds to it."""
        self.note()
        self.counts.log(self.name)

    def note(self) -> None:
        """Adds to the summary of `counts` the number of unknown tokens, which is no reason of its own to warn; and
        where there was no warning of the tokenizer, how many texts have no other token, which is."""
        if self.unknown:
            self.counts.unknown = (
                f"{self.unknown:,} of {self.tokens:,} tokens not in the vocabulary ({self._unknown_token})"
            )
        if self.lost and self.tokenizer.fingerprint() not in WARNED_OF:
            rows = "text or window" if self.lost == 1 else "texts or windows"
            self.counts.note(f"{rows} read as {self._unknown_token} alone", self.lost)

    def _example(self, texts: Sequence[str]) -> str:
        """The first unknown piece of some texts; empty if none has any."""
        for text in texts:
            [its] = align(self.tokenizer, [text])
            unknown = [place for place, token in enumerate(its.ids) if token == self.tokenizer.unk_id]
            if unknown:
                return text[its.starts[unknown[0]] : its.ends[unknown[0]]]
        return ""

    def add_texts(self, encoded: Sequence[TokenIds], texts: Sequence[str]) -> None:
        """The same of texts by themselves."""
        ids = np.concatenate([np.zeros(0, np.int32), *(np.asarray(each, np.int32) for each in encoded)])
        self.add(ids, np.cumsum([0, *map(len, encoded)]), texts)

    def of_each(self, encoded: Sequence[TokenIds]) -> list[int] | None:
        """How many tokens of each of some texts are unknown, added to nothing; None where no token is ever unknown."""
        unknown = None if self.tokenizer.reads_words else self.tokenizer.unk_id
        return None if unknown is None else [int(np.count_nonzero(np.asarray(ids) == unknown)) for ids in encoded]

    @property
    def _unknown_token(self) -> str:
        unknown = self.tokenizer.unk_id
        return "" if unknown is None else self.tokenizer.token_strings[unknown]


def _num_lost(is_own: NDArray[np.bool_], is_unknown: NDArray[np.bool_], bounds: NDArray[np.int64]) -> int:
    """How many texts have unknown tokens alone; special tokens divide a row into texts."""
    begins = ~is_own
    begins[bounds[bounds < len(begins)]] = True
    number = begins.cumsum()  # of the text that a token is in
    own, unknown = (np.bincount(number[each], minlength=number[-1] + 1) for each in (is_own, is_unknown))
    return int(((own > 0) & (own == unknown)).sum())
