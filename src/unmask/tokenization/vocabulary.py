"""The facts about a vocabulary that an objective needs, without the tokenizer itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unmask.tokenization.definition import SENTENCEPIECE_SPACE, SPACE


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What masking needs to know about the tokens."""

    size: int  # number of ids, from 0 without gaps
    mask_id: int | None  # the id of `[MASK]`; None if there is none
    # ids that are never drawn as replacements, ascending. What may not be a target is another question, and a batch's
    # `special_tokens_mask` answers it: an unknown word of a text may.
    special_ids: tuple[int, ...]
    # (size,) bool, True for an entry that continues a word (`##ing`); all False if none show it
    continuation: npt.NDArray[np.bool_]
    marks_words: bool = True  # True if `continuation` shows where words begin; otherwise there is no whole-word masking


def continuations(
    kind: str, entries: Sequence[str], prefix: str, special_ids: Sequence[int]
) -> npt.NDArray[np.bool_] | None:
    """(entries,) bool, True for an entry that continues a word: in WordPiece those with `prefix` (`##`), in byte-level
    BPE and SentencePiece's those without a leading space, special tokens excepted; there the first word of a text can
    only be seen from its place. None for another kind: nothing is known of where its words begin."""
    if kind == "wordpiece":
        return np.array([entry.startswith(prefix) and entry != prefix for entry in entries])
    if kind in ("byte_bpe", "sentencepiece"):
        space = SPACE if kind == "byte_bpe" else SENTENCEPIECE_SPACE
        continuation = np.array([not entry.startswith(space) for entry in entries])
        continuation[list(special_ids)] = False
        return continuation
    return None
