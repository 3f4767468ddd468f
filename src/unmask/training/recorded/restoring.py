"""Running something without a trace: tensors and the generator of a device are restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def restoring(tensors: Sequence[Tensor], device: torch.device) -> Iterator[None]:
    """A context after which tensors, and the generator of the device, are as they were before."""
    random, before = random_state(device), [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
        set_random_state(random, device)


def random_state(device: torch.device) -> Tensor:
    """The state of the device's generator, which decides what it draws next."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_random_state(state: Tensor, device: torch.device) -> None:
    """Restores the state of the device's generator."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def renew_generator(device: torch.device) -> None:
    """Gives a GPU's generator a state that belongs to no capture; its state has to be set before it draws again."""
    index = torch.cuda.current_device() if device.index is None else device.index
    torch.cuda.default_generators[index].graphsafe_set_state(torch.Generator(device))
