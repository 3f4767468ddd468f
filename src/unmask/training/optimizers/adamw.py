"""AdamW (Loshchilov and Hutter 2019) with bias-corrected moments or, as in BERT's released code, uncorrected ones.

    m <- m + (1 - beta1) (g - m)        v <- beta2 v + (1 - beta2) g^2
    parameter <- parameter - rate (m / (sqrt(v) + epsilon) + weight_decay parameter)

with m / (1 - beta1^t) and v / (1 - beta2^t) in place of m and v where they are corrected. All parameters of a group are
updated by one PyTorch kernel, which may also scale the gradients, or be made by a value on the device to do nothing, so
that a step need not wait for the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unmask.training.optimizers.base import Optimizer
from unmask.training.sharding import local

_MANY_STEPS = 2.0**24
"""After this many steps 1 - beta^t is 1 for every beta below 1 - 2^-20, so that nothing is corrected."""


class OnDevice(NamedTuple):
    """What a captured step reads on the device, so that it need not wait for it.

    Attributes:
        found_inf: () float32; 1: the step changes nothing.
        grad_scale: () float32; gradients are divided by it first.
        rates: () float32, one for each group, in place of its `lr`.
    """

    found_inf: Tensor
    grad_scale: Tensor
    rates: list[Tensor]


class AdamW(Optimizer):
    """The optimizer; its state has the names of `torch.optim.AdamW`'s.

    Args:
        groups: each with `params` and the options that differ from the rest.
        learning_rate: of groups without `lr`.
        bias_correction: False leaves the moments as they are (`AdamWeightDecayOptimizer` of BERT's released code).

    Attributes:
        grad_scale: () float32 on the device; gradients are divided by it first, in place. None: they are not, or by
            that of `on_device`.
        on_device: what a captured step reads; None: every step is taken, by the groups' `lr`.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        learning_rate: float,
        betas: tuple[float, float],
        epsilon: float,
        bias_correction: bool = True,
    ) -> None:
        defaults = {"lr": learning_rate, "betas": betas, "eps": epsilon, "weight_decay": 0.0}
        # With `fused`, `load_state_dict` puts `step` on the device.
        super().__init__(groups, defaults | {"fused": True})
        self._corrects_bias = bias_correction
        self.grad_scale: Tensor | None = None
        self.on_device: OnDevice | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        found_inf, grad_scale, rates = (None, self.grad_scale, None) if self.on_device is None else self.on_device
        for number, group in enumerate(self.param_groups):
            parameters = self.start(group)
            if not parameters:
                continue
            states = [self.state[parameter] for parameter in parameters]
            if self._corrects_bias:
                steps = [state["step"] for state in states]
                torch._foreach_add_(steps, 1)
            else:
                steps = [torch.full((), _MANY_STEPS, device=parameters[0].device)] * len(parameters)
            beta1, beta2 = group["betas"]
            torch._fused_adamw_(
                [local(parameter) for parameter in parameters],
                [local(parameter.grad) for parameter in parameters if parameter.grad is not None],
                [local(state["exp_avg"]) for state in states],
                [local(state["exp_avg_sq"]) for state in states],
                [],
                steps,
                lr=group["lr"] if rates is None else rates[number],
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
                grad_scale=grad_scale,
                found_inf=found_inf,
            )
            if self._corrects_bias and found_inf is not None:
                torch._foreach_sub_(steps, [found_inf] * len(steps))

    def start_all(self) -> None:
        """Fresh state for all parameters that have a gradient, and none yet."""
        for group in self.param_groups:
            self.start(group)

    def start(self, group: dict[str, Any]) -> list[Tensor]:
        """Returns the parameters of a group that have a gradient, with fresh state for those that had none."""
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in parameters:
            state = self.state[parameter]
            if "exp_avg" not in state:
                if self._corrects_bias:
                    state["step"] = torch.zeros((), device=parameter.device)
                state |= {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
        return parameters
