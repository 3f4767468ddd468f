"""AdamW (Loshchilov and Hutter 2019) with bias-corrected moments or, as in BERT's released code, uncorrected ones.

    m <- m + (1 - beta1) (g - m)        v <- beta2 v + (1 - beta2) g^2
    parameter <- parameter - rate (m / (sqrt(v) + epsilon) + weight_decay parameter)

with m / (1 - beta1^t) and v / (1 - beta2^t) in place of m and v where they are corrected. All parameters of a group are
updated by one PyTorch kernel, which may also scale the gradients, or be made by a value on the device to do nothing, so
that a step need not wait for the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from unmask.training.sharding import local

_MANY_STEPS = 2.0**24
"""After this many steps 1 - beta^t is 1 for every beta below 1 - 2^-20, so that nothing is corrected."""


class AdamW(torch.optim.Optimizer):
    """The optimizer; its state has the names of `torch.optim.AdamW`'s.

    Args:
        groups: each with `params` and the options that differ from the rest.
        learning_rate: of groups without `lr`.
        bias_correction: False leaves the moments as they are (`AdamWeightDecayOptimizer` of BERT's released code).

    Attributes:
        grad_scale: () float32 on the device; gradients are divided by it first, in place. None: they are not.
        found_inf: () float32 on the device; 1: the step does nothing. None: every step is taken.
        rates: one () float32 tensor on the device for each group, in place of its `lr`; None: `lr` is used.
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
        self.found_inf: Tensor | None = None
        self.rates: list[Tensor] | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
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
                lr=group["lr"] if self.rates is None else self.rates[number],
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
                grad_scale=self.grad_scale,
                found_inf=self.found_inf,
            )
            if self._corrects_bias and self.found_inf is not None:
                torch._foreach_sub_(steps, [self.found_inf] * len(steps))

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
