"""Rotary position embeddings (Su et al. 2021): queries and keys are turned by angles that grow with the position, so
that their products depend on the distance between tokens alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unmask.models.kernels.row_layout import Layout


def rotate(query_key_value: Tensor, layout: Layout, theta: float) -> Tensor:
    """Queries and keys turned by their positions; values as they are.

    Dimension i and i + head_size / 2 are a pair, turned by position / theta^(2 i / head_size), as in GPT-NeoX. From and
    to (rows, 3, heads, head_size); the layout keeps the angles for all layers with this theta.
    """
    cos, sin = _angles(layout, theta, query_key_value.shape[-1], query_key_value.dtype)
    return _Rotate.apply(query_key_value, cos, sin)  # type: ignore[no-untyped-call, no-any-return]


def _angles(layout: Layout, theta: float, head_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every row, each (rows, 1, 1, head_size / 2)."""
    key = (theta, head_size, dtype)
    if key not in layout.angles:
        assert layout.position_ids is not None, "the layout of a batch has its positions"
        positions = layout.enter(layout.position_ids).float()
        frequencies = 1.0 / theta ** (torch.arange(0, head_size, 2, device=positions.device).float() / head_size)
        angles = (positions[:, None] * frequencies)[:, None, None]
        layout.angles[key] = angles.cos().to(dtype), angles.sin().to(dtype)
    return layout.angles[key]


class _Rotate(torch.autograd.Function):
    """The gradient is turned back; autograd of the formula would keep and copy four halves."""

    @staticmethod
    def forward(ctx: Any, query_key_value: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(query_key_value, cos, sin)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(gradients[0], cos, -sin), None, None


def _turned(query_key_value: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = torch.empty_like(query_key_value, memory_format=torch.contiguous_format)
    turned[:, 2] = query_key_value[:, 2]
    first, second = query_key_value[:, :2].chunk(2, -1)
    into_first, into_second = turned[:, :2].chunk(2, -1)
    torch.addcmul(first * cos, second, sin, value=-1, out=into_first)
    torch.addcmul(second * cos, first, sin, out=into_second)
    return turned
