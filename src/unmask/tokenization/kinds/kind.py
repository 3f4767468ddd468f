"""What distinguishes the kinds of tokenizers: special tokens, steps of encoding, and how they learn.

Each kind has a `TokenizerKind` in its own module: `wordpiece`, `bpe`, `byte_bpe`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from unmask.tokenization.settings import TokenizerSettings

Split = Callable[[str], list[str]]
"""Text -> its words, normalised."""


@dataclass(frozen=True)
class Learned:
    """The result of learning."""

    entries: list[str]  # the vocabulary without special tokens, in the order of the ids
    # the pairs of entries that are joined, in the order learned; None for WordPiece, which has none
    merges: list[tuple[str, str]] | None = None

    @classmethod
    def of_merges(cls, base: list[str], merges: list[tuple[str, str]]) -> Learned:
        """The base, then one entry per merge, without repetitions: two merges may make the same entry."""
        return cls(list(dict.fromkeys([*base, *map("".join, merges)])), merges)


class Grow(Protocol):
    """Grows a vocabulary from its base.

    Args:
        words: words with their counts, made only of characters of the base.
        base: the entries to start from, in the order of their ids.
        num_entries: entries to reach, including those of `base`.
        min_pair_count: how often a pair must occur to be joined.
    """

    def __call__(self, words: Counter[str], base: list[str], *, num_entries: int, min_pair_count: int) -> Learned: ...


class Define(Protocol):
    """Makes the definition (`unmask.tokenization.definition`) of a tokenizer.

    Args:
        vocab: entry -> id.
        merges: as in `Learned`.
        special_tokens: role -> entry, all of them in `vocab`.
        others: further special entries.
        normalizer: the definition's first step.
    """

    def __call__(
        self,
        vocab: dict[str, int],
        merges: list[tuple[str, str]] | None,
        special_tokens: Mapping[str, str],
        others: tuple[str, ...],
        normalizer: dict[str, Any] | None,
    ) -> dict[str, Any]: ...


@dataclass(frozen=True)
class TokenizerKind:
    """One kind of tokenizer that can be trained."""

    # role in `tokenizer_config.json` -> entry, in the order of the ids; two roles may share one
    special_tokens: Mapping[str, str]
    slots_after_first: int  # how many unused slots follow the first special token; further ones follow the last
    has_segments: bool  # True if the model takes `token_type_ids`
    lowercase: bool  # whether the published tokenizer lowercases
    max_word_characters: int | None  # longer words are unknown; None if there is no limit
    # of a definition, given whether to lowercase and whether to strip accents (None: as the published tokenizer)
    normalizer: Callable[[bool, bool | None], dict[str, Any] | None]
    pre_tokenizer: dict[str, Any]  # of a definition
    # cuts a text where no word spans the cut, so that equal pre-tokens are split into words only once
    pre_tokens: Callable[[str], list[str]]
    alphabet: Callable[[Counter[str], TokenizerSettings], list[str]]  # the characters to keep, from their counts
    base: Callable[[list[str], Split], list[str]]  # the entries that need no learning, from the alphabet
    grow: Grow  # learns the other entries
    define: Define  # makes the definition of the learned tokenizer

    def reserved_entries(self, unused_slots: int, others: tuple[str, ...]) -> list[str]:
        """The entries at the beginning of a vocabulary: special tokens, unused slots, further special tokens."""
        first, *rest = dict.fromkeys(self.special_tokens.values())
        slots = [f"[unused{number}]" for number in range(unused_slots)]
        behind_first, behind_last = slots[: self.slots_after_first], slots[self.slots_after_first :]
        return [first, *behind_first, *rest, *behind_last, *others]
