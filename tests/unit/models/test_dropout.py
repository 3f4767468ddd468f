"""Dropout with a residual in one pass is dropout and a sum."""

from __future__ import annotations

import pytest
import torch

from unmask.models.dropout import add_dropout, dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("prob", "training"), [(0.1, True), (0.0, True), (0.1, False), (1e-9, True)])
def test_a_residual_is_added_to_what_is_left(dtype: torch.dtype, prob: float, training: bool) -> None:
    """The sum is rounded once where it was twice, to 8 bits of a number up to 4 in bfloat16."""
    values, addend, direction = torch.randn(3, 40, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    values.requires_grad_()
    addend.requires_grad_()
    found = []
    for together in (True, False):
        torch.manual_seed(1)
        total = add_dropout(values, addend, prob, training) if together else values + dropout(addend, prob, training)
        found.append((total.detach(), *torch.autograd.grad(total, [values, addend], direction)))
    tolerance = {"rtol": 2**-7, "atol": 2**-6} if dtype == torch.bfloat16 else {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(*found, **tolerance)
