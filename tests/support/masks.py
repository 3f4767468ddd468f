"""A vocabulary of numbers, rows of it, and what tests of masking share."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from unmask.objectives.masked_lm import MaskedLM
from unmask.objectives.settings import MaskedLMSettings
from unmask.tokenization.vocabulary import Vocabulary

SPECIAL = PAD, UNK, CLS, SEP, MASK = 0, 1, 2, 3, 4
SIZE = 105
ORDINARY = range(len(SPECIAL), SIZE)
CONTINUATION = np.arange(SIZE) >= 65
VOCABULARY = Vocabulary(SIZE, MASK, SPECIAL, CONTINUATION)

SIGNIFICANCE = 1e-3
"""Keys and seeds are fixed, so a test that passes continues to pass; that each can fail is tested too."""

ROWS_OF_TABLE_8 = [(80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100)]
"""BERT's ablation: how many of a hundred targets are `[MASK]`, the same, random."""
TABLE_8 = [(mask / 100, random_ / 100) for mask, _, random_ in ROWS_OF_TABLE_8]
"""Shares of `[MASK]` and of random entries."""


def new_masked_lm(vocabulary: Vocabulary = VOCABULARY, **settings: object) -> MaskedLM:
    """The objective without sentences."""
    return MaskedLM(MaskedLMSettings.model_validate({"sentence_objective": "none", **settings}), vocabulary)


def draw_rows(lengths: Sequence[int], seed: int) -> list[list[int]]:
    """`[CLS] A [SEP] B [SEP]` of random tokens, 5 tokens at least."""
    chance = random.Random(seed)
    rows = []
    for length in lengths:
        row = [chance.choice(ORDINARY) for _ in range(length)]
        row[0], row[chance.randrange(2, length - 2)], row[-1] = CLS, SEP, SEP
        rows.append(row)
    return rows


def words_of(row: Sequence[int]) -> list[list[int]]:
    """The places of each word's pieces; a special token ends a word, and is in the list as an empty one."""
    words: list[list[int]] = []
    for place, token in enumerate(row):
        if token in SPECIAL:
            words.append([])
        elif words and words[-1] and CONTINUATION[token]:
            words[-1].append(place)
        else:
            words.append([place])
    return words
