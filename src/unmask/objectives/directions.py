"""Some sequences of a step read from left to right, each token predicting the next, beside masked ones (Charpentier and
Samuel 2024, GPT-BERT): every token of theirs is a target, so a small model learns sooner.

Which ones is drawn from their keys. Departure from GPT-BERT: a masked token is predicted at its own place, as in BERT,
not at the one before it, so that the model that is saved is an ordinary masked LM.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unmask.batch import Batch, LossTerm
from unmask.chance import Stream, uniform
from unmask.models.encoder import Encoder
from unmask.models.heads.heads import MaskedLMHead
from unmask.models.kernels.decoder_loss import summed_decoder_loss
from unmask.objectives.causal_lm import next_token_decoder
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


def leave_out_left_to_right(batch: Batch, chosen: Tensor) -> Tensor:
    """(tokens,) bool: those of `chosen` that are in sequences read from both sides."""
    return chosen & ~is_read_left_to_right(batch) if batch.left_to_right else chosen


def next_counts(batch: Batch) -> dict[str, int]:
    """The targets of `lm` in a prepared batch, if some of its sequences are read from left to right."""
    return {"lm": len(batch.columns[NEXT_POSITIONS])} if NEXT_POSITIONS in batch.columns else {}


def share_of_targets(masked: float, causal: float) -> float:
    """The share of all tokens that are targets, where `causal` of the sequences are read from left to right, whose
    tokens all are, and of the others `masked`."""
    return masked + causal * (1 - masked)


def add_next_tokens(batch: Batch, original_ids: Tensor) -> Batch:
    """Adds the columns `next_positions` and `next_labels`, if some sequences are read from left to right: of these,
    every token but the last.

    Args:
        original_ids: (tokens,) int64, before any was masked.
    """
    if not batch.left_to_right:
        return batch
    predicts = is_read_left_to_right(batch)
    predicts[batch.last_tokens] = False
    positions = predicts.nonzero().squeeze(1)
    return batch.with_columns(**{NEXT_POSITIONS: positions, NEXT_LABELS: original_ids[positions + 1]})


def next_token_terms(
    batch: Batch, encoder: Encoder, head: MaskedLMHead, hidden: Tensor, z_loss: float = 0.0
) -> list[LossTerm]:
    """The term `lm`, if some sequences of a prepared batch are read from left to right.

    Args:
        hidden: (targets, hidden), the encoder's output at `next_positions`.
        z_loss: as in `MaskedLMSettings`.
    """
    if NEXT_LABELS not in batch.columns:
        return []
    decoder = next_token_decoder(encoder, head, hidden)
    return [LossTerm("lm", summed_decoder_loss(decoder, batch.columns[NEXT_LABELS], z_loss=z_loss))]
