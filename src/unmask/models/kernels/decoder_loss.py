"""The loss of a decoder over the vocabulary where every token is a target, without all logits at once.

Left-to-right models predict the next token at every token: for 64 sequences of 512 tokens the logits over 40,000
entries are 5 GB, and their gradient as much again. Here decoder, softmax and loss process some rows at a time,
gradients included, so that only a slice of the logits exists at any time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from unmask.batch import IGNORE_INDEX
from unmask.models.kernels.products import linear, linear_of_any_rows, recurring_rows, reuses_shapes
from unmask.models.kernels.vocabulary_logits import padded_vocabulary

_MIN_ROWS = 64
_SOFTMAX_ROWS = {"cpu": 32}
"""Rows of a slice whose softmax is taken at once, for the processor's cache: 1 MB in float32 at 8,192 entries.
Elsewhere all of them."""


def logits_at_once(device: torch.device) -> int:
    """Logits of a slice: 32 MB in float32 on a CPU (as fast there as all at once), and 512 MB on a GPU, whose matrix
    products want many rows."""
    return 2**23 if device.type == "cpu" else 2**27


class Decoder(NamedTuple):
    """What a language model's logits are computed from: `states @ weight.T + bias`.

    Attributes:
        states: (targets, width) float.
        weight: (vocab, width) float, the word embeddings.
        bias: (vocab,), or None for none.
    """

    states: Tensor
    weight: Tensor
    bias: Tensor | None = None


class DecoderScores(NamedTuple):
    """For each target: its loss in nats, and whether the likeliest entry is the right one."""

    losses: Tensor
    right: Tensor


def summed_decoder_loss(decoder: Decoder, labels: Tensor, weights: Tensor | None = None, z_loss: float = 0.0) -> Tensor:
    """The sum over targets of -log softmax(logits)[label] + z_loss log(Z)^2, each times its weight, where Z is the
    softmax's denominator.

    Args:
        labels: (targets,) int64; `IGNORE_INDEX` for a row that counts for nothing.
        weights: (targets,) float32; None counts each as one.
        z_loss: only where a gradient is computed.

    Returns:
        () float32, with a gradient for states, weight and bias; matrix products are in autocast's precision where that
        is on, all sums in float32.
    """
    if not (torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in decoder)):
        losses = score_decoder(decoder, labels).losses
        return (losses if weights is None else losses * weights).sum()
    return _SummedDecoderLoss.apply(*decoder, labels, weights, z_loss)  # type: ignore[no-untyped-call, no-any-return]


@torch.no_grad()
def score_decoder(decoder: Decoder, labels: Tensor) -> DecoderScores:
    """The loss of every target, (targets,) float32, and whether it was guessed, bool; without a gradient."""
    losses = torch.empty(labels.shape, dtype=torch.float32, device=labels.device)
    right = torch.empty(labels.shape, dtype=torch.bool, device=labels.device)
    for rows in _slices(decoder):
        logits = linear_of_any_rows(decoder.states[rows], decoder.weight, decoder.bias)
        losses[rows] = functional.cross_entropy(logits.float(), labels[rows], reduction="none")
        right[rows] = logits.argmax(-1) == labels[rows]
    return DecoderScores(losses, right)


_SMALL = 1e-30
"""Probabilities over this are as exact in float32 as their logarithms."""


def losses_and_gradients(logits: Tensor, labels: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
    """Of each row, -log softmax(logits)[label] + z_loss log(Z)^2, and its gradient: the softmax, times
    1 + 2 z_loss log(Z), minus one at the label: (rows,) and (rows, classes) float32, of labels (rows, 1)."""
    losses, gradient = _losses_and_probabilities(logits, labels)
    if z_loss:
        log_z = losses + logits.gather(1, labels).squeeze(1).float()
        gradient *= (1 + 2 * z_loss * log_z)[:, None]
        losses = losses + z_loss * log_z.square()
    gradient.scatter_add_(1, labels, gradient.new_full((1, 1), -1.0).expand(len(gradient), 1))
    return losses, gradient


def _losses_and_probabilities(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row, -log softmax(logits)[label] and the softmax, with one exponential for each logit."""
    if logits.device.type == "cpu":
        probabilities = torch.softmax(logits, -1, dtype=torch.float32)
        likelihoods = probabilities.gather(1, labels).squeeze(1)
        if len(labels) and likelihoods.min() > _SMALL:  # false for NaN
            return -likelihoods.log(), probabilities
    log_probabilities = torch.log_softmax(logits, -1, dtype=torch.float32)
    losses = -log_probabilities.gather(1, labels).squeeze(1)
    return losses, log_probabilities.exp_()


def _slices(decoder: Decoder) -> list[slice]:
    size = max(_MIN_ROWS, logits_at_once(decoder.states.device) // len(decoder.weight))
    size -= size % _MIN_ROWS  # a number that `recurring_rows` leaves as it is
    return _cut(len(decoder.states), size)


def _cut(num_rows: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, num_rows, size)]


class _SummedDecoderLoss(torch.autograd.Function):
    """Computes all gradients in the forward pass, slice by slice: softmax(logits), minus one at the label, written
    over the logits."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        weights: Tensor | None,
        z_loss: float,
    ) -> Tensor:
        has_bias, vocab_size = bias is not None, len(weight)
        if states.device.type == "cuda":
            weight, bias = padded_vocabulary(weight, bias)
        num_targets = len(states)
        if reuses_shapes(states):
            more = recurring_rows(num_targets) - num_targets
            states = functional.pad(states, (0, 0, 0, more))
            labels = functional.pad(labels, (0, more), value=IGNORE_INDEX)
            weights = None if weights is None else functional.pad(weights, (0, more))
        decoder = Decoder(states, weight, bias)
        total = torch.zeros((), device=states.device)
        of_states = torch.empty_like(states)
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        of_bias = torch.zeros_like(weight[:, 0], dtype=torch.float32) if has_bias else None
        for rows in _slices(decoder):
            its_states, ignored = states[rows], labels[rows] == IGNORE_INDEX
            its_labels = labels[rows].masked_fill(ignored, 0)[:, None]
            logits = linear(its_states, weight, bias)
            for some in _cut(len(logits), _SOFTMAX_ROWS.get(logits.device.type, len(logits))):
                losses, gradient = losses_and_gradients(logits[some], its_labels[some], z_loss)
                losses.masked_fill_(ignored[some], 0)
                if weights is not None:
                    losses *= weights[rows][some]
                    gradient *= weights[rows][some, None]
                total += losses.sum()
                if of_bias is not None:
                    of_bias += torch.mv(gradient.T, (~ignored[some]).float())
                logits[some] = gradient  # in their place
            gradient = logits
            its_states = its_states.masked_fill(ignored[:, None], 0)  # narrower than the gradient, with the same effect
            of_states[rows] = linear(gradient, weight.to(gradient.dtype).T, None).masked_fill_(ignored[:, None], 0)
            of_weight += linear(gradient.T, its_states.to(gradient.dtype).T, None)
        ctx.save_for_backward(
            of_states[:num_targets], of_weight[:vocab_size], None if of_bias is None else of_bias[:vocab_size]
        )
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_states, of_weight, of_bias = ctx.saved_tensors
        factor, (weight_dtype, bias_dtype) = gradients[0], ctx.dtypes
        return (
            (of_states * factor).to(of_states.dtype),
            (of_weight * factor).to(weight_dtype),
            None if of_bias is None else (of_bias * factor).to(bias_dtype),
            None,
            None,
            None,
        )
