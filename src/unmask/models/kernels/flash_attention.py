"""Flash attention on packed tokens, on a GPU (Dao 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.models.kernels.attention_backends import varlen_kernel
from unmask.models.kernels.row_layout import Layout


def attend_flash(query_key_value: Tensor, layout: Layout, prob: float, causal: bool, window: int | None) -> Tensor:
    """softmax(Q K^T / sqrt(head_size)) V within each sequence; those read from left to right take a call of
    their own.

    The arguments are those of `unmask.models.attention.attend`, in fp16 or bf16.
    """
    directions = set(layout.left_to_right) or {False}
    if len(directions) == 1:
        return _attend_varlen(query_key_value, layout, prob, causal or directions.pop(), window)
    context = torch.zeros_like(query_key_value[:, 0])
    for is_causal, tokens, part in layout.directions:
        of_part = _attend_varlen(query_key_value[tokens], part, prob, causal or is_causal, window)
        context = context.index_copy(0, tokens, of_part)
    return context


def _attend_varlen(query_key_value: Tensor, layout: Layout, prob: float, causal: bool, window: int | None) -> Tensor:
    sides = {} if window is None else {"window_size_left": window, "window_size_right": 0 if causal else window}
    bounds, longest = layout.bounds, layout.max_length
    context, *_ = varlen_kernel()(
        *query_key_value.unbind(1), bounds, bounds, longest, longest, prob, causal, False, **sides
    )
    return context
