"""Attention computed by its formula, on the CPU, for sequences of one length: PyTorch's own has no dropout there,
and takes several times as long in bf16.

Queries, keys and values come in one tensor, and so do their gradients, and the matrix products do the scaling: autograd
would copy each of the three gradients twice over, and go through the probabilities twice more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unmask.models.dropout import as_factors, draw_kept, scale_of_kept
from unmask.models.kernels.banded_attention import band_mask


def attend_by_products(
    grouped: Tensor, padding: Tensor | None, threshold: int, causal: bool, window: int | None
) -> Tensor:
    """As `attend_in_band`, without a window or with a wide one; `threshold`: of dropout, in 1/65,536; 0: none."""
    bias = _bias(grouped, padding, causal, window)
    return _Attention.apply(grouped, bias, threshold)  # type: ignore[no-untyped-call, no-any-return]


def _bias(grouped: Tensor, padding: Tensor | None, causal: bool, window: int | None) -> Tensor | None:
    """Minus infinity where a token is not seen, to be added to (sequences x heads, length, length) scores."""
    length, heads = grouped.shape[1], grouped.shape[3]
    if causal or window is not None:
        hidden = None if causal else padding  # padding is at the end: under the causal mask no token sees it
        seen = band_mask(length, length if window is None else window, causal, grouped.device, hidden)
        penalties = grouped.new_zeros(seen.shape).masked_fill(~seen, float("-inf"))
        if len(seen) == 1:
            return penalties[0]
    elif padding is None:
        return None
    else:
        penalties = grouped.new_zeros(padding.shape).masked_fill(padding, float("-inf"))
    return penalties.expand(-1, heads, -1, -1).flatten(0, 1)  # (sequences x heads, 1 or length, length)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grouped: Tensor, bias: Tensor | None, threshold: int) -> Tensor:
        sequences, length, _, heads, head_size = grouped.shape
        parts = grouped.permute(2, 0, 3, 1, 4).reshape(3, sequences * heads, length, head_size)
        query, key, value = parts
        none = grouped.new_zeros(1)
        scores = torch.baddbmm(
            none if bias is None else bias, query, key.transpose(1, 2), beta=bias is not None, alpha=head_size**-0.5
        )
        probabilities = torch.softmax(scores, dim=-1)
        keep = draw_kept(probabilities.shape, threshold) if threshold else None
        ctx.scale = scale_of_kept(threshold)
        kept = probabilities if keep is None else probabilities * as_factors(keep, grouped.dtype)
        context = torch.baddbmm(none, kept, value, beta=0, alpha=ctx.scale)
        ctx.save_for_backward(parts, probabilities, keep, kept)
        ctx.shape = grouped.shape
        return context.view(sequences, heads, length, head_size).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        parts, probabilities, keep, kept = ctx.saved_tensors
        sequences, length, _, heads, head_size = ctx.shape
        query, key, value = parts
        of_context = gradients[0].transpose(1, 2).reshape(value.shape)
        of_parts, none, scale = torch.empty_like(parts), parts.new_zeros(1), ctx.scale
        torch.baddbmm(none, kept.transpose(1, 2), of_context, beta=0, alpha=scale, out=of_parts[2])
        of_kept = torch.bmm(of_context, value.transpose(1, 2))
        if keep is not None:
            of_kept *= as_factors(keep, of_kept.dtype)
        of_scores = torch._softmax_backward_data(of_kept, probabilities, -1, probabilities.dtype)
        alpha = scale * head_size**-0.5
        torch.baddbmm(none, of_scores, key, beta=0, alpha=alpha, out=of_parts[0])
        torch.baddbmm(none, of_scores.transpose(1, 2), query, beta=0, alpha=alpha, out=of_parts[1])
        return of_parts.view(3, sequences, heads, length, head_size).permute(1, 3, 0, 2, 4), None, None
