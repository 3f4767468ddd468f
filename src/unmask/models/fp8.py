"""Linear layers of Transformer blocks whose matrix products are taken in 8-bit floating point: an option for large
models on recent GPUs, whose tensor cores take such products at twice the rate of bfloat16's.

Micikevicius et al. 2022, "FP8 Formats for Deep Learning", section 3: weights and activations in E4M3, gradients in
E5M2. Each tensor has one scale, which takes its largest magnitude to the format's; it is computed for each product and
never leaves the device. The padding of a filled batch affects the scale, and so the rounding of the rest. Products for
gradients are summed in fp32, those of the forward pass with the fewer bits that the tensor cores' fast sums keep.
Attention, LayerNorm, embeddings and heads compute as under bfloat16; weights, their gradients and the optimizer's state
have the same precision as there.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.errors import SettingsError
from unmask.models.kernels.products import Linear, compute_dtype
from unmask.models.transformer import Block

E4M3 = torch.float8_e4m3fn
"""Three bits of fraction, up to 448: rounding moves a value by 1 part in 16 at most."""
E5M2 = torch.float8_e5m2
"""Two bits of fraction, up to 57,344: by 1 part in 8, over the range that gradients need."""

MULTIPLE = 16
"""The sizes of a layer must be multiples of this: the kernel reads 16 bytes at a time."""

_SMALLEST_AMAX = 1e-30
"""A tensor of zeros is scaled as if this were its largest magnitude; the scale and its inverse are finite."""

AnyModule = TypeVar("AnyModule", bound=nn.Module)


class Quantised(NamedTuple):
    """A matrix in 8 bits.

    Attributes:
        values: (rows, columns) E4M3 or E5M2, row after row in memory.
        unit: () float32: what a 1 in `values` stands for.
    """

    values: Tensor
    unit: Tensor


def quantise(matrix: Tensor, dtype: torch.dtype) -> Quantised:
    """The nearest matrix in 8 bits; a value that is not finite leaves one that is not, which the loss will show.

    Args:
        matrix: (rows, columns) float, at least one element.
        dtype: `E4M3` or `E5M2`.
    """
    largest = torch.finfo(dtype).max
    unit = matrix.abs().amax().float().clamp(min=_SMALLEST_AMAX) / largest
    # The conversion does not saturate: the largest value would be NaN if rounding put it above the format's.
    values = (matrix.contiguous().float() / unit).clamp(-largest, largest).to(dtype)
    return Quantised(values, unit)


def transpose(matrix: Quantised) -> Quantised:
    """The transposed matrix, row after row in memory; its rows end with zeros up to a multiple of `MULTIPLE`."""
    flipped = matrix.values.view(torch.uint8).T  # bytes: few operations know the formats, and zero is a zero byte
    spare = -flipped.shape[1] % MULTIPLE
    if spare:
        flipped = functional.pad(flipped, (0, spare))
    return Quantised(flipped.contiguous().view(matrix.values.dtype), matrix.unit)


def product(
    left: Quantised, right: Quantised, dtype: torch.dtype, bias: Tensor | None = None, *, fast: bool = False
) -> Tensor:
    """left right^T + bias: on the CPU by the reference, elsewhere by the kernel.

    Args:
        left: (rows, inner); not both sides are in E5M2.
        right: (columns, inner); columns and inner are multiples of `MULTIPLE`.
        dtype: of the result.
        bias: (columns,) bfloat16, with a bfloat16 result.
        fast: True sums with fewer bits in the tensor cores.

    Returns:
        (rows, columns) of that dtype.
    """
    if left.values.device.type == "cpu":
        return reference_product(left, right, dtype, bias)
    return torch._scaled_mm(
        left.values,
        right.values.T,
        left.unit,
        right.unit,
        bias=bias,
        out_dtype=dtype,
        use_fast_accum=fast,
    )


def reference_product(left: Quantised, right: Quantised, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """What `product` computes, as a plain matrix product in fp32 of what the 8 bits stand for."""
    with torch.autocast(left.values.device.type, enabled=False):
        result = (left.values.float() * left.unit) @ (right.values.float() * right.unit).T
    return (result if bias is None else result + bias.float()).to(dtype)


class _LinearProduct(torch.autograd.Function):
    """values W^T + bias in bfloat16, and the gradients of all three; each of the products is taken in 8 bits."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows, matrix = quantise(values, E4M3), quantise(weight, E4M3)
        ctx.save_for_backward(*rows, *matrix)  # a byte per element: half of what bfloat16 keeps for the backward pass
        ctx.dtypes = values.dtype, weight.dtype, None if bias is None else bias.dtype
        short_bias = None if bias is None else bias.to(torch.bfloat16)
        return product(rows, matrix, torch.bfloat16, short_bias, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (gradient,) = gradients
        values, unit, weight, weight_unit = ctx.saved_tensors
        values_dtype, weight_dtype, bias_dtype = ctx.dtypes
        needs_values, needs_weight, needs_bias = ctx.needs_input_grad
        of_values, of_weight, of_bias = None, None, None
        short = quantise(gradient, E5M2)
        if needs_values:
            of_values = product(short, transpose(Quantised(weight, weight_unit)), values_dtype)
        if needs_weight:
            of_weight = product(transpose(short), transpose(Quantised(values, unit)), weight_dtype)
        if needs_bias:
            of_bias = gradient.sum(0, dtype=torch.float32).to(bias_dtype)
        return of_values, of_weight, of_bias


class Fp8Linear(Linear):
    """A linear layer that computes in 8 bits where everything around it computes in bfloat16, and elsewhere (figures
    measured in fp32, samples) like a plain `Linear`."""

    def forward(self, values: Tensor) -> Tensor:
        if compute_dtype(values) != torch.bfloat16 or values.shape[0] == 0:
            return super().forward(values)
        return _LinearProduct.apply(values, self.weight, self.bias)  # type: ignore[no-untyped-call, no-any-return]


def with_fp8_linears(module: AnyModule) -> AnyModule:
    """Turns the linear layers of every Transformer block in `module` into `Fp8Linear`, in place.

    Parameters and their names stay: an optimizer or a checkpoint made before fits afterwards, and a saved model is like
    any other.

    Raises:
        SettingsError: there is no block, or its sizes are not multiples of `MULTIPLE`.
    """
    blocks = {name: part for name, part in module.named_modules() if isinstance(part, Block)}
    if not blocks:
        raise SettingsError(
            "precision=fp8 is for the linear layers of Transformer blocks, and this model has none: set precision=bf16"
        )
    for name, block in blocks.items():
        up = block.feed_forward.up
        sizes = {"hidden_size": up.in_features, "intermediate_size": up.out_features}
        if odd := [f"{size}={number}" for size, number in sizes.items() if number % MULTIPLE]:
            raise SettingsError(
                f"precision=fp8 needs sizes that are multiples of {MULTIPLE}, and {name} has {' and '.join(odd)}: "
                "set others as model.hidden_size and model.intermediate_size, or precision=bf16"
            )
    for block in blocks.values():
        for part in block.modules():
            if isinstance(part, Linear):
                part.__class__ = Fp8Linear  # only `forward` differs
    return module
