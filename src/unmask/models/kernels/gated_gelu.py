"""GELU of one half times the other (GeGLU, Shazeer 2020), keeping only its input for the gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def gated_gelu(values: Tensor) -> Tensor:
    """gelu(a) x b, (rows, inner), from `values` (rows, 2 x inner) = [a, b]; GELU is the exact one."""
    return _GatedGelu.apply(values)  # type: ignore[no-untyped-call, no-any-return]


class _GatedGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        inputs, gates = values.chunk(2, -1)
        return functional.gelu(inputs).mul_(gates)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (values,) = ctx.saved_tensors
        inputs, gates = values.chunk(2, -1)
        gradient = torch.empty_like(values)
        of_inputs, of_gates = gradient.chunk(2, -1)
        of_inputs.copy_(torch.ops.aten.gelu_backward(gradients[0] * gates, inputs))
        torch.mul(gradients[0], functional.gelu(inputs), out=of_gates)
        return gradient
