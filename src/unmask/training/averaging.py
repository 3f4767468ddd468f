"""A running mean of the weights, which generalises better than the newest ones before the rate has come down (Polyak
and Juditsky 1992; a decay of .999 in Charpentier and Samuel 2024, GPT-BERT).

After each step that has trained a parameter, mean <- decay mean + (1 - decay) weights, from 0; what is used is
mean / (1 - decay^steps), as Adam corrects its moments, so that the random weights of a run's beginning have no part in
it. A parameter that is not trained at first, or no longer, has a mean over its own steps. The means and their divisors
are part of the optimizer's state: checkpoints hold them beside the newest weights, which training continues from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from unmask.training.optimizers.adamw import OnDevice

AVERAGE, DIVISOR = "average", "average_divisor"
"""The names of a parameter's mean in the optimizer's state, and of 1 - decay^steps, float32."""


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
            optimizer.state[parameter][DIVISOR] = torch.zeros((), device=parameter.device)
        optimizer.register_step_post_hook(self._add)

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    @torch.no_grad()
    def _add(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        trained = [parameter for parameter in self._parameters() if parameter.grad is not None]
        if not trained:
            return
        means = [optimizer.state[parameter][AVERAGE] for parameter in trained]
        divisors = [optimizer.state[parameter][DIVISOR] for parameter in trained]
        on_device: OnDevice | None = getattr(optimizer, "on_device", None)
        share: Any = 1 - self._decay
        if on_device is not None:  # a captured step, which may not be taken
            share = share * (1 - on_device.found_inf)
        for tensors, towards in ((means, trained), (divisors, [torch.ones_like(each) for each in divisors])):
            torch._foreach_lerp_(tensors, towards, share if on_device is None else [share] * len(tensors))

    @torch.no_grad()
    def use(self) -> None:
        """Gives the parameters their means over the steps that trained them; those of none keep what they are."""
        for parameter in self._parameters():
            state = self._optimizer.state[parameter]
            if state[DIVISOR] > 0:
                parameter.copy_(state[AVERAGE] / state[DIVISOR])

    @contextmanager
    def used(self) -> Iterator[None]:
        """The parameters have their means inside the context, and their newest values after it."""
        newest = [parameter.detach().clone() for parameter in self._parameters()]
        self.use()
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._parameters(), newest)
