"""Batches of random tokens in the shape of a recipe's sequences, for when there is no text to measure with yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.batch import Batch, pack
from unmask.objectives.settings_base import AnnotationKind
from unmask.packing.settings import LABEL_COLUMNS, PAIRED
from unmask.recipe.tree import PretrainRecipe

SPECIAL_ID = 0


def num_specials(settings: PretrainRecipe) -> int:
    """How many special tokens a sequence has: `[CLS]` and a `[SEP]` after each segment, or none."""
    if settings.model.family.reads_bare_text:
        return 0
    return 3 if settings.packing.format in PAIRED else 2


def expected_length(settings: PretrainRecipe) -> float:
    """The mean length of sequences of long documents: the full one, or a target drawn uniformly from 2 tokens on."""
    full, short_prob = settings.packing.max_length, settings.packing.short_sequence_prob
    mean_of_short = (2 + num_specials(settings) + full) / 2
    return (1 - short_prob) * full + short_prob * mean_of_short


def random_batches(settings: PretrainRecipe, vocab_size: int, sequences: int) -> Iterator[Batch]:
    """Endless sequences of random entries: `[CLS] A [SEP] B [SEP]`, or as the recipe packs them; all special tokens
    have the id 0.

    Lengths are those of long documents: full, or with `packing.short_sequence_prob` drawn uniformly below that.
    """
    random = np.random.default_rng(settings.seed)
    sentence_objective = settings.objective.pair_objective
    while True:
        is_short = random.random(sequences) < settings.packing.short_sequence_prob
        short = random.integers(2 + num_specials(settings), settings.packing.max_length, sequences, endpoint=True)
        lengths = np.where(is_short, short, settings.packing.max_length).tolist()
        ids = [random.integers(SPECIAL_ID + 1, vocab_size, length) for length in lengths]
        segments = [_set_specials(sequence, num_specials(settings), random) for sequence in ids]
        keys = random.integers(0, 2**63, sequences).tolist()
        batch = pack([sequence.tolist() for sequence in ids], segments, keys)
        batch = batch.with_columns(special_tokens_mask=batch.input_ids == SPECIAL_ID)
        if sentence_objective != "none":
            labels = torch.from_numpy(random.integers(0, 2, sequences))
            batch = batch.with_columns(**{LABEL_COLUMNS[sentence_objective]: labels})
        yield batch.with_columns(**{name: _annotation(batch.num_tokens) for name in get_args(AnnotationKind)})


def _set_specials(sequence: NDArray[np.int64], number: int, random: np.random.Generator) -> list[int]:
    """Overwrites some tokens with special ones; returns the segment of each token."""
    if number:
        sequence[[0, -1]] = SPECIAL_ID
    if number < 3:
        return [0] * len(sequence)
    middle = 1 + int(random.integers(1, len(sequence) - number))
    sequence[middle] = SPECIAL_ID
    return [0] * (middle + 1) + [1] * (len(sequence) - middle - 1)


def _annotation(num_tokens: int) -> torch.Tensor:
    """(tokens,) int64: pairs of tokens that belong together, numbered from 1, and 0 elsewhere."""
    places = torch.arange(num_tokens)
    return torch.where(places % 10 < 2, places // 10 + 1, 0)
