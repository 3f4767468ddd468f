"""Which tokens become targets, one by one or word by word, and what replaces them (BERT, section 3.1 and appendix A.1).

As in Google's code, the number of targets of a sequence is fixed: `target_prob` of its tokens, rounded, at least one.
Special tokens are never chosen. Departure: a random replacement is never a special token either, since a sentence with
a stray `[PAD]` or `[MASK]` teaches nothing about words.

Every token draws a number from its sequence's key; the lowest ones of each sequence become targets. `token_table` lays
the packed tokens out as a table with a row for each sequence, so that one operation sorts or ranks all sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.batch import IGNORE_INDEX, Batch
from unmask.chance import Stream
from unmask.objectives.masks.drawing import NOT_DRAWN, token_table


def choose_tokens(batch: Batch, target_prob: float) -> Tensor:
    """Chooses single tokens.

    Args:
        batch: with keys and the column `special_tokens_mask`.
        target_prob: share of a sequence's tokens, special ones counted.

    Returns:
        (tokens,) bool, True for a target.
    """
    table = token_table(batch)
    return table.take_in_turn(table.ranks(table.draw(Stream.CHOICE)), target_prob)


@dataclass(frozen=True)
class Words:
    """Where the words of a batch begin. Special tokens belong to none.

    Attributes:
        begins: (tokens,) bool, True for the first token of a word.
        first: (words,) int64, the places of these tokens.
        start: (tokens,) int64, the place of the first token of each token's word; undefined for a special token.
    """

    begins: Tensor
    first: Tensor
    start: Tensor


def find_words(batch: Batch, continuation: Tensor) -> Words:
    """The words of a batch. The rest of a word whose beginning was truncated away counts as a word, and so does the
    first entry of a byte-level text, which has no mark of a space before it.

    Args:
        batch: with the column `special_tokens_mask`.
        continuation: (vocabulary,) bool, True for entries that continue a word (`##ing`).
    """
    special = batch.columns["special_tokens_mask"]
    cut_off = torch.roll(special, 1) | (batch.position_ids == 0)
    begins = ~special & (~continuation.index_select(0, batch.input_ids) | cut_off)
    places = torch.arange(batch.num_tokens, device=begins.device)
    return Words(begins, torch.nonzero(begins).squeeze(1), torch.cummax(places * begins, 0).values)


def choose_words(batch: Batch, target_prob: float, continuation: Tensor) -> Tensor:
    """Chooses whole words: all pieces of a word or none.

    Words are taken in random order while they fit the sequence's budget; one that does not fit is passed over, as in
    Google's whole-word masking. Of words of 1, 3 and 1 tokens, drawn in the order 3, 1, 1 with a budget of 2, the first
    is passed over and the others are taken: `sizes` is [3, 1, 1] and `left` 2. See `choose_tokens` and `find_words` for
    the arguments and what is returned.
    """
    table, words = token_table(batch), find_words(batch, continuation)
    order = table.order(table.draw(Stream.CHOICE).masked_fill(~words.begins, NOT_DRAWN))
    sizes = torch.zeros_like(words.start).index_add_(0, words.start, (~table.special).long())  # at first tokens, else 0
    sizes = table.spread(sizes, fill=0).gather(1, order)  # (sequences, width), in the order of the draws
    left = table.budgets(target_prob)[:, None]
    taken = torch.zeros_like(sizes, dtype=torch.bool)
    waiting = sizes > 0
    while waiting.any():  # once for each word that does not fit and has words after it that do: a few times
        waiting &= sizes <= left  # what is longer never fits again
        spent = torch.cumsum(sizes * waiting, 1)
        fits = waiting & (spent <= left)  # the first of those waiting
        taken |= fits
        waiting &= ~fits
        left = left - (sizes * fits).sum(1, keepdim=True)
    chosen = table.collect(torch.zeros_like(taken).scatter_(1, order, taken))
    return chosen.index_select(0, words.start) & ~table.special


def mask_targets(
    batch: Batch,
    chosen: Tensor,
    mask_token_prob: float,
    random_token_prob: float,
    mask_id: int,
    ordinary_ids: Tensor,
    action_tokens: Tensor | None = None,
) -> Batch:
    """Replaces targets by `[MASK]`, by a random entry, or not at all, and writes their labels.

    Args:
        batch: with keys.
        chosen: (tokens,) bool, the targets.
        mask_token_prob: share of targets replaced by `[MASK]`.
        random_token_prob: share of targets replaced by a random entry; the rest stay.
        mask_id: id of `[MASK]`.
        ordinary_ids: (n,) int64, the ids that a random replacement is drawn from.
        action_tokens: (targets,) int64: the token whose draw decides whether each target is masked, replaced or kept,
            so that several share one; None: each target's own.

    Returns:
        The batch with new `input_ids`, the column `labels` (tokens,) int64 with -100 where there is no target, and
        `target_positions` (targets,) int64, the places of the targets.
    """
    targets = torch.nonzero(chosen).squeeze(1)
    table = token_table(batch)
    action = table.draw(Stream.ACTION, targets if action_tokens is None else action_tokens)
    replacement = ordinary_ids[(table.draw(Stream.REPLACEMENT, targets) * len(ordinary_ids)).long()]
    originals = batch.input_ids[targets]
    input_ids = batch.input_ids.clone()
    shown = torch.where(action < mask_token_prob + random_token_prob, replacement, originals)
    input_ids[targets] = torch.where(action < mask_token_prob, mask_id, shown)
    labels = torch.full_like(batch.input_ids, IGNORE_INDEX)
    labels[targets] = originals
    return batch.with_columns(labels=labels, target_positions=targets).with_input_ids(input_ids)


def describe_masking(batches: Sequence[Batch], mask_id: int) -> list[tuple[str, str]]:
    """What masked batches show at their targets, as shares of these."""
    ids = torch.cat([batch.input_ids for batch in batches])
    labels = torch.cat([batch.columns["labels"] for batch in batches])
    target = labels != IGNORE_INDEX
    number = max(1, int(target.sum()))
    masked = int((target & (ids == mask_id)).sum())
    kept = int((target & (ids == labels)).sum())
    return [
        ("targets shown as [MASK]", f"{masked / number:.1%}"),
        ("targets shown as a random entry", f"{(number - masked - kept) / number:.1%}"),
        ("targets left as they are", f"{kept / number:.1%}"),
    ]


def predict_masked(batch: Batch, most: int, logits: Tensor, show: Callable[[int], str]) -> dict[int, dict[str, Any]]:
    """For each target of the first `most` sequences, by place: the original, and the likeliest entry.

    Args:
        logits: (targets, vocabulary).
        show: writes an entry for people.
    """
    targets = batch.columns["target_positions"]
    targets = targets[targets < batch.bounds[most]]
    probabilities, predictions = torch.softmax(logits[: len(targets)].float(), -1).max(-1)
    labels = batch.columns["labels"][targets]
    return {
        place: {
            "kind": "masked",
            "label": show(label),
            "prediction": show(prediction),
            "probability": probability,
            "correct": label == prediction,
        }
        for place, label, prediction, probability in zip(
            targets.tolist(), labels.tolist(), predictions.tolist(), probabilities.tolist(), strict=True
        )
    }
