"""Gradients put aside and added again, so that they can be summed in another order than that of the backward passes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


def trained_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Those that learn at this point of the run, in their order in the module."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def take_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
    """The gradients, which the parameters no longer have then."""
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return gradients


def add_gradients(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    """Adds the given gradients to those that the parameters have; the given tensors are overwritten."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)
