"""The span boundary objective: each token of a span, predicted from the two tokens beside it (SpanBERT, section 3.2).

A span that begins or ends its text, so that no token of the text is beside it, has no such loss, as in the released
code, which masks a text before it sets special tokens around it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.batch import Batch
from unmask.objectives.span_masking import find_spans


def with_boundaries(batch: Batch, chosen: Tensor, max_targets: int) -> Batch:
    """A masked batch with the columns of this objective.

    Args:
        batch: with the column `special_tokens_mask`.
        chosen: (tokens,) bool, the masked-LM targets.
        max_targets: the most targets of a span; its first ones are taken.

    Returns:
        The batch with `boundary_positions` (boundaries,) int64, the tokens beside spans, ascending, each once;
        `boundary_targets` (targets,) int64, the tokens to predict; `boundary_left` and `boundary_right` (targets,)
        int64, which of the boundaries stand beside each one's span; `boundary_places` (targets,) int64, each one's
        place in its span, from 0.
    """
    first, last = find_spans(batch, chosen)
    begins_sequence = batch.position_ids == 0
    is_text = ~batch.columns["special_tokens_mask"]
    text_before = torch.roll(is_text, 1) & ~begins_sequence
    text_after = torch.roll(is_text & ~begins_sequence, -1)
    inside = text_before[first] & text_after[last]
    first, last = first[inside], last[inside]
    sizes = (last - first + 1).clamp(max=max_targets)
    span = torch.repeat_interleave(torch.arange(len(first), device=first.device), sizes)
    place = torch.arange(len(span), device=span.device) - (torch.cumsum(sizes, 0) - sizes)[span]
    positions, which = torch.unique(torch.cat([first - 1, last + 1]), return_inverse=True)
    left, right = which[: len(first)], which[len(first) :]
    return batch.with_columns(
        boundary_positions=positions,
        boundary_targets=first[span] + place,
        boundary_left=left[span],
        boundary_right=right[span],
        boundary_places=place,
    )
