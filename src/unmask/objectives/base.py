"""What an objective is: it prepares batches (masks, labels), counts their targets, and builds the module that learns.

The module's forward pass takes a prepared batch and returns the terms of its loss; its attribute `encoder` is what is
kept afterwards.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from unmask.batch import Batch, LossTerm


class ObjectiveModule(Protocol):
    """The module that an objective trains."""

    encoder: nn.Module

    def __call__(self, batch: Batch) -> list[LossTerm]:
        """The terms of the loss on a prepared batch."""

    def scores(self, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        """Sums and counts of what is measured on held-out batches, by name: each metric is their ratio."""


class Objective(Protocol):
    """A way to pre-train."""

    columns: tuple[str, ...]
    """The columns a batch must have: what a packing format has to provide."""

    def prepare(self, batch: Batch) -> Batch:
        """Draws masks and labels from the batch's keys; there is no other source of chance."""

    def counts(self, batch: Batch) -> dict[str, int]:
        """Targets of each loss term in a prepared batch."""
