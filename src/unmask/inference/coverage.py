"""How much of some texts a vocabulary covers, and a warning where that is little."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.tasks.base import ExampleCounts
from unmask.tokenization.opening import Tokenizer

logger = logging.getLogger("unmask")

MOST_UNKNOWN, MANY_UNKNOWN = 0.05, 3
"""Share of unknown tokens above which a warning says that the vocabulary does not cover the texts, and the least number
of them: one strange word says nothing of a language."""

WARNED_OF: set[str] = set()
"""Fingerprints of the tokenizers that this process has warned of: every fold of a cross-validation opens them again."""


@dataclass
class Coverage:
    """A running count of how much of some texts a vocabulary covers; a byte-level one covers everything.

    Attributes:
        tokenizer: the one with the vocabulary.
        name: what the warning calls the texts.
        tokens: of the texts, each as often as a model reads it; the special tokens around them do not count.
        unknown: how many of them are `[UNK]`.
    """

    tokenizer: Tokenizer
    name: str
    tokens: int = 0
    unknown: int = 0
    _has_warned: bool = False

    def add(self, input_ids: NDArray[np.int32]) -> None:
        """Counts the tokens of rows; warns where `MANY_UNKNOWN` are unknown, and over `MOST_UNKNOWN` of all, once
        of each tokenizer."""
        if self.tokenizer.unk_id is None:
            return
        special_ids = [index for index in self.tokenizer.special_ids if index != self.tokenizer.unk_id]
        self.tokens += int((~np.isin(input_ids, special_ids)).sum())
        self.unknown += int((input_ids == self.tokenizer.unk_id).sum())
        is_much = self.unknown >= MANY_UNKNOWN and self.unknown > MOST_UNKNOWN * self.tokens
        if is_much and not self._has_warned:
            self._has_warned = True
            if (vocabulary := self.tokenizer.fingerprint()) in WARNED_OF:
                return
            WARNED_OF.add(vocabulary)
            logger.warning(
                "%s: %.0f %% of the tokens (%s of %s) are %s: the vocabulary does not cover these texts, and all "
                "such tokens are the same to the model. Is the tokenizer one of another language? Take a model whose "
                "tokenizer was made for such texts, or train one (`unmask tokenizer train`)",
                self.name,
                100 * self.unknown / self.tokens,
                f"{self.unknown:,}",
                f"{self.tokens:,}",
                self._unknown_token,
            )

    def note(self, counts: ExampleCounts) -> None:
        """Adds the number of unknown tokens to the summary of `counts`; it is no reason of its own to warn."""
        if self.unknown:
            counts.unknown = f"{self.unknown:,} of {self.tokens:,} tokens not in the vocabulary ({self._unknown_token})"

    @property
    def _unknown_token(self) -> str:
        unknown = self.tokenizer.unk_id
        return "" if unknown is None else self.tokenizer.token_strings[unknown]
