"""The small parts of an encoder on packed tokens: activations, dropout, initialisation, embeddings, feed-forward.

Devlin et al. 2019, section 3, and Vaswani et al. 2017, section 3.3. Weights start from the normal distribution cut at
two standard deviations, as in Google's BERT code (`transformers` uses the uncut one); biases from 0, LayerNorm from 1
and 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.models.settings import Activation

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "swish": functional.silu,
    "mish": functional.mish,
    "tanh": torch.tanh,
}


def initialise(module: nn.Module, initializer_range: float) -> None:
    """Gives fresh weights to every Linear, Embedding and LayerNorm in `module`, from PyTorch's default generator."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            bound = 2 * initializer_range
            nn.init.trunc_normal_(part.weight, std=initializer_range, a=-bound, b=bound)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)


class _Dropout16(torch.autograd.Function):
    """Dropout on the CPU with 16 random bits an element.

    PyTorch's own draws a number for each element: with it a pre-training step of BERT-Small takes 8 % longer.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, threshold: int) -> Tensor:
        size = values.numel()
        bits = torch.empty((size + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        keep = bits.view(torch.int16)[:size].view(values.shape) >= threshold - 2**15
        ctx.save_for_backward(keep)
        ctx.scale = 2**16 / (2**16 - threshold)
        return _masked(values, keep, ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return _masked(gradients[0], keep, ctx.scale), None


def _masked(values: Tensor, keep: Tensor, scale: float) -> Tensor:
    # A product of a bool and a float tensor takes a slow path on the CPU; the same bytes as uint8 convert fast.
    return torch.mul(values, keep.view(torch.uint8).to(values.dtype)).mul_(scale)


def dropout(values: Tensor, prob: float, training: bool) -> Tensor:
    """Zeroes each element with probability `prob` and scales the others so that the expectation stays.

    On the CPU the probability is rounded to a multiple of 1/65,536, and the scale is that of the rounded one. The bits
    are drawn from PyTorch's generator of the device, so its saved state resumes a run bit for bit.

    Args:
        values: any shape, float.
        prob: in [0, 1).
        training: False returns `values`.
    """
    if not training or prob == 0:
        return values
    if values.device.type != "cpu":
        return functional.dropout(values, prob)
    threshold = round(prob * 2**16)
    return _Dropout16.apply(values, threshold) if threshold else values  # type: ignore[no-untyped-call]


_ONEDNN_MIN_ROWS = 64
"""Fewer rows are not worth repacking the weight for."""


def linear(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """values W^T + bias; in fp32 on the processors where that is faster, computed by oneDNN.

    Args:
        values: (rows, inputs) float.
        weight: (outputs, inputs).
        bias: (outputs,), or None for none.

    Returns:
        (rows, outputs).
    """
    by_onednn = (
        values.device.type == "cpu"
        and values.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and values.shape[0] >= _ONEDNN_MIN_ROWS
        and _onednn_beats_mkl()
    )
    if by_onednn:
        return functional.linear(values.to_mkldnn(), weight, bias).to_dense()
    return functional.linear(values, weight, bias)


@cache
def _onednn_beats_mkl() -> bool:
    """Whether fp32 matrix products are faster by oneDNN.

    PyTorch gives them to MKL. On an AMD EPYC with AVX-512 oneDNN is 1.8 times as fast, forward and backward together,
    the copies into its layout and back counted. Intel's processors, which MKL is made for, are left to it, unmeasured.
    """
    cpuinfo = Path("/proc/cpuinfo")
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and cpuinfo.exists()
        and "GenuineIntel" not in cpuinfo.read_text()
    )


class Linear(nn.Linear):
    """PyTorch's, computed by `linear`."""

    def forward(self, values: Tensor) -> Tensor:
        return linear(values, self.weight, self.bias)


class Embeddings(nn.Module):
    """Word, position and segment embeddings: summed, normalised, dropped out (section 3, figure 2)."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        max_position_embeddings: int,
        type_vocab_size: int,
        pad_token_id: int | None,
        dropout_prob: float,
        layer_norm_eps: float,
    ) -> None:
        super().__init__()
        self.word = new_embedding(vocab_size, hidden_size, pad_token_id)
        self.position = new_embedding(max_position_embeddings, hidden_size)
        self.token_type = new_embedding(type_vocab_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, layer_norm_eps)
        self.dropout_prob = dropout_prob

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor) -> Tensor:
        """The first hidden states; all arguments and the result stand over packed tokens.

        Under autocast the result has autocast's precision: so do all hidden states after it, with no casts between
        the layers. LayerNorm computes in fp32 whatever it is given.
        """
        summed = self.word(input_ids) + self.token_type(token_type_ids) + self.position(position_ids)
        hidden: Tensor = self.norm(summed)  # (tokens, hidden)
        return dropout(to_autocast(hidden), self.dropout_prob, self.training)


def to_autocast(hidden: Tensor) -> Tensor:
    """In autocast's precision where that is on, else as it is."""
    device = hidden.device.type
    return hidden.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else hidden


def new_embedding(num_entries: int, hidden_size: int, padding_idx: int | None = None) -> nn.Embedding:
    """An embedding whose weights `initialise` gives: PyTorch's own draws them too, and on the meta device, where models
    are built that get their weights from a file, that draw alone imports a second's worth of modules."""
    weight = torch.empty(num_entries, hidden_size)
    embedding: nn.Embedding = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
        weight, freeze=False, padding_idx=padding_idx
    )
    return embedding


class FeedForward(nn.Module):
    """Two linear layers with the activation between, on each token by itself (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: Activation) -> None:
        super().__init__()
        self.up = Linear(hidden_size, intermediate_size)
        self.down = Linear(intermediate_size, hidden_size)
        self.activation = ACTIVATIONS[activation]

    def forward(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.down(self.activation(self.up(hidden)))
        return output
