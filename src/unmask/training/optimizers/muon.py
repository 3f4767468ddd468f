"""Muon for the matrices of the layers, AdamW for everything else (Jordan 2024, kellerjordan.github.io/posts/muon).

`torch.optim.Muon` computes in bf16 everywhere, which on a processor without bf16 takes several times as long as the
step itself; here that is so only where bf16 is fast on all devices. Matrices of one shape go through the iteration
together.

The matrices' updates are scaled to the size of AdamW's (Liu et al. 2025, "Muon is scalable for LLM training", section
2.2), so that a rate and a weight decay that suit AdamW suit them too. Departure: the projections to queries, keys and
values are one matrix here, and are orthogonalised as one. An LSTM's gates go to AdamW: each of their matrices holds
four maps with gradients of different sizes, applied again at every token, and Muon is for matrices that are one linear
map. The projection of an LSTM's output is one, and goes to Muon.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from unmask.errors import SettingsError
from unmask.training.distributed import ALONE, Ranks
from unmask.training.optimizers.adamw import AdamW, OnDevice
from unmask.training.optimizers.base import Optimizer

_GATES = ("weight_ih", "weight_hh", "input_weight", "hidden_weight")
"""Name prefixes of the matrices that hold an LSTM's four gates: PyTorch's, and those of `ProjectedLstm`."""


def split_groups(
    module: nn.Module, groups: list[dict[str, Any]], rate_ratio: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Parameter groups in two parts: those that AdamW takes, and the layers' matrices, which Muon takes.

    Args:
        module: its layers are `blocks` of some part of it.
        groups: of its parameters, each with its rate as `lr`.
        rate_ratio: of the matrices' rate to the others'.

    Raises:
        SettingsError: the module has no such matrices.
    """
    names = {id(p): name for name, p in module.named_parameters()}

    def is_matrix(p: nn.Parameter) -> bool:
        *parts, name = names[id(p)].split(".")
        return p.ndim == 2 and "blocks" in parts and not name.startswith(_GATES)

    others = [group | {"params": [p for p in group["params"] if not is_matrix(p)]} for group in groups]
    matrices = [
        group | {"params": [p for p in group["params"] if is_matrix(p)], "lr": group["lr"] * rate_ratio}
        for group in groups
    ]
    if not any(group["params"] for group in matrices):
        raise SettingsError(
            "optimizer.name=muon: this model has no matrices in layers to train (an LSTM's gates are not for it): set "
            "optimizer.name=adamw"
        )
    return [group for group in others if group["params"]], [group for group in matrices if group["params"]]


_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
"""Of the quintic that pulls all singular values towards 1 (Jordan 2024)."""


def orthogonalise(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest matrices whose singular values are about 1 (.7 to 1.2), by Newton and Schulz's iteration.

    Args:
        matrices: (n, rows, columns) float.

    Returns:
        (n, rows, columns), in that type.
    """
    first, third, fifth = _COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    values = (matrices.mT if is_tall else matrices).to(dtype)
    values = values / values.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = values @ values.mT
        values = torch.baddbmm(values, torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth), values, beta=first)
    return values.mT if is_tall else values


class Muon(Optimizer):
    """Nesterov momentum, orthogonalised; with the keys and the state of `torch.optim.Muon`.

    Args:
        groups: of matrices, each with its rate as `lr` and its `weight_decay`.
        momentum: in [0, 1).
        computes_bf16: whether the devices of all processes are fast in bf16.
        ranks: the processes that train together; each orthogonalises its share of the matrices.
    """

    def __init__(
        self, groups: list[dict[str, Any]], momentum: float, computes_bf16: bool, ranks: Ranks = ALONE
    ) -> None:
        super().__init__(groups, {"momentum": momentum})
        self._ranks = ranks
        self._dtype = torch.bfloat16 if computes_bf16 else torch.float32
        self.on_device: OnDevice | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for number, group in enumerate(self.param_groups):
            rate: float | Tensor = group["lr"]
            if self.on_device is not None:
                rate = self.on_device.rates[number] * (1 - self.on_device.found_inf)
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in self.start(group):
                by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                updates = self._orthogonalise(self._add_momentum(parameters, group["momentum"])).float()
                updates *= rate * (0.2 * math.sqrt(max(shape)))
                torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
                torch._foreach_sub_(parameters, list(updates))

    def start(self, group: dict[str, Any]) -> list[Tensor]:
        """Returns the parameters of a group that have a gradient, with fresh momentum for those that had none."""
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return parameters

    def _orthogonalise(self, updates: Tensor) -> Tensor:
        ranks = self._ranks
        if ranks.size == 1:
            return orthogonalise(updates, self._dtype)
        own = orthogonalise(updates[ranks.rank :: ranks.size], self._dtype)
        return ranks.join_rows(own, len(updates))

    def _add_momentum(self, parameters: list[Tensor], momentum: float) -> Tensor:
        """Adds the gradients to the momentum; returns Nesterov's mean of both, (n, rows, columns), of matrices of one
        shape."""
        gradients = torch.stack([parameter.grad for parameter in parameters if parameter.grad is not None])
        share: float | Tensor = 1 - momentum
        if self.on_device is not None:
            found_inf, divisor, _ = self.on_device
            gradients = (gradients / divisor).masked_fill(found_inf > 0, 0)  # they may hold anything then
            share = share * (1 - found_inf)
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        averages = torch.stack(buffers).lerp(gradients, share)
        torch._foreach_copy_(buffers, list(averages))
        return gradients.lerp(averages, momentum)


class MuonWithAdamW(Optimizer):
    """Two optimizers that step, save and restore as one.

    Attributes:
        on_device: as `AdamW.on_device`, with the rates of the groups of both.
    """

    def __init__(self, others: AdamW, matrices: Muon) -> None:
        super().__init__([*others.param_groups, *matrices.param_groups], {})
        self._others, self._matrices = others, matrices
        self._on_device: OnDevice | None = None
        self._share()

    def _share(self) -> None:
        """Lets both work on the groups and the state of the whole."""
        num_others = len(self._others.param_groups)
        self._others.param_groups = self.param_groups[:num_others]
        self._matrices.param_groups = self.param_groups[num_others:]
        self._others.state = self._matrices.state = self.state

    @property
    def on_device(self) -> OnDevice | None:
        return self._on_device

    @on_device.setter
    def on_device(self, given: OnDevice | None) -> None:
        self._on_device = given
        num_others = len(self._others.param_groups)
        self._others.on_device = None if given is None else given._replace(rates=given.rates[:num_others])
        self._matrices.on_device = None if given is None else given._replace(rates=given.rates[num_others:])

    def start_all(self) -> None:
        """See `AdamW.start_all`."""
        self._others.start_all()
        for group in self._matrices.param_groups:
            self._matrices.start(group)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._others.step()
        self._matrices.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()
