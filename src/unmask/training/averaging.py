"""A running mean of the weights, which generalises better than the newest ones before the rate has come down (Polyak
and Juditsky 1992; a decay of .999 in Charpentier and Samuel 2024, GPT-BERT).

After each step, mean <- decay mean + (1 - decay) weights, from 0; what is used is mean / (1 - decay^steps), as Adam
corrects its moments, so that the random weights of a run's beginning have no part in it. The means are part of the
optimizer's state: checkpoints hold them beside the newest weights, which training continues from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from unmask.training.optimizers.adamw import OnDevice

AVERAGE = "average"
"""The name of a parameter's mean in the optimizer's state."""


class WeightAverage:
    """Keeps the means in an optimizer's state, up to date after each of its steps.

    Args:
        optimizer: of the parameters to average.
        decay: in (0, 1).
    """

    def __init__(self, optimizer: torch.optim.Optimizer, decay: float) -> None:
        self._optimizer, self._decay = optimizer, decay
        for parameter in self._parameters():
            optimizer.state[parameter][AVERAGE] = torch.zeros_like(parameter)
        optimizer.register_step_post_hook(self._add)

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    @torch.no_grad()
    def _add(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parameters = self._parameters()
        means = [optimizer.state[parameter][AVERAGE] for parameter in parameters]
        on_device: OnDevice | None = getattr(optimizer, "on_device", None)
        if on_device is None:
            torch._foreach_lerp_(means, parameters, 1 - self._decay)
        else:  # a captured step, which may not be taken
            share = (1 - self._decay) * (1 - on_device.found_inf)
            torch._foreach_lerp_(means, parameters, [share] * len(means))

    @torch.no_grad()
    def use(self, num_steps: int) -> None:
        """Gives the parameters their means over the steps taken, at least one."""
        for parameter in self._parameters():
            mean = self._optimizer.state[parameter][AVERAGE]
            parameter.copy_(mean / (1 - self._decay**num_steps))

    @contextmanager
    def used(self, num_steps: int) -> Iterator[None]:
        """The parameters have their means inside the context, and their newest values after it."""
        newest = [parameter.detach().clone() for parameter in self._parameters()]
        self.use(num_steps)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._parameters(), newest)
