"""Which kernel computes attention on a device, and why.

A window that is narrow in long sequences is computed by its band where flash attention is not; see `attention.attend`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal

import torch
from torch import Tensor

Backend = Literal["varlen", "matmul", "sdpa"]


def choose_backend(device: torch.device, dtype: torch.dtype, prob: float, head_size: int) -> tuple[Backend, str]:
    """Which of three backends attention uses, and why.

    Args:
        dtype: the one that attention computes in, autocast included.
        prob: the dropout of the attention probabilities; 0 outside training.
    """
    if device.type == "cpu":
        if dtype == torch.bfloat16:
            return "matmul", "on the CPU in bf16 PyTorch's fused attention is slower, its gradient many times"
        if prob > 0:
            return "matmul", "on the CPU PyTorch's fused attention has no dropout"
        return "sdpa", "fused attention, sequences grouped by length"
    if device.type != "cuda":
        return "sdpa", f"the variable-length kernel is for CUDA, not {device.type}"
    if dtype not in (torch.float16, torch.bfloat16):
        return "sdpa", f"the variable-length kernel is for fp16 and bf16, not {dtype}"
    if head_size % 8 or head_size > 256:
        return "sdpa", f"the variable-length kernel needs heads of a multiple of 8 up to 256, not {head_size}"
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return "sdpa", "the variable-length kernel needs compute capability 8.0 (Ampere) or later"
    if head_size > 192 and capability not in _WIDE_HEADS:
        needed = "compute capability 8.0, 9.0 or 10.0"
        return "sdpa", f"the gradient of the variable-length kernel with heads of {head_size} needs {needed}"
    if not has_varlen_kernel():
        return "sdpa", f"torch {torch.__version__} has no variable-length kernel"
    return "varlen", "flash attention on packed tokens, nothing padded"


def describe_attention(device: torch.device, dtype: torch.dtype, dropout_prob: float, head_size: int) -> str:
    """One line for the log of a run: which backend attention uses in training and outside it, and why."""
    in_training = choose_backend(device, dtype, dropout_prob, head_size)
    outside = choose_backend(device, dtype, 0.0, head_size)
    if in_training == outside:
        return f"attention: {outside[0]} ({outside[1]})"
    return f"attention: {in_training[0]} in training ({in_training[1]}), {outside[0]} otherwise ({outside[1]})"


_WIDE_HEADS = ((8, 0), (9, 0), (10, 0))
"""Compute capabilities with enough shared memory for the gradient of heads over 192."""

_VARLEN_ARGUMENTS = (
    *("query", "key", "value", "cum_seq_q", "cum_seq_k"),
    *("max_q", "max_k", "dropout_p", "is_causal", "return_debug_mask"),
)


def varlen_kernel() -> Callable[..., tuple[Tensor, ...]]:
    """Flash attention on packed tokens: the operator behind `torch.nn.attention.varlen`, which takes a dropout
    probability; the public function does not."""
    kernel: Callable[..., tuple[Tensor, ...]] = torch.ops.aten._flash_attention_forward.default
    return kernel


@cache
def has_varlen_kernel() -> bool:
    """Whether this build has flash attention, and its operator, which is private, takes the arguments used here."""
    if not torch.backends.cuda.is_flash_attention_available():
        return False
    try:
        schema = torch.ops.aten._flash_attention_forward.default._schema
    except AttributeError:
        return False
    names = tuple(argument.name for argument in schema.arguments if not argument.kwarg_only)
    return names[: len(_VARLEN_ARGUMENTS)] == _VARLEN_ARGUMENTS
