"""The facts about a vocabulary that an objective needs, without the tokenizer itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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
