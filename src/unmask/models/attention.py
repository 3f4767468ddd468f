"""Scaled dot-product attention within each sequence of a packed batch (Vaswani et al. 2017, section 3.2.1).

Only attention needs the bounds of sequences. Where `choose_backend` allows it (a GPU, in fp16 or bf16), flash attention
is given the bounds. Elsewhere, sequences are gathered into groups of similar length
(`unmask.models.kernels.row_layout`), each attended in one call. A causal encoder's tokens attend to themselves and to
those before them (Radford et al. 2018, section 3.1).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from unmask.models.dropout import dropout, threshold_of
from unmask.models.kernels.attention_backends import choose_backend
from unmask.models.kernels.banded_attention import attend_in_band, band_mask
from unmask.models.kernels.flash_attention import attend_flash
from unmask.models.kernels.matmul_attention import attend_by_products
from unmask.models.kernels.products import compute_dtype
from unmask.models.kernels.row_layout import Layout


def attend(
    query_key_value: Tensor, layout: Layout, dropout_prob: float, training: bool, causal: bool, window: int | None
) -> Tensor:
    """softmax(Q K^T / sqrt(head_size)) V within each sequence, for each head.

    Args:
        query_key_value: (rows, 3, heads, head_size) float: computed from the rows that `layout.enter` returned.
        dropout_prob: of the attention probabilities, in [0, 1).
        training: False: no dropout.
        causal: True: no token attends to a later one.
        window: a token attends to so many tokens on either side of it; None: to all.

    Returns:
        (rows, heads, head_size), in the same order.
    """
    prob = dropout_prob if training else 0.0
    dtype = compute_dtype(query_key_value)
    backend, _ = choose_backend(query_key_value.device, dtype, prob, query_key_value.shape[-1])
    if backend == "varlen":
        return attend_flash(query_key_value.to(dtype), layout, prob, causal, window)
    if not layout.lengths:  # padded to a bucket: in a run flash attention has taken it, in tests it comes here
        return _attend_all(query_key_value, layout, prob, causal or any(layout.left_to_right), window)
    contexts = []
    for group, grouped in layout.split(query_key_value):
        is_causal = causal or group.causal  # grouped: (sequences, length, 3, heads, head_size)
        within = None if window is None or window >= group.length - 1 else window
        if within and group.length > 4 * within:
            contexts.append(attend_in_band(grouped, group.padding, within, prob, is_causal))
        elif backend == "matmul":
            contexts.append(attend_by_products(grouped, group.padding, threshold_of(prob), is_causal, within))
        else:
            contexts.append(_attend_sdpa(grouped, group.padding, prob, is_causal, within))
    return layout.join(contexts)


def _attend_all(query_key_value: Tensor, layout: Layout, prob: float, causal: bool, window: int | None) -> Tensor:
    """The formula itself, all tokens of a batch at once with other sequences masked: slow, and reached in
    tests alone, by batches padded to a bucket without a GPU."""
    query, key, value = query_key_value.unbind(1)  # each (rows, heads, head_size)
    places = torch.arange(len(query), device=query.device, dtype=torch.int32)
    sequences = torch.searchsorted(layout.bounds, places, right=True)
    seen = sequences[:, None] == sequences  # (rows, rows) bool
    if causal:
        seen = seen & (places[:, None] >= places)
    if window is not None:
        seen = seen & ((places[:, None] - places).abs() <= window)
    scores = torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5  # (heads, rows, rows)
    probabilities = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)
    return torch.einsum("hqk,khd->qhd", dropout(probabilities, prob, training=True), value)


def _attend_sdpa(grouped: Tensor, padding: Tensor | None, prob: float, causal: bool, window: int | None) -> Tensor:
    """By PyTorch's fused kernel: (sequences, length, heads, head_size)."""
    # Padding is at the end: under the causal mask no token sees it.
    mask = None if padding is None or causal else ~padding
    if window is not None:
        mask, causal = band_mask(grouped.shape[1], window, causal, grouped.device, None if causal else padding), False
    query, key, value = grouped.transpose(1, 3).unbind(2)  # (sequences, heads, length, head_size)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=prob, is_causal=causal
    ).transpose(1, 2)
