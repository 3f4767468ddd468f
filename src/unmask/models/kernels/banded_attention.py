"""Attention to a window around each token, on the CPU: by a mask for sequences of a few windows, block by block for
longer ones, so that memory grows with the tokens and not with their square."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from unmask.models.dropout import dropout


def band_mask(length: int, window: int, causal: bool, device: torch.device, padding: Tensor | None) -> Tensor:
    """(1 or sequences, 1, length, length) bool, True where a token (third) sees another (last). Each sees itself, so
    that no row of padding is without anything to see. `causal` and `padding`: as for `attend_in_band`."""
    places = torch.arange(length, device=device)
    distance = places[:, None] - places
    seen = (distance.abs() <= window)[None, None]
    if causal:
        seen = seen & (distance >= 0)
    return seen if padding is None else (seen & ~padding) | (distance == 0)


def attend_in_band(grouped: Tensor, padding: Tensor | None, window: int, prob: float, causal: bool) -> Tensor:
    """softmax(Q K^T / sqrt(head_size)) V for each sequence and head, each token with those of its window.

    Queries are cut into blocks of `window` tokens; a block's keys are its own and one window on either side.

    Args:
        grouped: (sequences, length, 3, heads, head_size) float: queries, keys, values.
        padding: (sequences, 1, 1, length) bool, True where there is no token; None where there is one everywhere.
        window: how many tokens each attends to on either side, at least 1.
        prob: of dropout on the softmax; 0: none.
        causal: True: no token attends to a later one.

    Returns:
        (sequences, length, heads, head_size).
    """
    length, head_size = grouped.shape[1], grouped.shape[-1]
    num_blocks = -(-length // window)
    missing = num_blocks * window - length
    query, key, value = grouped.permute(2, 0, 3, 1, 4)  # each (sequences, heads, length, head_size)
    query = torch.unflatten(functional.pad(query, (0, 0, 0, missing)), 2, (num_blocks, window))
    sides = (0, 0, window, window + missing)
    keys = functional.pad(key, sides).unfold(2, 3 * window, window)  # (sequences, heads, blocks, head_size, 3 windows)
    values = functional.pad(value, sides).unfold(2, 3 * window, window)
    is_token = torch.ones(1, 1, 1, length, dtype=torch.bool, device=grouped.device) if padding is None else ~padding
    is_key = functional.pad(is_token, (window, window + missing)).unfold(3, 3 * window, window).movedim(2, 4)
    keys_of_block = torch.arange(3 * window, device=grouped.device)
    distance = keys_of_block[window : 2 * window, None] - keys_of_block
    seen = distance.abs() <= window
    if causal:
        seen = seen & (distance >= 0)
    seen = (seen & is_key.movedim(4, 3)) | (distance == 0)  # (1 or sequences, 1, blocks, window, 3 windows)
    scores = (query * head_size**-0.5) @ keys  # (sequences, heads, blocks, window, 3 windows)
    probabilities = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    context = dropout(probabilities, prob, training=True) @ values.transpose(3, 4)
    return context.flatten(2, 3)[:, :, :length].transpose(1, 2)
