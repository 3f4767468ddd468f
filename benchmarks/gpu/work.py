"""What a step has to compute, and how fast the device multiplies: a share is necessary work / seconds / rate.

Necessary work is that of matrix products, two operations per multiply-add, the backward pass counted as twice the
forward pass. It follows from the sizes and the real lengths, so it excludes padding, recomputation and logits that no
loss reads. Every block counts in full for every token, even the last one, of which a masked LM needs less: published
shares are counted in this way. Element-wise work and the optimizer's do not count.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from unmask.batch import Batch
    from unmask.models.settings import EncoderSettings

MATRIX_SIZE = 8192
BACKWARD = 2
"""Forward and backward, in forward passes: the gradient of a product needs two products of its size."""


def encoder_flops(sizes: EncoderSettings, lengths: Sequence[int]) -> float:
    """The forward pass of an encoder over sequences of these lengths.

    A block: 2 (4 h^2 + 2 h f) for each token, and 4 h for each pair of a token and one that it attends to.
    """
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    tokens = sum(lengths)
    pairs = sum(length * (length + 1) / 2 if sizes.is_causal else length * length for length in lengths)
    width = sizes.embedding_size or hidden
    projection = 2 * width * hidden * tokens if width != hidden else 0
    block = 2 * (4 * hidden**2 + 2 * hidden * inner) * tokens + 4 * hidden * pairs
    return projection + sizes.num_hidden_layers * block


def vocabulary_flops(sizes: EncoderSettings, num_targets: int, has_transform: bool = True) -> float:
    """The forward pass of a head over the vocabulary, at its targets alone."""
    width = sizes.embedding_size or sizes.hidden_size
    transform = sizes.hidden_size * width if has_transform else 0
    return 2.0 * num_targets * (transform + width * sizes.vocab_size)


def step_flops(objective: str, sizes: EncoderSettings, generator: EncoderSettings | None, batch: Batch) -> float:
    """A step's work, forward and backward, of an objective on a prepared batch.

    Args:
        objective: `mlm+nsp`, `mlm`, `span`, `rtd` or `causal`.
        sizes: the encoder's.
        generator: the sizes of `rtd`'s generator.
    """
    from unmask.models.heads.span_boundary_head import POSITION_SIZE

    columns, hidden = batch.columns, sizes.hidden_size
    num_targets = len(columns["target_positions"])
    forward = encoder_flops(sizes, batch.lengths)
    if objective == "causal":
        forward += vocabulary_flops(sizes, num_targets, has_transform=sizes.architecture == "bert")
    elif objective == "rtd":
        assert generator is not None, "replaced tokens are a generator's"
        forward += 2 * (hidden**2 + hidden) * batch.num_tokens  # the discriminator's head reads every token
        forward += encoder_flops(generator, batch.lengths) + vocabulary_flops(generator, num_targets)
    else:
        forward += vocabulary_flops(sizes, num_targets)
    if objective == "mlm+nsp":
        forward += 2 * (hidden**2 + 2 * hidden) * batch.num_sequences
    if objective == "span":
        layers = (2 * hidden + POSITION_SIZE) * hidden + hidden * hidden
        forward += 2 * len(columns["boundary_targets"]) * (layers + hidden * sizes.vocab_size)
    return (1 + BACKWARD) * forward


def matrix_rate(device: torch.device, size: int = MATRIX_SIZE, rounds: int = 7) -> float:
    """Operations per second of a product of two square matrices of random bf16, the median of some rounds.

    Zeros would be faster: they take less power, and the clock stays higher.
    """
    import torch

    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    products = 20 if device.type == "cuda" else 1
    seconds = []
    for _ in range(rounds + 2):  # the first two warm the clock up
        wait(device)
        began = time.perf_counter()
        for _ in range(products):
            left @ right
        wait(device)
        seconds.append((time.perf_counter() - began) / products)
    return 2 * size**3 / median(seconds[2:])


def wait(device: torch.device) -> None:
    """Waits until the device has done all its work."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> tuple[int, int] | None:
    """The most bytes that PyTorch has had allocated, and reserved, in this process; None on the CPU.

    Counted from its start: a CUDA graph's memory is allocated while it is captured, not when it is replayed.
    """
    import torch

    if device.type != "cuda":
        return None
    return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
