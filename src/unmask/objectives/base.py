"""What an objective is: it prepares batches (masks, labels), counts their targets, and builds the module that learns.

The module's forward pass takes a prepared batch and returns the terms of its loss; its attribute `encoder` is what is
kept afterwards.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.batch import IGNORE_INDEX, Batch
from unmask.models.encoder import Encoder, new_encoder
from unmask.models.family import Part
from unmask.models.heads.span_boundary_head import SpanBoundaryHead
from unmask.models.hub.source import ModelSource
from unmask.models.settings import EncoderSettings
from unmask.models.sizes import Sizes
from unmask.models.trained import TrainedModule
from unmask.objectives.floors import Floor


@dataclass(frozen=True)
class Saved:
    """A model that a finished run keeps.

    Attributes:
        encoder, heads, causal_lm, span_boundary_head, extra_config: as for `unmask.models.hub.directory.save_model`.
    """

    encoder: Encoder
    heads: Mapping[Part, nn.Module] = field(default_factory=dict)
    causal_lm: bool = False
    span_boundary_head: SpanBoundaryHead | None = None
    extra_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def all_heads(self) -> list[nn.Module]:
        """With the boundary head, where there is one."""
        return [*self.heads.values(), *([] if self.span_boundary_head is None else [self.span_boundary_head])]


@dataclass(frozen=True)
class Predictions:
    """What a module predicts for some sequences, decoded for a report.

    Attributes:
        originals: (tokens,) int64, the text before anything was masked.
        tokens: for the tokens that have one, by place, what `unmask.reports.sample_rows` shows there.
        titles: a remark about each sequence as a whole, or "".
    """

    originals: Tensor
    tokens: Mapping[int, dict[str, Any]]
    titles: Sequence[str]


def original_ids(batch: Batch) -> Tensor:
    """(tokens,) int64: the token ids of a masked batch before masking."""
    labels = batch.columns["labels"]
    return labels.where(labels != IGNORE_INDEX, batch.input_ids)


class ObjectiveModule(TrainedModule):
    """The module that an objective trains.

    Attributes:
        encoder: what is kept afterwards.
    """

    encoder: Encoder

    @abstractmethod
    def scores(self, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        """Sums and counts of what is measured on held-out batches, by name: each metric is their ratio.

        Returns:
            `<term>_loss` and `<term>_accuracy` for each loss term that is measured, at least the main one, and others.
        """

    @abstractmethod
    def saved(self) -> dict[str, Saved]:
        """What a finished run keeps, by the folder inside `model/`; "" is the model itself."""

    @abstractmethod
    def predictions(self, batch: Batch, most: int, show: Callable[[int], str]) -> Predictions | None:
        """What it predicts for the first `most` sequences of a prepared batch; None where nothing can be shown of
        single sequences.

        Args:
            show: writes an entry of the vocabulary for people.
        """


@runtime_checkable
class Objective(Protocol):
    """A way to pre-train.

    Attributes:
        needs_pooler: whether the encoder's pooler is trained.
        vocabulary_terms: the loss terms over the vocabulary, if any, the main one first: the exponential of its mean
            loss is reported as perplexity.
        predicts_next: whether nearly every token is a target, predicted from those before it: its logits over the
            vocabulary are then never all in memory.
    """

    needs_pooler: bool
    vocabulary_terms: tuple[str, ...]
    predicts_next: bool

    def prepare(self, batch: Batch) -> Batch:
        """Draws masks and labels from the batch's keys; there is no other source of chance.

        A column `labels`, if there is one, holds the token id to predict at each target, and `IGNORE_INDEX` elsewhere:
        samples are shown with them.
        """

    def counts(self, batch: Batch) -> dict[str, int]:
        """The number of targets in a prepared batch, for each loss term that the module may return."""

    def build(self, encoder: Encoder) -> ObjectiveModule:
        """The module that learns, with fresh heads on `encoder`."""

    def restore_heads(self, module: ObjectiveModule, source: ModelSource) -> None:
        """Loads the heads (and the generator) of a model directory, if it has them, into a fresh module.

        Raises:
            ModelError: as in `unmask.models.hub.directory.load_model`.
        """

    def floors(
        self,
        token_counts: NDArray[np.int64],
        batches: Sequence[Batch] = (),
        evaluation: Mapping[str, float] | None = None,
    ) -> list[Floor]:
        """What a guess without any context reaches, from how often each entry occurs and, if a target's place shows a
        token, from that token. The first floor of a loss is the one to beat. A term may have floors of its loss alone.

        Args:
            token_counts: (vocabulary,) of the store.
            batches: prepared ones, whose targets the floors are for; none: as if every token of the store were equally
                likely to be a target.
            evaluation: the newest figures of a run, by their names in `metrics.jsonl`, for floors that depend on them;
                None: there is no run yet.
        """

    def operations(self, sizes: Sizes, batch: Batch, length: float) -> float:
        """Necessary floating-point operations of training per token shown, the backward pass as twice the forward
        pass; see `encoder_operations`. For a run of stages, their mean.

        Args:
            sizes: of the encoder.
            batch: prepared, with sequences like those of the run.
            length: the mean number of tokens in a sequence of the whole run.
        """

    def describe_sequences(self, batch: Batch, most: int) -> list[str]:
        """A line about each of the first `most` sequences of a prepared batch as a whole, or ""."""

    def describe_batches(self, batches: Sequence[Batch]) -> list[tuple[str, str]]:
        """What prepared batches show a model, as (what, share): to be compared with the settings."""


def fresh_module(objective: Objective, sizes: Sizes) -> ObjectiveModule:
    """The module that learns, on a fresh encoder; its weights are drawn from PyTorch's default generator."""
    return objective.build(new_encoder(sizes, pooler=objective.needs_pooler))


# ---- Necessary operations, worked out from sizes
#
# Only necessary ones count, two for a multiply-add, the backward pass as twice the forward pass; element-wise work is
# left out. In the last block, keys and values are needed for every token, the rest only at the places that a head
# reads. A token of a causal model attends to half of its sequence on average.


def head_operations(sizes: EncoderSettings) -> float:
    """The forward pass of a masked-LM head, per target: 2 (h e + e V)."""
    width = sizes.embedding_width
    return 2 * (sizes.hidden_size * width + width * sizes.vocab_size)


def encoder_operations(sizes: EncoderSettings, length: float, read: float) -> float:
    """The forward pass of an encoder, per token. A full block: 2 (4 h^2 + 2 h f) per token (3 h f if the feed-forward
    is gated), and 4 h for each token that it attends to.

    Args:
        length: the mean number of tokens in a sequence.
        read: share of the tokens whose output is read, at most 1.
    """
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    if sizes.family.is_recurrent:
        first = 2 * 4 * inner * (hidden + inner) + (2 * inner * hidden if inner != hidden else 0)
        return sizes.num_hidden_layers * first
    matrices = 3 if sizes.family.is_gated else 2
    block = 2 * (4 * hidden**2 + matrices * hidden * inner) + 4 * sizes.attended(length) * hidden
    keys_and_values = 4 * hidden**2
    last_block = keys_and_values + min(1.0, read) * (block - keys_and_values)
    width = sizes.embedding_width
    projection = 2 * width * hidden if width != hidden else 0
    return projection + (sizes.num_hidden_layers - 1) * block + last_block
