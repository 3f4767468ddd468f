"""What an objective is: it prepares batches (masks, labels), counts their targets, and builds the module that learns.

The module's forward pass takes a prepared batch and returns the terms of its loss; its attribute `encoder` is what is
kept afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unmask.batch import Batch, LossTerm
from unmask.models.encoder import Encoder


@dataclass(frozen=True)
class Saved:
    """A model that a finished run keeps.

    Attributes:
        encoder: of the model.
        parts: the other arguments of `unmask.models.hub.directory.save_model`: heads by name, `causal_lm`.
    """

    encoder: Encoder
    parts: dict[str, Any] = field(default_factory=dict)


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
    """

    columns: tuple[str, ...]
    needs_pooler: bool
    perplexities: tuple[str, ...]

    def prepare(self, batch: Batch) -> Batch:
        """Draws masks and labels from the batch's keys; there is no other source of chance."""

    def counts(self, batch: Batch) -> dict[str, int]:
        """The number of targets in a prepared batch, for each loss term that the module may return."""

    def build(self, encoder: Encoder) -> ObjectiveModule:
        """The module that learns, with fresh heads on `encoder`."""

    def restore_heads(self, module: ObjectiveModule, directory: Path) -> None:
        """Loads the heads (and the generator) of a model directory, if it has them, into a fresh module.

        Raises:
            ModelError: as in `unmask.models.hub.directory.load_model`.
        """

    def floors(self, token_counts: NDArray[np.int64]) -> dict[str, dict[str, float]]:
        """What a guess without any context reaches, from how often each entry occurs and, if a target's place shows a
        token, from that token: `loss/...` or `eval/..._accuracy` -> name -> value. The first floor of a loss is the one
        to beat.

        Args:
            token_counts: (vocabulary,) of the store.
        """
