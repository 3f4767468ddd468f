"""The loss of a decoder in slices: the figure and gradients of all logits at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from unmask.batch import IGNORE_INDEX
from unmask.models.kernels import decoder_loss
from unmask.models.kernels.cross_entropy import summed_cross_entropy
from unmask.models.kernels.decoder_loss import Decoder, score_decoder, summed_decoder_loss


def drawn(num_targets: int, bias: bool) -> tuple[Decoder, Tensor]:
    generator = torch.Generator().manual_seed(num_targets)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    decoder = Decoder(draw(num_targets, 8), draw(40, 8), draw(40) if bias else None)
    return decoder, torch.randint(0, 40, (num_targets,), generator=generator)


def gradients(total: Tensor, decoder: Decoder) -> list[Tensor]:
    return list(torch.autograd.grad(total, [part for part in decoder if part is not None]))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("num_targets", "ignored"), [(1, []), (64, []), (150, []), (150, [0, 31, 32, 63, 64, 149])])
def test_slices_come_to_what_all_logits_come_to(
    monkeypatch: pytest.MonkeyPatch, num_targets: int, ignored: list[int], weighted: bool, bias: bool
) -> None:
    """Slices of 64 rows, of which 32 have their softmax at once. Tolerance: sums of fp32 in another order."""
    monkeypatch.setattr(decoder_loss, "logits_at_once", lambda device: 1)
    decoder, labels = drawn(num_targets, bias)
    labels[ignored] = IGNORE_INDEX
    weights = torch.rand(num_targets, generator=torch.Generator().manual_seed(0)) if weighted else None
    losses = functional.cross_entropy(functional.linear(*decoder), labels, reduction="none")
    expected = (losses if weights is None else losses * weights).sum()
    found = summed_decoder_loss(decoder, labels, weights)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(3 * found, decoder), gradients(3 * expected, decoder), rtol=1e-5, atol=1e-5)
    scores = score_decoder(decoder, labels)
    torch.testing.assert_close(scores.losses, losses)
    assert torch.equal(scores.right, functional.linear(*decoder).argmax(-1) == labels)


def test_the_denominator_has_a_loss_of_its_own() -> None:
    decoder, labels = drawn(70, bias=True)
    labels[::9] = IGNORE_INDEX
    logits = functional.linear(*decoder)
    denominators = logits.logsumexp(1)[labels != IGNORE_INDEX].square().sum()
    expected = functional.cross_entropy(logits, labels, reduction="sum") + 0.3 * denominators
    of_logits = logits.detach().requires_grad_()
    (wanted,) = torch.autograd.grad(expected, logits, retain_graph=True)
    for found in (summed_decoder_loss(decoder, labels, z_loss=0.3), summed_cross_entropy(of_logits, labels, 0.3)):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(found, of_logits)[0], wanted, rtol=1e-5, atol=1e-5)
    total = summed_decoder_loss(decoder, labels, z_loss=0.3)
    torch.testing.assert_close(gradients(total, decoder), gradients(expected, decoder), rtol=1e-5, atol=1e-4)


def test_without_a_gradient_the_figure_is_the_same() -> None:
    decoder, labels = drawn(10, bias=True)
    with torch.no_grad():
        found = summed_decoder_loss(decoder, labels)
    assert not found.requires_grad
    torch.testing.assert_close(found, summed_decoder_loss(decoder, labels).detach())


def test_no_target_is_no_loss() -> None:
    decoder = Decoder(torch.zeros(0, 8, requires_grad=True), torch.ones(40, 8, requires_grad=True))
    total = summed_decoder_loss(decoder, torch.zeros(0, dtype=torch.int64))
    assert total.item() == 0
    assert all((gradient == 0).all() for gradient in gradients(total, decoder))


def test_in_bfloat16_only_the_products_are_rounded() -> None:
    """Tolerance: bfloat16 has 8 bits, a rounding is 4e-3 of a logit of order 3."""
    decoder, labels = drawn(83, bias=True)
    expected = summed_decoder_loss(decoder, labels)
    with torch.autocast("cpu", torch.bfloat16):
        found = summed_decoder_loss(decoder, labels)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=0)
    for ours, theirs in zip(gradients(found, decoder), gradients(expected, decoder), strict=True):
        assert ours.dtype == torch.float32
        assert float((ours - theirs).abs().max()) < 0.02 * float(theirs.abs().max())
