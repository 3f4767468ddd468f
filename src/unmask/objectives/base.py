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
        parts: what else `unmask.models.hub.save_model` is given: heads by name, `causal_lm`.
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
    """What the module of an objective offers beside that where its run may have stages, in which it learns otherwise.

    Attributes:
        stage: the present one, from 0. It is part of the `state_dict`, so that a checkpoint has it.
    """

    stage: int

    @property
    def stages(self) -> tuple[float, ...]:
        """The shares of the budget at which each stage ends, ascending; the last is 1."""

    def begin_stage(self, number: int) -> None:
        """Goes over to a stage, which is the present one or the next."""


class Objective(Protocol):
    """A way to pre-train.

    Attributes:
        columns: those that a batch must have: what a packing format has to provide.
        needs_pooler: whether the encoder's pooler is trained.
        perplexities: scores of the module that are mean losses in nats per token: their exponentials are told as well,
            with `_loss` replaced by `_perplexity`.
    """

    columns: tuple[str, ...]
    needs_pooler: bool
    perplexities: tuple[str, ...]

    def prepare(self, batch: Batch) -> Batch:
        """Draws masks and labels from the batch's keys; there is no other source of chance."""

    def counts(self, batch: Batch) -> dict[str, int]:
        """Targets in a prepared batch of each loss term that the module may return for it."""

    def build(self, encoder: Encoder) -> ObjectiveModule:
        """The module that learns, with fresh heads on `encoder`."""

    def restore_heads(self, module: ObjectiveModule, directory: Path) -> None:
        """Gives a fresh module the heads (and the generator) that a model directory has, where it has them.

        Raises:
            ModelError: as in `unmask.models.hub.load_model`.
        """

    def floors(self, token_counts: NDArray[np.int64]) -> dict[str, dict[str, float]]:
        """What is had by how often each entry occurs and, where a target's place shows something, by the token shown
        there, without any context: `loss/...` or `eval/..._accuracy` -> name -> value. The first of a loss is the one
        to be passed.

        Args:
            token_counts: (vocabulary,) of the store.
        """
