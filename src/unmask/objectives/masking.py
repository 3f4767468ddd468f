"""Which tokens become targets, and what stands in their place (BERT, section 3.1 and appendix A.1).

As in Google's code, the number of targets of a sequence is fixed: `target_prob` of its tokens, rounded, at least one.
Special tokens are never chosen. Departure: a random replacement is never a special token either, since a sentence with
a stray `[PAD]` or `[MASK]` teaches nothing about words.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.batch import IGNORE_INDEX, Batch
from unmask.chance import uniform

_CHOICE, _FATE, _REPLACEMENT = 1, 2, 3
"""Streams of chance: which tokens are chosen, what becomes of them, which entry replaces them."""


def choose_tokens(batch: Batch, target_prob: float) -> Tensor:
    """Chooses single tokens.

    Args:
        batch: with keys and the column `special_tokens_mask`.
        target_prob: share of a sequence's tokens, special ones counted.

    Returns:
        (tokens,) bool, True for a target.
    """
    special = batch.columns["special_tokens_mask"]
    sequence = batch.sequence_of_token()
    draws = _draw(batch, sequence, _CHOICE).masked_fill(special, 1.0)
    order = _order_within(sequence, draws)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    rank -= batch.bounds[:-1].long()[sequence]
    return (rank < _budgets(batch, target_prob)[sequence]) & ~special


def choose_words(batch: Batch, target_prob: float, continuation: Tensor) -> Tensor:
    """Chooses whole words: all pieces of a word or none.

    Words are taken in random order while they fit the sequence's budget; one that does not fit is passed over, as in
    Google's whole-word masking. The rest of a word whose beginning was truncated away counts as a word.

    Args:
        batch: with keys and the column `special_tokens_mask`.
        target_prob: share of a sequence's tokens, special ones counted.
        continuation: (vocabulary,) bool, True for entries that continue a word (`##ing`).

    Returns:
        (tokens,) bool, True for a target.
    """
    special = batch.columns["special_tokens_mask"]
    cut_off = torch.roll(special, 1) | (batch.position_ids == 0)
    begins = ~special & (~continuation[batch.input_ids] | cut_off)
    word = torch.cumsum(begins, 0) - 1  # of a special token: the word before it
    first = torch.nonzero(begins).squeeze(1)
    sequence_of_token = batch.sequence_of_token()
    sequence = sequence_of_token[first]
    size = torch.bincount(word[~special], minlength=len(first))
    draws = uniform(_keys(batch)[sequence], batch.position_ids[first], _CHOICE)
    order = _order_within(sequence, draws)
    words_in_sequence = torch.bincount(sequence, minlength=batch.num_sequences)
    starts = torch.cumsum(words_in_sequence, 0) - words_in_sequence
    left = _budgets(batch, target_prob)
    chosen = torch.zeros(len(first), dtype=torch.bool, device=word.device)
    for rank in range(int(words_in_sequence.max())):
        open_sequences = torch.nonzero((words_in_sequence > rank) & (left > 0)).squeeze(1)
        if len(open_sequences) == 0:
            break
        candidates = order[starts[open_sequences] + rank]
        fits = size[candidates] <= left[open_sequences]
        chosen[candidates] = fits
        left[open_sequences] -= size[candidates] * fits
    return chosen[word.clamp(min=0)] & ~special


def mask_targets(
    batch: Batch, chosen: Tensor, mask_token_prob: float, random_token_prob: float, mask_id: int, ordinary_ids: Tensor
) -> Batch:
    """Replaces targets by `[MASK]`, by a random entry, or not at all, and writes their labels.

    Args:
        batch: with keys.
        chosen: (tokens,) bool, the targets.
        mask_token_prob: share of targets replaced by `[MASK]`.
        random_token_prob: share of targets replaced by a random entry; the rest stay.
        mask_id: id of `[MASK]`.
        ordinary_ids: (n,) int64, the ids that a random replacement is drawn from.

    Returns:
        The batch with new `input_ids`, the column `labels` (tokens,) int64 with -100 where there is no target, and
        `target_positions` (targets,) int64, the places of the targets.
    """
    sequence = batch.sequence_of_token()
    fate = _draw(batch, sequence, _FATE)
    replacement = (_draw(batch, sequence, _REPLACEMENT) * len(ordinary_ids)).long()
    masked = chosen & (fate < mask_token_prob)
    randomised = chosen & ~masked & (fate < mask_token_prob + random_token_prob)
    input_ids = torch.where(masked, mask_id, torch.where(randomised, ordinary_ids[replacement], batch.input_ids))
    labels = torch.where(chosen, batch.input_ids, IGNORE_INDEX)
    prepared = batch.with_columns(labels=labels, target_positions=torch.nonzero(chosen).squeeze(1))
    return prepared.with_input_ids(input_ids)


def _keys(batch: Batch) -> Tensor:
    assert batch.keys is not None, "masks are drawn from the batch's keys"
    return batch.keys


def _draw(batch: Batch, sequence: Tensor, stream: int) -> Tensor:
    """(tokens,) float64 in [0, 1): one number for each token."""
    return uniform(_keys(batch)[sequence], batch.position_ids, stream)


def _order_within(sequence: Tensor, draws: Tensor) -> Tensor:
    """(n,) int64: the places in the order of their draws, sequence after sequence.

    Two stable sorts, not one of `sequence + draws`: the sum would round draws away, the more the larger the batch.
    """
    order = torch.argsort(draws, stable=True)
    return order[torch.argsort(sequence[order], stable=True)]


def _budgets(batch: Batch, target_prob: float) -> Tensor:
    """(sequences,) int64: the number of targets of each sequence."""
    lengths = (batch.bounds[1:] - batch.bounds[:-1]).double()
    return torch.floor(lengths * target_prob + 0.5).long().clamp(min=1)
