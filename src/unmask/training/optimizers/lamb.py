"""LAMB, for batches of thousands of sequences (You et al. 2020, algorithm 2).

As in the code released with ALBERT, the norms are not bounded (phi is the identity), and biases and LayerNorm get the
update of Adam, without a trust ratio. The projections to queries, keys and values are one parameter here, but each has
a ratio of its own, as the three separate matrices have there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unmask.training.optimizers.base import Optimizer

NUM_MATRICES = {"query_key_value.weight": 3}
"""How many matrices of one shape are stacked in a parameter, by the ending of its name; all others hold one."""


def fused_matrices(module: nn.Module) -> dict[Tensor, int]:
    """The parameters of a module that hold several matrices, and how many each holds."""
    return {
        parameter: count
        for name, parameter in module.named_parameters()
        for ending, count in NUM_MATRICES.items()
        if name.endswith(ending)
    }


class Lamb(Optimizer):
    """Adam's update of each matrix, decay included, scaled to the norm of the matrix.

    update = m / (sqrt(v) + epsilon) + weight_decay * parameter, m and v corrected for their start from 0;
    parameter -= learning rate * norm(parameter) / norm(update) * update, the ratio being 1 where a norm is 0.

    Args:
        groups: of parameters; `is_weight`: False leaves the ratio out.
        bias_correction: False leaves the correction out, as the released code does.
        num_matrices: of the parameters that hold several, each with a ratio of its own; see `fused_matrices`.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        learning_rate: float,
        betas: tuple[float, float],
        epsilon: float,
        bias_correction: bool,
        num_matrices: Mapping[Tensor, int],
    ) -> None:
        defaults = {"lr": learning_rate, "betas": betas, "eps": epsilon, "weight_decay": 0.0, "is_weight": True}
        super().__init__(groups, defaults | {"bias_correction": bias_correction})
        self._num_matrices = num_matrices

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            updates = self._adam_updates(group, parameters)
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
            if group["is_weight"]:
                counts = [self._num_matrices.get(p, 1) for p in parameters]
                update_matrices = _matrices(updates, counts)  # views
                torch._foreach_mul_(update_matrices, trust_ratios(_matrices(parameters, counts), update_matrices))
            torch._foreach_add_(parameters, updates, alpha=-group["lr"])

    def _adam_updates(self, group: dict[str, Any], parameters: list[Tensor]) -> list[Tensor]:
        for p in parameters:
            if "exp_avg" not in self.state[p]:
                self.state[p] |= {
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                    "step": torch.zeros(()),  # on the CPU, where reading it waits for nothing
                }
        gradients = [p.grad for p in parameters if p.grad is not None]
        means = [self.state[p]["exp_avg"] for p in parameters]
        squares = [self.state[p]["exp_avg_sq"] for p in parameters]
        steps = [self.state[p]["step"] for p in parameters]
        beta1, beta2 = group["betas"]
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        scales = torch._foreach_sqrt(squares)
        if group["bias_correction"]:
            counts = [step.item() for step in steps]
            torch._foreach_div_(scales, [(1 - beta2**count) ** 0.5 for count in counts])
            torch._foreach_add_(scales, group["eps"])
            torch._foreach_mul_(scales, [1 - beta1**count for count in counts])
        else:
            torch._foreach_add_(scales, group["eps"])
        return list(torch._foreach_div(means, scales))


def _matrices(parameters: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """Each parameter, or the parts of one that holds several matrices, as views."""
    return [
        matrix
        for parameter, count in zip(parameters, counts, strict=True)
        for matrix in ([parameter] if count == 1 else parameter.chunk(count))
    ]


def trust_ratios(parameters: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """norm(parameter) / norm(update) for each, 1 where either is 0; computed where the parameters are."""
    weights = torch.stack(torch._foreach_norm(parameters))
    steps = torch.stack(torch._foreach_norm(updates))
    ratios = torch.where((weights > 0) & (steps > 0), weights / steps, 1.0)
    return list(ratios.unbind())
