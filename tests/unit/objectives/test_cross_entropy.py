"""The cross-entropy that works a few rows at a time is PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from unmask.objectives.cross_entropy import summed_cross_entropy


@pytest.mark.parametrize("num_rows", [0, 1, 32, 75])
def test_loss_and_gradient_are_pytorchs(num_rows: int) -> None:
    torch.manual_seed(num_rows)
    logits = (torch.randn(num_rows, 101) * 5).requires_grad_()
    labels = torch.randint(101, (num_rows,))
    ours, theirs = summed_cross_entropy(logits, labels), functional.cross_entropy(logits, labels, reduction="sum")
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-5)  # the order of sums differs
    (our_gradient,) = torch.autograd.grad(3 * ours, logits)
    (their_gradient,) = torch.autograd.grad(3 * theirs, logits)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-5, atol=1e-6)


def test_in_bfloat16_the_loss_is_that_of_the_rounded_logits() -> None:
    torch.manual_seed(0)
    logits = torch.randn(70, 101).bfloat16().requires_grad_()
    labels = torch.randint(101, (70,))
    total = summed_cross_entropy(logits, labels)
    assert total.dtype == torch.float32
    expected = functional.cross_entropy(logits.float(), labels, reduction="sum")
    torch.testing.assert_close(total, expected, rtol=1e-6, atol=1e-5)
    (gradient,) = torch.autograd.grad(total / 611, logits)
    (their_gradient,) = torch.autograd.grad(expected / 611, logits)
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(gradient, their_gradient, rtol=2**-7, atol=1e-9)  # two roundings to 8 bits
    scale = (gradient.double() * their_gradient.double()).sum() / their_gradient.double().square().sum()
    assert abs(scale - 1) < 1.5e-3  # roundings nearly average out; a factor of 1/611 in 8 bits is off by 2.2e-3
