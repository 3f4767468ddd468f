"""A second objective beside the masked tokens: it reads some places of the encoder's output with a head of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from unmask.batch import IGNORE_INDEX, Batch
from unmask.models.buckets import Paddings
from unmask.models.encoder import TokenEncoder
from unmask.models.hub.source import LoadedModel
from unmask.models.settings import EncoderSettings
from unmask.objectives.base import Saved
from unmask.objectives.floors import Floor


class SecondObjective(ABC):
    """What masked language modelling asks of one.

    Attributes:
        term: of the loss.
        weight: of that term.
        head_name: of its head, in the weights of a checkpoint.
        is_pooled: whether it reads first tokens through the encoder's pooler.
        is_over_vocabulary: whether its classes are the entries of the vocabulary.
        paddings: how its columns are padded to a bucket.
    """

    term: str
    weight: float
    head_name: str
    is_pooled: bool = False
    is_over_vocabulary: bool = False
    paddings: Paddings

    @abstractmethod
    def new_head(self, sizes: EncoderSettings) -> nn.Module: ...

    def prepare(self, batch: Batch, chosen: Tensor) -> Batch:
        """Adds its columns to a masked batch, if it has any; `chosen` (tokens,) bool are the masked-LM targets."""
        return batch

    @abstractmethod
    def count(self, batch: Batch) -> int:
        """Its targets in a prepared batch."""

    @abstractmethod
    def places(self, batch: Batch) -> Tensor:
        """(places,) int64: the tokens whose hidden states its head reads."""

    @abstractmethod
    def answer(self, head: nn.Module, hidden: Tensor, batch: Batch, encoder: TokenEncoder) -> tuple[Tensor, Tensor]:
        """Logits (targets, classes) and labels (targets,) int64, `IGNORE_INDEX` where there is none, from hidden states
        (places, hidden)."""

    def total(self, logits: Tensor, labels: Tensor, cross_entropy: nn.Module) -> Tensor:
        """() float32, the sum of the losses; `cross_entropy` is that of the vocabulary."""
        if self.is_over_vocabulary:
            total: Tensor = cross_entropy(logits, labels)
            return total
        return functional.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")

    @abstractmethod
    def restored(self, head: nn.Module, loaded: LoadedModel, directory: Path) -> nn.Module:
        """The head of a model directory in place of a fresh one, if that has it."""

    @abstractmethod
    def saved(self, head: nn.Module, model: Saved) -> Saved:
        """The model that is kept, with its head."""

    @abstractmethod
    def floors(self, token_counts: NDArray[np.int64], batches: Sequence[Batch]) -> list[Floor]: ...

    @abstractmethod
    def operations(self, sizes: EncoderSettings, batch: Batch, length: float) -> tuple[float, float]:
        """The share of the tokens that its head reads, and the head's forward pass, per token shown."""

    def describe_sequences(self, batch: Batch, most: int) -> list[str]:
        """As `Objective.describe_sequences`."""
        return [""] * most

    @abstractmethod
    def describe_batches(self, batches: Sequence[Batch]) -> list[tuple[str, str]]: ...

    def titles(self, batch: Batch, logits: Tensor, most: int) -> list[str]:
        """What is predicted of each of the first sequences as a whole, for a report, or ""."""
        return [""] * most
