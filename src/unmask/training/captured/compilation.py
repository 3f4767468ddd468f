"""Compiles parts of a model with `torch.compile`, once for each kind of part, and only while steps are captured.

What a block computes between its matrix products (biases and activations, dropout, residuals, LayerNorm) becomes a few
kernels in place of a dozen, and so does the softmax over a vocabulary with its gradient. A whole encoder would take
minutes to compile; its blocks share one program, with different weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from unmask.models.kernels.attention_backends import choose_backend
from unmask.models.kernels.cross_entropy import SummedCrossEntropy
from unmask.models.kernels.row_layout import Layout
from unmask.models.transformer import Block

_COMPILED: tuple[type[nn.Module], ...] = (Block, SummedCrossEntropy)


@contextmanager
def compiled_parts(module: nn.Module) -> Iterator[None]:
    """A context in which the blocks of a module, and its losses over a vocabulary, are compiled."""
    parts = [part for part in module.modules() if isinstance(part, _COMPILED)]
    for part in parts:
        part.forward = MethodType(_compiled(type(part).forward), part)
    try:
        yield
    finally:
        for part in parts:
            del part.forward


@cache
def _compiled(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    # It queries the device, which compiled code cannot do.
    torch.compiler.assume_constant_result(choose_backend)  # type: ignore[no-untyped-call]
    program: Callable[..., Tensor] = torch.compile(plain)

    def forward(part: nn.Module, *arguments: Any) -> Tensor:
        """Compiled for any number of tokens, sequences, positions or targets at once."""
        for argument in arguments:
            tensor = argument.bounds if isinstance(argument, Layout) else argument
            if isinstance(tensor, Tensor):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return program(part, *arguments)

    return forward
