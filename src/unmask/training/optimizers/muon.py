"""Muon for the matrices of the layers, AdamW for everything else (Jordan 2024, kellerjordan.github.io/posts/muon).

The matrices' updates are scaled to the size of AdamW's (Liu et al. 2025, "Muon is scalable for LLM training", section
2.2), so that a rate and a weight decay that suit AdamW suit them too. Departure: the projections to queries, keys and
values are one matrix here, and are orthogonalised as one. An LSTM's gates go to AdamW: each of their matrices holds
four maps with gradients of different sizes, applied again at every token, and Muon is for matrices that are one linear
map. The projection of an LSTM's output is one, and goes to Muon.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from unmask.errors import SettingsError

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


class MuonWithAdamW(torch.optim.Optimizer):
    """Two optimizers that step, save and restore as one.

    Args:
        others: for the parameters that are not matrices of layers.
        matrices: for those that are.
    """

    def __init__(self, others: torch.optim.Optimizer, matrices: torch.optim.Muon) -> None:
        super().__init__([*others.param_groups, *matrices.param_groups], {})
        self._others, self._matrices = others, matrices
        self._share()

    def _share(self) -> None:
        """Lets both work on the groups and the state of the whole."""
        num_others = len(self._others.param_groups)
        self._others.param_groups = self.param_groups[:num_others]
        self._matrices.param_groups = self.param_groups[num_others:]
        self._others.state = self._matrices.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._others.step()
        self._matrices.step()  # type: ignore[no-untyped-call]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()
