"""Sampling from a softmax over a large vocabulary, by numbers drawn beforehand (Clark et al. 2020, section 2)."""

from __future__ import annotations

import torch
from torch import Tensor

_ROWS = 32
"""Rows taken together on the CPU: the probabilities of all rows are larger than any cache."""

_BELOW_ONE = 1 - 2.0**-24
"""The largest float32 below 1."""


@torch.no_grad()
def sample_from_softmax(logits: Tensor, uniforms: Tensor) -> Tensor:
    """One class per row, drawn from softmax(logits) by inverting its cumulative sum; no gradient goes through it.

    The released code of ELECTRA adds Gumbel noise to all logits and takes the largest, which gives the same
    distribution; here one number per row decides, so that the draw can be keyed by the place in the text.

    Args:
        logits: (rows, classes) float; softmax and sums are computed in float32.
        uniforms: (rows,) float, each in [0, 1).

    Returns:
        (rows,) int64: the first class whose cumulative probability is over the row's number; never one of probability
        0. A row whose logits are NaN or infinite has no probabilities, and gets some class.
    """
    size = _ROWS if logits.device.type == "cpu" else max(1, len(logits))
    fractions = uniforms.to(torch.float32).clamp(max=_BELOW_ONE)  # rounded up to 1, it would be over every sum
    drawn = []
    for rows, its_fractions in zip(torch.split(logits, size), torch.split(fractions, size), strict=True):
        cumulative = torch.softmax(rows, -1, dtype=torch.float32).cumsum(-1)
        thresholds = its_fractions[:, None] * cumulative[:, -1:]  # the last sum is 1 but for rounding
        drawn.append(torch.searchsorted(cumulative, thresholds, right=True).squeeze(1))
    # In a row of NaN no sum exceeds the number: the index found is past the last class, where there is no embedding. It
    # is clamped so that the run gets to its loss, which shows that it has diverged.
    return torch.cat(drawn).clamp_(max=logits.shape[-1] - 1)
