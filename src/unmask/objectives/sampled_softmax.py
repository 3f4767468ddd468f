"""Sampled softmax: the loss of a large vocabulary from a few of its words (Jean et al. 2015; Jozefowicz et al. 2016).

As TensorFlow computes it, which ELMo's released code calls: candidates are drawn without repetition, word r of a
vocabulary sorted by descending frequency with probability log((r + 2) / (r + 1)) / log(size + 1); each logit is reduced
by the logarithm of how often its word is expected among them; and a candidate that is the target itself does not count.
One departure: both directions of a window have the same candidates, so that one matrix product does for both.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.chance import WindowStream, uniform
from unmask.models.elmo.word_softmax import WordSoftmax
from unmask.models.kernels.products import compute_dtype, linear

_ROWS = 512
"""Rows whose logits are in memory at once."""


def draw_candidates(chance_key: int, num_candidates: int, vocab_size: int) -> tuple[NDArray[np.int64], int]:
    """Distinct words, drawn one after another until there are enough.

    Args:
        chance_key: the key that they are drawn from.
        num_candidates: under `vocab_size`.

    Returns:
        (num_candidates,) int64 in the order in which they came, and how many were drawn, repetitions counted.
    """
    assert num_candidates < vocab_size, "there is no drawing all words"
    size = 2 * num_candidates
    while True:
        counters = torch.arange(size)
        draws = uniform(torch.full((size,), chance_key), counters, WindowStream.CANDIDATES).numpy()
        words = np.minimum(np.exp(draws * math.log(vocab_size + 1)).astype(np.int64) - 1, vocab_size - 1)
        _, firsts = np.unique(words, return_index=True)
        if len(firsts) >= num_candidates:
            places = np.sort(firsts)[:num_candidates]
            return words[places], int(places[-1]) + 1
        size *= 2


def log_expected_counts(words: Tensor, num_draws: int, vocab_size: int) -> Tensor:
    """(n,) float64: log(1 - (1 - p)^draws), how likely each of `words` (n,) int64 is to be among the candidates."""
    ranks = words.double()
    probabilities = torch.log1p(1 / (ranks + 1)) / math.log(vocab_size + 1)
    return torch.log(-torch.expm1(num_draws * torch.log1p(-probabilities)))


def summed_sampled_loss(
    softmax: WordSoftmax, hidden: Tensor, labels: Tensor, candidates: Tensor, num_draws: int
) -> Tensor:
    """The sum over rows of -log p(label), among the label and the candidates.

    Args:
        softmax: of all words.
        hidden: (rows, projection) float.
        labels: (rows,) int64.
        candidates: (n,) int64, all different.
        num_draws: see `draw_candidates`.

    Returns:
        () float32.
    """
    vocab_size = len(softmax.bias)

    def corrected(words: Tensor) -> Tensor:
        return softmax.bias[words] - log_expected_counts(words, num_draws, vocab_size).to(softmax.bias.dtype)

    of_labels = (hidden * softmax.weight[labels]).sum(1) + corrected(labels)
    place = torch.full((vocab_size,), -1, device=labels.device)
    place[candidates] = torch.arange(len(candidates), device=labels.device)
    return _SummedSampledLoss.apply(  # type: ignore[no-untyped-call, no-any-return]
        of_labels.float(), hidden.float(), softmax.weight[candidates], corrected(candidates), place[labels]
    )


class _SummedSampledLoss(torch.autograd.Function):
    """Some rows at a time, gradients and all, so that their logits stay in the cache, and are never all there."""

    @staticmethod
    def forward(ctx: Any, of_labels: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor, hit: Tensor) -> Tensor:
        precision = compute_dtype(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            inputs, words = hidden.to(precision), weight.to(precision)
            total = torch.zeros((), device=hidden.device)
            d_labels, d_hidden = torch.empty_like(of_labels), torch.empty_like(hidden)
            d_columns, d_bias = weight.new_zeros(weight.shape[1], len(weight)), torch.zeros_like(bias)
            for start in range(0, len(hidden), _ROWS):
                rows = slice(start, start + _ROWS)
                logits = linear(inputs[rows], words, None).float().add_(bias)
                struck = torch.nonzero(hit[rows] >= 0).squeeze(1)
                logits[struck, hit[rows][struck]] = -math.inf
                largest = torch.maximum(logits.amax(1), of_labels[rows])
                shares = logits.sub_(largest[:, None]).exp_()
                share = torch.exp(of_labels[rows] - largest)
                of_all = shares.sum(1) + share
                total += (of_all.log() + largest - of_labels[rows]).sum()
                d_labels[rows] = share / of_all - 1
                shares /= of_all[:, None]
                d_bias += shares.sum(0)
                rounded = shares.to(precision)
                d_hidden[rows] = linear(rounded, words.T, None)
                d_columns += linear(inputs[rows].T.contiguous(), rounded.T, None)
        ctx.save_for_backward(d_labels, d_hidden, d_columns.T, d_bias)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*(gradient * gradients[0] for gradient in ctx.saved_tensors), None)
