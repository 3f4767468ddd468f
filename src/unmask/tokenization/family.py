"""What sets one kind of tokenizer apart from the others: special tokens, steps of encoding, and how it learns.

A value of `Family` for each kind stands in a module of its own: `wordpiece`, `bpe`, `byte_bpe`.
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
    """What came out of learning.

    Attributes:
        entries: the vocabulary without special tokens, in the order of the ids.
        merges: the pairs of entries that are joined, the first learned first; None for WordPiece, which has none.
    """

    entries: list[str]
    merges: list[tuple[str, str]] | None = None

    @classmethod
    def of_merges(cls, base: list[str], merges: list[tuple[str, str]]) -> Learned:
        """The base, then one entry a merge; two merges may make the same."""
        return cls(list(dict.fromkeys([*base, *map("".join, merges)])), merges)


class Grow(Protocol):
    """Lets a vocabulary grow from its base.

    Args:
        words: words with their counts, made of the characters of the base alone.
        base: the entries to start from, in the order of their ids.
        num_entries: entries to reach, those of `base` included.
        min_pair_count: times that a pair must be seen to be joined.
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
class Family:
    """One kind of tokenizer that can be trained.

    Attributes:
        special_tokens: role in `tokenizer_config.json` -> entry, in the order of the ids; two roles may share one.
        slots_after_first: how many unused slots stand behind the first special token; further ones follow the last.
        has_segments: True if the model takes `token_type_ids`.
        lowercase: what the published tokenizer does.
        max_word_characters: a longer word is unknown; None where there is no such bound.
        normalizer: of a definition; takes whether to lowercase.
        pre_tokenizer: of a definition.
        stretches: cuts a text where no word stands across, so that equal stretches are split into words once.
        alphabet: the characters to keep, from how often each was seen.
        base: the entries that need no learning, from the alphabet.
        grow: learns the other entries.
        define: makes the definition of what was learned.
    """

    special_tokens: Mapping[str, str]
    slots_after_first: int
    has_segments: bool
    lowercase: bool
    max_word_characters: int | None
    normalizer: Callable[[bool], dict[str, Any] | None]
    pre_tokenizer: dict[str, Any]
    stretches: Callable[[str], list[str]]
    alphabet: Callable[[Counter[str], TokenizerSettings], list[str]]
    base: Callable[[list[str], Split], list[str]]
    grow: Grow
    define: Define

    def reserved_entries(self, unused_slots: int, others: tuple[str, ...]) -> list[str]:
        """The entries at the beginning of a vocabulary: special tokens, unused slots, further special tokens."""
        first, *rest = dict.fromkeys(self.special_tokens.values())
        slots = [f"[unused{number}]" for number in range(unused_slots)]
        behind_first, behind_last = slots[: self.slots_after_first], slots[self.slots_after_first :]
        return [first, *behind_first, *rest, *behind_last, *others]
