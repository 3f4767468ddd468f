"""All trained parameters of a module in one tensor, and their gradients in another.

Zeroing, summing, scaling and rounding then take one kernel each, not one for each of hundreds of parameters. The
parameters themselves stay what they are: each becomes a view, so that optimizers and checkpoints see no difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_ALIGNMENT = 64
"""In elements: every parameter begins at an address that wide loads may use, even at two bytes per element."""


class FlatParameters:
    """The weights that matrix products read, and where their gradients go.

    Args:
        module: its trained parameters move into one tensor.
        trained: the names of the parameters that get a gradient, one name for each.
        dtype: of matrix products. In float32 they read the module's own parameters; otherwise a rounded copy, whose
            gradients are rounded too, and summed over micro-batches in float32.

    Attributes:
        weights, gradients: (elements,) float32.
        working: by name, the rounded weights that a forward pass reads; empty in float32.
    """

    def __init__(self, module: nn.Module, trained: list[str], dtype: torch.dtype) -> None:
        named = dict(module.named_parameters())
        parameters = [named[name] for name in trained]
        starts = list(_starts(parameters))
        size = starts.pop() if starts else 0
        device = parameters[0].device
        self.weights = torch.zeros(size, device=device)
        self.gradients = torch.zeros(size, device=device)
        for parameter, start in zip(parameters, starts, strict=True):
            place = slice(start, start + parameter.numel())
            self.weights[place] = parameter.detach().flatten()
            parameter.data = self.weights[place].view(parameter.shape)
            parameter.grad = self.gradients[place].view(parameter.shape)
        self.working: dict[str, Tensor] = {}
        self._places: list[tuple[nn.Module, str, nn.Parameter, Tensor]] = []
        self._rounded: Tensor | None = None
        self._rounded_gradients: Tensor | None = None
        if dtype == torch.float32:
            return
        self._rounded = self.weights.to(dtype)
        self._rounded_gradients = torch.zeros_like(self._rounded)
        for name, start in zip(trained, starts, strict=True):
            shape, place = named[name].shape, slice(start, start + named[name].numel())
            weight = self._rounded[place].view(shape).detach().requires_grad_()
            weight.grad = self._rounded_gradients[place].view(shape)
            self.working[name] = weight
        trained_ids = {id(parameter) for parameter in parameters}
        for name, parameter in named.items():
            if id(parameter) not in trained_ids:  # frozen or unused: it does not move
                self.working[name] = parameter.detach().to(dtype)
        rounded = {id(parameter): self.working[name] for name, parameter in named.items()}
        # Each part once, however many names it has: `torch.func.functional_call` takes a part with two names twice, and
        # leaves the lent weights in it.
        self._places = [
            (part, name, parameter, rounded[id(parameter)])
            for part in module.modules()
            for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False)
        ]

    @contextmanager
    def lent(self) -> Iterator[None]:
        """A context in which the module has the weights that forward passes read."""
        for part, name, _, weight in self._places:
            part._parameters[name] = weight  # type: ignore[assignment]
        try:
            yield
        finally:
            for part, name, parameter, _ in self._places:
                part._parameters[name] = parameter

    @torch.no_grad()
    def gather(self) -> None:
        """Adds the gradients of a backward pass to the sum over micro-batches."""
        if self._rounded_gradients is not None:
            self.gradients += self._rounded_gradients
            self._rounded_gradients.zero_()

    @torch.no_grad()
    def refresh(self) -> None:
        """Updates the rounded weights after the weights have changed."""
        if self._rounded is not None:
            self._rounded.copy_(self.weights)

    @torch.no_grad()
    def zero(self) -> None:
        """Zeroes all gradients, also those of a backward pass that was broken off."""
        self.gradients.zero_()
        if self._rounded_gradients is not None:
            self._rounded_gradients.zero_()


def _starts(parameters: list[nn.Parameter]) -> Iterator[int]:
    """The offset at which each begins, then the end of the last one's place."""
    start = 0
    for parameter in parameters:
        yield start
        start += -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT
    yield start
