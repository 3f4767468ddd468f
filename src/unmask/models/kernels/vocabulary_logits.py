"""Logits over a vocabulary, in a shape that the device computes fast."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from unmask.models.kernels.products import linear_of_any_rows

_MULTIPLE = 128


def vocabulary_logits(states: Tensor, words: Tensor, bias: Tensor | None) -> Tensor:
    """states words^T + bias: (targets, vocab) from (targets, width), (vocab, width) and (vocab,).

    On a GPU, where gradients are computed, columns of minus infinity are added behind, up to a multiple of 128: rows of
    30,522 logits in two bytes each are not aligned for its matrix units. They change no loss and get no gradient.
    """
    if states.device.type == "cuda" and torch.is_grad_enabled():
        words, bias = padded_vocabulary(words, bias)
    return linear_of_any_rows(states, words, bias)


def padded_vocabulary(words: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Embeddings and bias with entries of probability 0 added up to a multiple of 128."""
    missing = -len(words) % _MULTIPLE
    if not missing:
        return words, bias
    bias = words.new_zeros(len(words)) if bias is None else bias
    return functional.pad(words, (0, 0, 0, missing)), functional.pad(bias, (0, missing), value=-torch.inf)
