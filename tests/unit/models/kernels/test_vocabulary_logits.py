"""Entries that fill a vocabulary up change no loss and no gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unmask.models.kernels.cross_entropy import summed_cross_entropy
from unmask.models.kernels.decoder_loss import Decoder, summed_decoder_loss
from unmask.models.kernels.products import linear
from unmask.models.kernels.vocabulary_logits import padded_vocabulary, vocabulary_logits


def parts(vocab_size: int, has_bias: bool, device: str = "cpu") -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(vocab_size)
    drawn = [torch.randn(shape, generator=generator) for shape in ((9, 16), (vocab_size, 16), (vocab_size,))]
    labels = torch.randint(vocab_size, (9,), generator=generator)
    leaves = [part.to(device).requires_grad_() for part in drawn[: 2 + has_bias]]
    return leaves, labels.to(device)


@pytest.mark.parametrize("vocab_size", [1, 127, 128, 300])
@pytest.mark.parametrize("has_bias", [False, True])
def test_padding_changes_no_loss_and_no_gradient(vocab_size: int, has_bias: bool) -> None:
    """fp32: a sum with zeros added to it, in another order."""
    (states, words, *rest), labels = parts(vocab_size, has_bias)
    bias = rest[0] if has_bias else None
    padded_words, padded_bias = padded_vocabulary(words, bias)
    assert len(padded_words) % 128 == 0
    padded = summed_cross_entropy(linear(states, padded_words, padded_bias), labels)
    plain = summed_cross_entropy(linear(states, words, bias), labels)
    torch.testing.assert_close(padded, plain)
    gradients = (torch.autograd.grad(loss, [states, words, *rest]) for loss in (padded, plain))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_elsewhere_than_on_a_gpu_nothing_is_padded() -> None:
    (states, words, bias), _ = parts(300, has_bias=True)
    assert vocabulary_logits(states, words, bias).shape == (9, 300)


@pytest.mark.gpu
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_gpu_finds_what_the_cpu_finds(has_bias: bool) -> None:
    """Of both ways to a loss over the vocabulary; fp32 without TF32, PyTorch's default."""
    found = []
    for device in ("cpu", "cuda"):
        leaves, labels = parts(300, has_bias, device)
        states, words, *rest = leaves
        bias = rest[0] if has_bias else None
        logits = vocabulary_logits(states, words, bias)
        losses = [summed_cross_entropy(logits, labels), summed_decoder_loss(Decoder(states, words, bias), labels)]
        gradients = [gradient for loss in losses for gradient in torch.autograd.grad(loss, leaves, retain_graph=True)]
        found.append([each.detach().cpu() for each in (*losses, *gradients)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
