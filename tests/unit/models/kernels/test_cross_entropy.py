"""The cross-entropy that works a few rows at a time is PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from unmask.batch import IGNORE_INDEX
from unmask.models.kernels.cross_entropy import summed_cross_entropy


@pytest.mark.parametrize("num_rows", [0, 1, 32, 75])
def test_loss_and_gradient_are_pytorchs(num_rows: int) -> None:
    torch.manual_seed(num_rows)
    logits = (torch.randn(num_rows, 101) * 5).requires_grad_()
    labels = torch.randint(101, (num_rows,))
    ours, theirs = summed_cross_entropy(logits, labels), functional.cross_entropy(logits, labels, reduction="sum")
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-5)  # the order of sums differs
    gradients = (torch.autograd.grad(3 * total, logits) for total in (ours, theirs))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


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


def test_a_label_as_good_as_impossible_has_its_loss() -> None:
    """Its probability is 0 in float32, and its loss is 200."""
    logits = torch.tensor([[0.0, 200.0, 0.0], [1.0, 2.0, 3.0]], requires_grad=True)
    labels = torch.tensor([2, 1])
    ours, theirs = summed_cross_entropy(logits, labels), functional.cross_entropy(logits, labels, reduction="sum")
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert torch.isnan(summed_cross_entropy(torch.full((2, 3), torch.nan, requires_grad=True), labels))


def test_rows_without_a_label_count_for_nothing() -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, 11, requires_grad=True)
    labels = torch.randint(11, (40,))
    labels[::3] = IGNORE_INDEX
    ours, theirs = summed_cross_entropy(logits, labels), functional.cross_entropy(logits, labels, reduction="sum")
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-5)
    (our_gradient,), (their_gradient,) = (torch.autograd.grad(loss, logits) for loss in (ours, theirs))
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-5, atol=1e-6)
    assert not our_gradient[::3].any()


def test_a_compiled_step_has_the_same_z_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the formula that GPUs use, whose shapes do not depend on which rows have a label."""
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1, IGNORE_INDEX, 3, 0, IGNORE_INDEX])
    expected = summed_cross_entropy(logits, labels, 0.3)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(summed_cross_entropy(logits, labels, 0.3), expected)
