"""Cross-entropy over a large vocabulary, a few rows at a time.

On the CPU the probabilities of all targets at once are larger than any cache: PyTorch's function goes through them
several times and keeps two copies. Here each group of rows is finished, gradient and all, while it is in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.batch import IGNORE_INDEX
from unmask.models.kernels.decoder_loss import losses_and_probabilities

_ROWS = 32


class SummedCrossEntropy(nn.Module):
    """`summed_cross_entropy` as a module, so that it is found and compiled with the blocks
    (`unmask.training.recorded.compilation`)."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return summed_cross_entropy(logits, labels)


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum over rows of -log softmax(logits)[label], computed in float32.

    Args:
        logits: (rows, classes) float; in bfloat16 the gradient is too.
        labels: (rows,) int64, each a class, or `IGNORE_INDEX` for a row that counts for nothing.

    Returns:
        () float32.
    """
    if logits.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")
    return _SummedCrossEntropy.apply(logits, labels)  # type: ignore[no-untyped-call, no-any-return]


class _SummedCrossEntropy(torch.autograd.Function):
    """Computes the gradient in the forward pass: softmax(logits), minus one at the label."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        total = torch.zeros(())
        gradient = torch.empty_like(logits)
        ignored = labels == IGNORE_INDEX
        labels = labels.masked_fill(ignored, 0)
        for start in range(0, len(labels), _ROWS):
            rows, its_labels = logits[start : start + _ROWS], labels[start : start + _ROWS, None]
            losses, probabilities = losses_and_probabilities(rows, its_labels)
            total += losses.masked_fill_(ignored[start : start + _ROWS], 0).sum()
            probabilities.scatter_add_(1, its_labels, -torch.ones(len(rows), 1))
            gradient[start : start + _ROWS] = probabilities
        gradient[ignored] = 0
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0], None  # the factor stays float32: rounding it would scale every gradient
