"""The small parts of an encoder on packed tokens: activations, dropout, initialisation, embeddings, feed-forward.

Devlin et al. 2019, section 3, and Vaswani et al. 2017, section 3.3. Weights start from the normal distribution cut at
two standard deviations, as in Google's BERT code (`transformers` uses the uncut one); biases from 0, LayerNorm from 1
and 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.models.dropout import dropout
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
            _draw_truncated_normal(part.weight, initializer_range)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)


@torch.no_grad()
def _draw_truncated_normal(weight: Tensor, std: float) -> None:
    """Normal values, drawn again while any is more than two standard deviations from zero.

    `nn.init.trunc_normal_` gives other values for the same seed from one version of PyTorch to the next.
    """
    if weight.is_meta:
        return
    weight.normal_(0, std)
    while bool((is_outside := weight.abs() > 2 * std).any()):
        weight.copy_(torch.where(is_outside, torch.empty_like(weight).normal_(0, std), weight))


_ONEDNN_MIN_ROWS = 64
"""Fewer rows are not worth repacking the weight for."""


def linear(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """values W^T + bias; in fp32, computed by oneDNN on processors where that is faster.

    Args:
        values: (rows, inputs) float.
        weight: (outputs, inputs).
        bias: (outputs,), or None for none.

    Returns:
        (rows, outputs).
    """
    by_onednn = (
        values.device.type == "cpu"
        and not torch.compiler.is_compiling()
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
    including the copies into its layout and back. Intel's processors, which MKL is made for, keep MKL: on a Xeon with
    AMX oneDNN was .8 to .95 times as fast.
    """
    cpuinfo = Path("/proc/cpuinfo")
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and cpuinfo.exists()
        and "GenuineIntel" not in cpuinfo.read_text()
    )


_TILE = 16
"""Rows that AMX multiplies at once: a few more, up to a multiple of this, take no longer."""


def rounded_up(number: int, multiple: int = _TILE) -> int:
    """The next multiple."""
    return -(-number // multiple) * multiple


def recurring_rows(num_rows: int) -> int:
    """A number of rows that returns batch after batch, a few more than these."""
    return rounded_up(num_rows, _TILE if num_rows < 16 * _TILE else 4 * _TILE)


def reuses_shapes(values: Tensor) -> bool:
    """Whether products of these values want a number of rows that returns: in bf16 on the CPU, where oneDNN makes a
    kernel for each new shape of a product. With AMX that takes longer than most products."""
    return values.device.type == "cpu" and compute_dtype(values) == torch.bfloat16 and not torch.compiler.is_compiling()


def extend(rows: Tensor, num_rows: int) -> Tensor:
    """With zeros behind."""
    missing = num_rows - len(rows)
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows


def linear_of_any_rows(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As `linear`, for a number of rows that differs from batch to batch; see `reuses_shapes`."""
    if not reuses_shapes(values):
        return linear(values, weight, bias)
    return linear(extend(values, recurring_rows(len(values))), weight, bias)[: len(values)]


class Linear(nn.Linear):
    """PyTorch's linear layer, for (rows, inputs): computed by `linear_of_any_rows`, or, once packed and without
    gradients, from weights laid out for oneDNN.

    Attributes:
        packed: the weight as `pack_weights` laid it out; None before that, and again as soon as training begins.
    """

    packed: Tensor | None = None

    def forward(self, values: Tensor) -> Tensor:
        if self.takes_packed(values):
            return self.packed_product(values, "none")
        return linear_of_any_rows(values, self.weight, self.bias)

    def takes_packed(self, values: Tensor) -> bool:
        """Whether there is a packed weight for these values."""
        return self.packed is not None and self.packed.dtype == values.dtype and not torch.is_grad_enabled()

    def packed_product(self, values: Tensor, activation: Literal["none", "gelu"]) -> Tensor:
        """activation(values W^T + bias), (rows, outputs); GELU is the exact one."""
        algorithm = "none" if activation == "gelu" else ""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(values, self.packed, self.bias, activation, [], algorithm)
        return product

    def train(self, mode: bool = True) -> Self:
        if mode:
            self.packed = None  # the weight is about to change
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "packed": None}  # it can be neither copied nor saved


def pack_weights(module: nn.Module) -> None:
    """Adds copies of the weights of every `Linear` in `module`, laid out for oneDNN, where that is faster.

    For modules in eval mode on the CPU whose weights stay as they are: a matrix product takes 7 to 17 % less time, with
    16 rows half the time. The copies take as much memory again.
    """
    for part in module.modules():
        if not isinstance(part, Linear) or part.weight.device.type != "cpu" or not _packs(part.weight.dtype):
            continue
        if part.packed is None or part.packed.dtype != part.weight.dtype:
            part.packed = torch.ops.mkldnn._reorder_linear_weight(part.weight.detach())


def _packs(dtype: torch.dtype) -> bool:
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32 and _onednn_beats_mkl()


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
        """The first hidden states; all arguments and the result are by packed token.

        Under autocast the result has autocast's precision. On a CPU so do all hidden states after it, with no casts
        between the layers; on a GPU autocast makes the outputs of a LayerNorm float32, except in recorded steps, which
        do not use autocast. LayerNorm computes in fp32 whatever it is given.
        """
        summed = self.word(input_ids) + self.token_type(token_type_ids) + self.position(position_ids)
        hidden: Tensor = self.norm(summed)  # (tokens, hidden)
        return dropout(to_autocast(hidden), self.dropout_prob, self.training)


def to_autocast(hidden: Tensor) -> Tensor:
    """In autocast's precision where that is on, else as it is."""
    return hidden.to(compute_dtype(hidden))


def compute_dtype(values: Tensor) -> torch.dtype:
    """The precision of matrix products of these values: autocast's where that is on, else their own."""
    device = values.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else values.dtype


def new_embedding(num_entries: int, hidden_size: int, padding_idx: int | None = None) -> nn.Embedding:
    """An embedding whose weights `initialise` draws. PyTorch's own would draw them too, and on the meta device, where
    models are built whose weights come from a file, that draw alone spends a second on imports."""
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
        if self.activation is functional.gelu and isinstance(self.up, Linear) and self.up.takes_packed(hidden):
            activated = self.up.packed_product(hidden, "gelu")
        else:
            activated = self.activation(self.up(hidden))
        output: Tensor = self.down(activated)
        return output
