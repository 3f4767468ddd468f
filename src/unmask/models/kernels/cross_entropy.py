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
from unmask.models.kernels.decoder_loss import losses_and_gradients

_ROWS = 32


class SummedCrossEntropy(nn.Module):
    """`summed_cross_entropy` as a module, so that it is found and compiled with the blocks
    (`unmask.training.captured.compilation`)."""

    def forward(self, logits: Tensor, labels: Tensor, z_loss: float = 0.0) -> Tensor:
        return summed_cross_entropy(logits, labels, z_loss)


def summed_cross_entropy(logits: Tensor, labels: Tensor, z_loss: float = 0.0) -> Tensor:
    """The sum over rows of -log softmax(logits)[label] + z_loss log(Z)^2, computed in float32, where Z is the softmax's
    denominator.

    Args:
        logits: (rows, classes) float; in bfloat16 the gradient is too.
        labels: (rows,) int64, each a class, or `IGNORE_INDEX` for a row that counts for nothing.

    Returns:
        () float32.
    """
    if logits.device.type != "cpu" or torch.compiler.is_compiling():
        total = functional.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")
        if z_loss:
            squares = logits.float().logsumexp(1).square()
            total = total + z_loss * squares.masked_fill(labels == IGNORE_INDEX, 0).sum()
        return total
    return _SummedCrossEntropy.apply(logits, labels, z_loss)  # type: ignore[no-untyped-call, no-any-return]


class _SummedCrossEntropy(torch.autograd.Function):
    """Computes the gradient in the forward pass."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, z_loss: float) -> Tensor:
        total = torch.zeros(())
        gradient = torch.empty_like(logits)
        ignored = labels == IGNORE_INDEX
        labels = labels.masked_fill(ignored, 0)
        for start in range(0, len(labels), _ROWS):
            rows, its_labels = logits[start : start + _ROWS], labels[start : start + _ROWS, None]
            losses, of_rows = losses_and_gradients(rows, its_labels, z_loss)
            total += losses.masked_fill_(ignored[start : start + _ROWS], 0).sum()
            gradient[start : start + _ROWS] = of_rows
        gradient[ignored] = 0
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0], None, None  # the factor stays float32: rounding it would scale every gradient


def summed_binary_cross_entropy(logits: Tensor, answers: Tensor, is_padding: Tensor | None = None) -> Tensor:
    """() float32: the sum over real tokens of the cross-entropy of (tokens,) logits and (tokens,) bool answers."""
    if is_padding is None:
        return functional.binary_cross_entropy_with_logits(logits.float(), answers.float(), reduction="sum")
    losses = functional.binary_cross_entropy_with_logits(logits.float(), answers.float(), reduction="none")
    return losses.masked_fill(is_padding, 0).sum()
