"""Some sequences of a step read from left to right, each token predicting the next, beside masked ones (Charpentier and
Samuel 2024, GPT-BERT): every token of theirs is a target, so a small model learns sooner.

Which ones is drawn from their keys. Departure from GPT-BERT: a masked token is predicted at its own place, as in BERT,
not at the one before it, so that the model that is saved is an ordinary masked LM.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unmask.batch import Batch
from unmask.chance import Stream, uniform
from unmask.objectives.settings import CAUSAL_SHARE

NEXT_POSITIONS, NEXT_LABELS = "next_positions", "next_labels"
"""Columns (targets,) int64: the tokens that predict the next one, and what that is."""


def draw_directions(batch: Batch) -> Batch:
    """Chooses the sequences that are read from left to right, if the batch says how many are; each by its key."""
    share = batch.columns.get(CAUSAL_SHARE)
    if share is None:
        return batch
    assert batch.keys is not None, "directions are drawn from the batch's keys"
    draws = uniform(batch.keys, torch.zeros_like(batch.keys), Stream.DIRECTION)
    return replace(batch, left_to_right=tuple((draws < share).tolist()))


def is_read_left_to_right(batch: Batch) -> Tensor:
    """(tokens,) bool."""
    return torch.tensor(batch.left_to_right).index_select(0, batch.sequence_of_token())


def next_counts(batch: Batch) -> dict[str, int]:
    """The targets of `lm` in a prepared batch, if some of its sequences are read from left to right."""
    return {"lm": len(batch.columns[NEXT_POSITIONS])} if NEXT_POSITIONS in batch.columns else {}


def add_next_tokens(batch: Batch, original_ids: Tensor) -> Batch:
    """Adds the columns `next_positions` and `next_labels`: of the sequences read from left to right, every token but
    the last.

    Args:
        original_ids: (tokens,) int64, before any was masked.
    """
    predicts = is_read_left_to_right(batch)
    predicts[batch.last_tokens] = False
    positions = predicts.nonzero().squeeze(1)
    return batch.with_columns(**{NEXT_POSITIONS: positions, NEXT_LABELS: original_ids[positions + 1]})
