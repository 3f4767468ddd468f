"""Tensors and batches compared, and gradients drawn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from unmask.batch import Batch, StepBatches
from unmask.packing.loader import Position


def assert_equal(found: Any, expected: Any) -> None:
    """Tensors, or lists or dictionaries of them, are equal bit for bit."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def give_gradients(parameters: Iterable[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def same_batch(first: Batch, second: Batch) -> bool:
    names = ("input_ids", "token_type_ids", "position_ids", "bounds", "keys")
    return (
        first.lengths == second.lengths
        and first.columns.keys() == second.columns.keys()
        and all(torch.equal(getattr(first, name), getattr(second, name)) for name in names)
        and all(torch.equal(column, second.columns[name]) for name, column in first.columns.items())
    )


def same_step(first: StepBatches[Position], second: StepBatches[Position]) -> bool:
    """Whether the batches are the same, and so is what comes after them."""
    places = (first.after, first.epochs) == (second.after, second.epochs)
    return places and all(map(same_batch, first.batches, second.batches)) and len(first.batches) == len(second.batches)
