"""Matrix products on the processor: by the library that is faster there, over numbers of rows that return from batch to
batch, and from weights laid out beforehand. What they compute is `values W^T + bias`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

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
        and torch.backends.mkldnn.enabled
    )
    if by_onednn:
        return functional.linear(values.to_mkldnn(), weight, bias).to_dense()
    return functional.linear(values, weight, bias)


@cache
def _onednn_beats_mkl() -> bool:
    """Whether fp32 matrix products are faster by oneDNN.

    PyTorch gives them to MKL. On an AMD EPYC with AVX-512 oneDNN is 1.8 times as fast, forward and backward together,
    including the copies into its layout and back; on one without, as fast. Intel's processors, which MKL is made for,
    keep MKL: on a Xeon with AMX oneDNN was .8 to .95 times as fast.
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
    """`rows` with rows of zeros appended, `num_rows` in all."""
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
        packed: the weight as `pack_weights` laid it out; None before that, and again as soon as training begins or
            another weight is loaded.
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

    def _load_from_state_dict(self, *given: Any, **named: Any) -> None:
        self.packed = None
        super()._load_from_state_dict(*given, **named)

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


@contextmanager
def packed_weights(module: nn.Module) -> Iterator[None]:
    """`pack_weights` inside the context; the weights may change after it."""
    plain = [part for part in module.modules() if isinstance(part, Linear) and part.packed is None]
    pack_weights(module)
    try:
        yield
    finally:
        for part in plain:
            part.packed = None


def _packs(dtype: torch.dtype) -> bool:
    if dtype == torch.bfloat16:
        has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        return has_onednn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32 and _onednn_beats_mkl()


def activated(layer: nn.Module, values: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """activation(layer(values)), at once where the layer is packed and the activation is the exact GELU."""
    if activation is functional.gelu and isinstance(layer, Linear) and layer.takes_packed(values):
        return layer.packed_product(values, "gelu")
    return activation(layer(values))


def to_autocast(hidden: Tensor) -> Tensor:
    """In autocast's precision where that is on, else as it is."""
    return hidden.to(compute_dtype(hidden))


def compute_dtype(values: Tensor) -> torch.dtype:
    """The precision of matrix products of these values: autocast's where that is on, else their own."""
    device = values.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else values.dtype
