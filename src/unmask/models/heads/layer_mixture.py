"""Which hidden states are features, and the mixture of layers that is learned with a head.

The six choices of Devlin et al. 2019, Table 7, and any single layer; the mixture is ELMo's (Peters et al. 2018, section
3.2), and so is the choice in which the token layer has a weight too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from unmask.errors import SettingsError

FeatureLayers = Literal[
    "embeddings",
    "second-to-last",
    "last",
    "weighted-last-4",
    "concat-last-4",
    "weighted-all",
    "weighted-all-and-embeddings",
]


@dataclass(frozen=True)
class LayerChoice:
    """Some of the hidden states that `encoder.hidden_states` gives.

    Attributes:
        min_layers: layers that an encoder must have for it.
        mixed: True keeps them apart, for a `LayerMixture`; False puts them side by side.
    """

    states: slice
    min_layers: int
    mixed: bool = False

    def shape(self, num_hidden_layers: int, hidden_size: int) -> tuple[int, ...]:
        """Of one token's features: (layers, hidden) where they are mixed, else (width,)."""
        count = len(range(num_hidden_layers + 1)[self.states])
        return (count, hidden_size) if self.mixed else (count * hidden_size,)

    def select(self, states: Sequence[Tensor]) -> Tensor:
        """The features of all tokens, each as `shape` says, of what `encoder.hidden_states` gave."""
        chosen = list(states[self.states])
        return torch.stack(chosen, 1) if self.mixed else torch.cat(chosen, 1)


CHOICES: dict[FeatureLayers, LayerChoice] = {
    "embeddings": LayerChoice(slice(0, 1), min_layers=0),
    "second-to-last": LayerChoice(slice(-2, -1), min_layers=2),
    "last": LayerChoice(slice(-1, None), min_layers=1),
    "weighted-last-4": LayerChoice(slice(-4, None), min_layers=4, mixed=True),
    "concat-last-4": LayerChoice(slice(-4, None), min_layers=4),
    "weighted-all": LayerChoice(slice(1, None), min_layers=1, mixed=True),
    "weighted-all-and-embeddings": LayerChoice(slice(0, None), min_layers=1, mixed=True),
}
"""The paper's "all 12 layers" are the Transformer's: the embeddings are not among them."""

ELMOS: FeatureLayers = "weighted-all-and-embeddings"
"""What ELMo mixes."""


def find_choice(name: str, num_hidden_layers: int, mixes: bool = True) -> LayerChoice:
    """The choice of that name, for an encoder of so many layers.

    Args:
        name: a key of `CHOICES`, or `layer-N`, the N-th layer from 1.
        mixes: False where each token needs one vector, and there is no head that a mixture is learned with.

    Raises:
        SettingsError: there is no such choice, or it does not fit.
    """
    numbers = {*range(1, num_hidden_layers + 1)}
    if asked := re.fullmatch(
        r"layer-([1-9]\d{0,3})", str(name)
    ):  # too many, too, so that it is said how many there are
        numbers.add(int(asked[1]))
    layers = {f"layer-{n}": LayerChoice(slice(n, n + 1), min_layers=n) for n in sorted(numbers)}
    known: dict[str, LayerChoice] = {**dict(CHOICES.items()), **layers}
    fitting = [key for key, its in known.items() if its.min_layers <= num_hidden_layers and (mixes or not its.mixed)]
    if str(name) not in known:
        from unmask.config import nearest  # what reads YAML: a process that fills masks starts without

        raise SettingsError(f"no feature layers {name!r}: {nearest(str(name), fitting).removeprefix('; ')}")
    if name in fitting:
        return known[name]
    if known[name].mixed and not mixes:
        what = f"layers={name}: the weights of such a mixture are learned with a head, and here is none"
    else:
        what = f"{name} needs {known[name].min_layers} layers and the model has {num_hidden_layers}"
    raise SettingsError(f"{what}: choose one of {', '.join(fitting)}")


class LayerMixture(nn.Module):
    """gamma * sum over layers of softmax(s)_j h_j; s starts from 0, so that all layers count alike, and gamma from 1.

    The optimizer's weight decay acts on s, not on the weights, and at usual rates hardly at all; ELMo's penalty of the
    weights (section 3.3) is `unmask.tasks.mixture_penalty`. Gamma, a scalar, does not decay.
    """

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Tensor) -> Tensor:
        """(tokens, hidden) from `layers` (tokens, layers, hidden)."""
        return self.gamma * torch.einsum("j,tjh->th", self.weights, layers)

    @property
    def weights(self) -> Tensor:
        """(layers,) float32, each over 0, their sum 1; the lowest layer's first."""
        return torch.softmax(self.scores, 0)


def mixture_of(head: nn.Module) -> LayerMixture | None:
    """The mixture that a head learns; None if it has none."""
    mixture = getattr(head, "mixture", None)
    return mixture if isinstance(mixture, LayerMixture) else None
