"""What an objective is: it prepares batches (masks, labels), counts their targets, and builds the module that learns.

The module's forward pass takes a prepared batch and returns the terms of its loss; its attribute `encoder` is what is
kept afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unmask.batch import IGNORE_INDEX, Batch, LossTerm
from unmask.models.elmo.settings import ElmoSettings
from unmask.models.encoder import Encoder
from unmask.models.settings import EncoderSettings
from unmask.objectives.floors import Floor


@dataclass(frozen=True)
class Saved:
    """A model that a finished run keeps.

    Attributes:
        encoder: of the model.
        parts: the other arguments of `unmask.models.hub.directory.save_model`: heads by name, `causal_lm`.
    """

    encoder: Encoder
    parts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Predictions:
    """What a module predicts for some sequences, decoded for a report.

    Attributes:
        originals: (tokens,) int64, the text before anything was masked.
        tokens: for the tokens that have one, by place, what `unmask.reports.sample_rows` shows there.
        titles: what is said of each sequence as a whole, or "".
    """

    originals: Tensor
    tokens: Mapping[int, dict[str, Any]]
    titles: Sequence[str]


def original_ids(batch: Batch) -> Tensor:
    """(tokens,) int64: the token ids of a masked batch before masking."""
    labels = batch.columns["labels"]
    return labels.where(labels != IGNORE_INDEX, batch.input_ids)


class ObjectiveModule(Protocol):
    """The module that an objective trains; a `torch.nn.Module`."""

    @property
    def encoder(self) -> Encoder:
        """What is kept afterwards."""

    def __call__(self, batch: Batch) -> list[LossTerm]:
        """The terms of the loss on a prepared batch."""

    def scores(self, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        """Sums and counts of what is measured on held-out batches, by name: each metric is their ratio."""

    def saved(self) -> dict[str, Saved]:
        """What a finished run keeps, by the folder inside `model/`; "" is the model itself."""

    def predictions(self, batch: Batch, most: int, show: Callable[[int], str]) -> Predictions | None:
        """What it predicts for the first `most` sequences of a prepared batch; None where nothing can be shown of
        single sequences.

        Args:
            show: writes an entry of the vocabulary for people.
        """


@runtime_checkable
class StagedModule(Protocol):
    """What the module of an objective offers in addition if its run may have stages, which train different weights.

    Attributes:
        stage: the present one, from 0. It is part of the `state_dict`, so that a checkpoint has it.
    """

    stage: int

    @property
    def stages(self) -> tuple[float, ...]:
        """The shares of the budget at which each stage ends, ascending; the last is 1."""

    def begin_stage(self, number: int) -> None:
        """Enters a stage: the present one or the next."""


class Objective(Protocol):
    """A way to pre-train.

    Attributes:
        columns: those that a batch must have, which the packing format has to provide.
        needs_pooler: whether the encoder's pooler is trained.
        perplexities: scores of the module that are mean losses in nats per token: their exponentials are reported as
            well, named with `_perplexity` in place of `_loss`.
        vocabulary_terms: the loss terms over the vocabulary.
        predicts_next: whether nearly every token is a target, predicted from those before it: its logits over the
            vocabulary are then never all in memory.
    """

    columns: tuple[str, ...]
    needs_pooler: bool
    perplexities: tuple[str, ...]
    vocabulary_terms: tuple[str, ...]
    predicts_next: bool

    def prepare(self, batch: Batch) -> Batch:
        """Draws masks and labels from the batch's keys; there is no other source of chance."""

    def counts(self, batch: Batch) -> dict[str, int]:
        """The number of targets in a prepared batch, for each loss term that the module may return."""

    def build(self, encoder: Encoder) -> ObjectiveModule:
        """The module that learns, with fresh heads on `encoder`."""

    def restore_heads(
        self, module: ObjectiveModule, directory: Path, adapt: Callable[[Any], Any] = lambda encoder: encoder
    ) -> None:
        """Loads the heads (and the generator) of a model directory, if it has them, into a fresh module.

        Args:
            adapt: changes an encoder beside the module's own, as that one was changed.

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
        token, from that token. The first floor of a loss is the one to beat.

        Args:
            token_counts: (vocabulary,) of the store.
            batches: prepared ones, whose targets the floors are for; none: as if every token of the store were equally
                likely to be a target.
            evaluation: the newest figures of a run, by their names in `metrics.jsonl`, for floors that depend on them;
                None: there is no run yet.
        """

    def operations(self, sizes: EncoderSettings | ElmoSettings, batch: Batch, length: float) -> float:
        """Necessary floating-point operations of training per token shown, the backward pass as twice the forward
        pass; see `unmask.objectives.operations`. For a run of stages, their mean.

        Args:
            sizes: of the encoder.
            batch: prepared, with sequences like those of the run.
            length: the mean number of tokens in a sequence of the whole run.
        """

    def tell_sequences(self, batch: Batch, most: int) -> list[str]:
        """A line about each of the first `most` sequences of a prepared batch as a whole, or ""."""

    def tell_batches(self, batches: Sequence[Batch]) -> list[tuple[str, str]]:
        """What prepared batches show a model, as (what, share): to be compared with the settings."""
