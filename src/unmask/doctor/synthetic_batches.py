"""Batches of random tokens in the shape of a recipe's sequences, for when there is no text to measure with yet."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from unmask.batch import Batch, pack
from unmask.data.packing import NUM_SPECIAL_TOKENS
from unmask.recipe import PretrainRecipe

SPECIAL_ID = 0


def random_batches(settings: PretrainRecipe, vocab_size: int, sequences: int) -> Iterator[Batch]:
    """Segment pairs of random entries, without end: `[CLS] A [SEP] B [SEP]`, all special tokens with the id 0.

    Lengths are those of long documents: the full one, or with `packing.short_sequence_prob` one drawn evenly below it.
    """
    random = np.random.default_rng(settings.seed)
    while True:
        is_short = random.random(sequences) < settings.packing.short_sequence_prob
        short = random.integers(2 + NUM_SPECIAL_TOKENS, settings.packing.max_length, sequences, endpoint=True)
        lengths = np.where(is_short, short, settings.packing.max_length).tolist()
        ids = [random.integers(SPECIAL_ID + 1, vocab_size, length) for length in lengths]
        middles = [1 + int(random.integers(1, length - NUM_SPECIAL_TOKENS)) for length in lengths]
        for sequence, middle in zip(ids, middles, strict=True):
            sequence[[0, middle, -1]] = SPECIAL_ID
        segments = [
            [0] * (middle + 1) + [1] * (length - middle - 1) for middle, length in zip(middles, lengths, strict=True)
        ]
        keys = random.integers(0, 2**63, sequences).tolist()
        batch = pack([sequence.tolist() for sequence in ids], segments, keys)
        yield batch.with_columns(
            special_tokens_mask=batch.input_ids == SPECIAL_ID,
            next_sentence_label=torch.from_numpy(random.integers(0, 2, sequences)),
        )
