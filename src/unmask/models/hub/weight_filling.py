"""Puts the weights of a model directory into modules: every one of them, and none left over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from unmask.errors import ModelError
from unmask.models.hub.files import CONFIG
from unmask.models.hub.weight_names import WeightPlace, join, split

_MOST_FAULTS = 3
"""Weights that a message names, of each kind of fault."""


def fill_weights(
    modules: Sequence[nn.Module],
    places: Mapping[nn.Parameter, WeightPlace],
    weights: Mapping[str, Tensor],
    where: Path,
    may_be_left: tuple[str, ...],
) -> tuple[str, ...]:
    """Gives modules on the meta device copies of their weights, independent of the file.

    Args:
        places: of every parameter of the modules.
        where: the directory or file of the weights, for messages.
        may_be_left: name prefixes of weights that may be left over.

    Returns:
        The names of the weights left over.

    Raises:
        ModelError: a weight is missing, left over, of another shape, or not of floats.
    """
    unused = _check_fit(where, places, weights, may_be_left)
    values = {parameter: join(place, weights) for parameter, place in places.items()}
    for module in modules:
        module.load_state_dict({name: values[weight] for name, weight in module.named_parameters()}, assign=True)
    return unused


def _check_fit(
    where: Path,
    places: Mapping[nn.Parameter, WeightPlace],
    weights: Mapping[str, Tensor],
    may_be_left: tuple[str, ...],
) -> tuple[str, ...]:
    """Refuses weights that are missing, left over, of another shape or not floats; returns those that may be left."""
    expected = {
        name: tuple(part.shape) for weight, place in places.items() for name, part in split(place, weight).items()
    }
    left = sorted(set(weights) - set(expected))
    found = {name: (weights[name], shape) for name, shape in expected.items() if name in weights}
    faults = [
        *_few(f"{name} {shape} is missing" for name, shape in expected.items() if name not in weights),
        *_few(
            f"{name} has the shape {tuple(weight.shape)}, expected {shape}"
            for name, (weight, shape) in found.items()
            if tuple(weight.shape) != shape
        ),
        *_few(
            f"{name} is of {weight.dtype}, expected floats"
            for name, (weight, _) in found.items()
            if not weight.is_floating_point()
        ),
        *_few(f"{name} is left over" for name in left if not name.startswith(may_be_left)),
    ]
    if faults:
        raise ModelError(
            f"{where}: the weights do not fit {CONFIG}: {'; '.join(faults)}; "
            "get the directory again, or the config.json that belongs to its weights"
        )
    return tuple(left)


def _few(faults: Iterable[str]) -> list[str]:
    """The first faults of one kind, and how many more there are."""
    faults = list(faults)
    more = len(faults) - _MOST_FAULTS
    return [*faults[:_MOST_FAULTS], *([f"{more} more likewise"] if more > 0 else [])]
