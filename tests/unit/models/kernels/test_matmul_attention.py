"""Attention by matrix products: values and gradients are autograd's, on the elements that dropout keeps."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from unmask.models.dropout import draw_kept, scale_of_kept
from unmask.models.kernels.matmul_attention import attend_by_products


def attend_plainly(rows: Tensor, padding: Tensor | None, threshold: int, causal: bool) -> Tensor:
    """The formula, by autograd, for (sequences, length, 3, heads, head_size)."""
    query, key, value = rows.permute(2, 0, 3, 1, 4)
    scores = query @ key.transpose(-1, -2) * rows.shape[-1] ** -0.5
    if padding is not None:
        scores = scores.masked_fill(padding, float("-inf"))
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    probabilities = scores.softmax(-1)
    if threshold:
        keep = draw_kept(probabilities.flatten(0, 1).shape, threshold).view(probabilities.shape)
        probabilities = probabilities * keep * scale_of_kept(threshold)
    return (probabilities @ value).transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("threshold", [0, 20000])
@pytest.mark.parametrize(("pads", "causal"), [(False, False), (True, False), (False, True)])
def test_values_and_gradients_are_autograds(dtype: torch.dtype, threshold: int, pads: bool, causal: bool) -> None:
    """float64: to rounding; bf16: its formula is rounded to 8 bits at every step, some 2 % of values of order 1."""
    generator = torch.Generator().manual_seed(7)
    rows = torch.randn(3, 6, 3, 2, 4, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    direction = torch.randn(3, 6, 2, 4, generator=generator, dtype=torch.float64).to(dtype)
    padding = (torch.arange(6) >= torch.tensor([6, 4, 1])[:, None])[:, None, None] if pads else None
    tolerance = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 2e-2, "atol": 3e-2}
    found = []
    for attend in (partial(attend_by_products, window=None), attend_plainly):
        torch.manual_seed(3)
        context = attend(rows, padding, threshold, causal)
        found.append((context.detach(), *torch.autograd.grad(context, rows, direction)))
    torch.testing.assert_close(*found, **tolerance)
