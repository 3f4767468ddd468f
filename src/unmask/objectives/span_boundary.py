"""The span boundary objective: each token of a span, predicted from the two tokens beside it (SpanBERT, section 3.2).

A span that begins or ends its text, so that no token of the text is beside it, has no such loss, as in the released
code, which masks a text before it sets special tokens around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.batch import IGNORE_INDEX, Batch
from unmask.models.buckets import LAST_TOKEN, Padding, Paddings
from unmask.models.encoder import TokenEncoder
from unmask.models.heads.span_boundary_head import POSITION_SIZE, SpanBoundaryHead, restore_span_boundary
from unmask.models.hub.source import LoadedModel
from unmask.models.settings import EncoderSettings
from unmask.objectives.base import Saved
from unmask.objectives.floors import Floor, NoContext, at_least_once, targets_of, vocabulary_floors
from unmask.objectives.masks.span_masking import find_spans
from unmask.objectives.second_objective import SecondObjective


class SpanBoundary(SecondObjective):
    """The objective as a part of masked language modelling.

    Args:
        max_targets: the most targets of a span; its first ones are taken.
        weight: of its loss.
    """

    term = "sbo"
    head_name = "span_boundary_head"
    is_over_vocabulary = True

    def __init__(self, max_targets: int, weight: float = 1.0) -> None:
        self._max_targets = max_targets
        self.weight = weight
        self.paddings: Paddings = {
            "boundary_positions": Padding("boundaries", LAST_TOKEN),
            "boundary_targets": Padding("boundary targets", LAST_TOKEN),
            **dict.fromkeys(("boundary_left", "boundary_right", "boundary_places"), Padding("boundary targets", 0)),
        }

    def new_head(self, sizes: EncoderSettings) -> nn.Module:
        return SpanBoundaryHead(sizes, self._max_targets)

    def prepare(self, batch: Batch, chosen: Tensor) -> Batch:
        return with_boundaries(batch, chosen, self._max_targets)

    def count(self, batch: Batch) -> int:
        return len(batch.columns["boundary_targets"])

    def places(self, batch: Batch) -> Tensor:
        return batch.columns["boundary_positions"]

    def answer(self, head: nn.Module, hidden: Tensor, batch: Batch, encoder: TokenEncoder) -> tuple[Tensor, Tensor]:
        columns = batch.columns
        left, right = hidden[columns["boundary_left"]], hidden[columns["boundary_right"]]
        logits = head(left, right, columns["boundary_places"], encoder.word_embeddings)
        return logits, columns["labels"][columns["boundary_targets"]]

    def restored(self, head: nn.Module, loaded: LoadedModel, directory: Path) -> nn.Module:
        assert isinstance(head, SpanBoundaryHead), "made here"
        restore_span_boundary(directory, head)
        return head

    def saved(self, head: nn.Module, model: Saved) -> Saved:
        assert isinstance(head, SpanBoundaryHead), "made here"
        return replace(model, span_boundary_head=head)

    def floors(self, token_counts: NDArray[np.int64], batches: Sequence[Batch]) -> list[Floor]:
        """The head does not read its target, so without context it has only the frequencies, whatever is shown there:
        the tokens beside the span are context."""
        targets = targets_of(batches, "boundary_targets")
        return vocabulary_floors(self.term, NoContext.of(at_least_once(token_counts, targets)), targets)

    def operations(self, sizes: EncoderSettings, batch: Batch, length: float) -> tuple[float, float]:
        hidden, width = sizes.hidden_size, sizes.embedding_width
        a_target = 2 * ((2 * hidden + POSITION_SIZE) * hidden + hidden * width + width * sizes.vocab_size)
        return len(self.places(batch)) / batch.num_tokens, self.count(batch) / batch.num_tokens * a_target

    def describe_batches(self, batches: Sequence[Batch]) -> list[tuple[str, str]]:
        number = sum(int((batch.columns["labels"] != IGNORE_INDEX).sum()) for batch in batches)
        share = sum(map(self.count, batches)) / max(1, number)
        return [("targets predicted from boundaries too", f"{share:.1%}")]


def with_boundaries(batch: Batch, chosen: Tensor, max_targets: int) -> Batch:
    """A masked batch with the columns of this objective.

    Args:
        chosen: (tokens,) bool, the masked-LM targets.

    Returns:
        The batch with `boundary_positions` (boundaries,) int64, the tokens beside spans, ascending, each once;
        `boundary_targets` (targets,) int64, the tokens to predict; `boundary_left` and `boundary_right` (targets,)
        int64, which of the boundaries are beside each one's span; `boundary_places` (targets,) int64, each one's
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
