"""A model directory as it was read, and its weights put into place: every one of them, and none left over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask.errors import ModelError
from unmask.models.hub_config import CLASSES, ModelClass, class_named, settings_of
from unmask.models.hub_files import CONFIG, read_config, read_weights
from unmask.models.settings import EncoderSettings
from unmask.models.weight_names import FAMILIES, FamilyNames, Place, join, modernise, split

_MOST_FAULTS = 3
"""Weights that a message names, of each kind of fault."""


@dataclass(frozen=True)
class Source:
    """A model directory as it was read, the names of its weights made modern."""

    directory: Path
    config: Mapping[str, Any]
    class_name: str
    weights: dict[str, Tensor]

    @property
    def config_path(self) -> Path:
        return self.directory / CONFIG

    @property
    def model_class(self) -> ModelClass:
        return CLASSES[self.class_name]

    @property
    def family(self) -> FamilyNames:
        return FAMILIES[self.model_class.family]

    @property
    def has_pooler(self) -> bool:
        return any(name.startswith(self.family.pooler_prefix) for name in self.weights)

    def settings(self) -> EncoderSettings:
        return settings_of(self.config_path, self.config, self.class_name)


def read_source(directory: Path) -> Source:
    """Reads a directory in the Hugging Face layout, or one of Google's checkpoints as what it would be there.

    Raises:
        ModelError: a file is missing or damaged, or the class is not supported.
    """
    if directory.is_dir() and not (directory / CONFIG).exists():
        from unmask.models.google_checkpoint import is_google_checkpoint, read_google_checkpoint

        if is_google_checkpoint(directory):
            return _source(directory, *read_google_checkpoint(directory))
    return _source(directory, read_config(directory), read_weights(directory))


def _source(directory: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Source:
    class_name = class_named(directory / CONFIG, config)
    return Source(directory, config, class_name, modernise(weights, FAMILIES[CLASSES[class_name].family]))


def fill(
    modules: Sequence[nn.Module],
    places: Mapping[nn.Parameter, Place],
    weights: Mapping[str, Tensor],
    where: Path,
    may_be_left: tuple[str, ...],
) -> tuple[str, ...]:
    """Gives modules on the meta device copies of their weights, free of the file.

    Args:
        places: of every parameter of the modules.
        where: the directory or file of the weights, for messages.
        may_be_left: beginnings of the names of weights that need not find a place.

    Returns:
        The names of those that found none.

    Raises:
        ModelError: a weight is missing, left over, of another shape, or not of floats.
    """
    unused = _check_fit(where, places, weights, may_be_left)
    values = {parameter: join(place, weights) for parameter, place in places.items()}
    for module in modules:
        module.load_state_dict({name: values[weight] for name, weight in module.named_parameters()}, assign=True)
    return unused


def untie(source: Source) -> None:
    """Takes out the second copies of tied weights, which must be equal to the first (else ModelError)."""
    for copy, original in source.family.tied.items():
        if copy not in source.weights:
            continue
        duplicate = source.weights.pop(copy)
        if not torch.equal(source.weights.setdefault(original, duplicate), duplicate):
            raise ModelError(
                f"{source.directory}: {copy} differs from {original}; expected the same weight: they are tied"
            )


def _check_fit(
    where: Path,
    places: Mapping[nn.Parameter, Place],
    weights: Mapping[str, Tensor],
    may_be_left: tuple[str, ...],
) -> tuple[str, ...]:
    """Refuses weights that are missing, left over, of another shape or not floats; returns those that may be left."""
    expected = {
        name: tuple(part.shape) for weight, place in places.items() for name, part in split(place, weight).items()
    }
    left = sorted(set(weights) - set(expected))
    faults = [
        *_few([f"{name} {shape} is missing" for name, shape in expected.items() if name not in weights]),
        *_few(
            [
                f"{name} has the shape {tuple(weights[name].shape)}, expected {shape}"
                for name, shape in expected.items()
                if name in weights and tuple(weights[name].shape) != shape
            ]
        ),
        *_few(
            [
                f"{name} is of {weights[name].dtype}, expected floats"
                for name in expected
                if name in weights and not weights[name].is_floating_point()
            ]
        ),
        *_few([f"{name} is left over" for name in left if not name.startswith(may_be_left)]),
    ]
    if faults:
        raise ModelError(
            f"{where}: the weights do not fit {CONFIG}: {'; '.join(faults)}; "
            "get the directory again, or the config.json that belongs to its weights"
        )
    return tuple(left)


def _few(faults: Sequence[str]) -> list[str]:
    """The first faults of one kind, and how many more there are."""
    more = len(faults) - _MOST_FAULTS
    return [*faults[:_MOST_FAULTS], *([f"{more} more likewise"] if more > 0 else [])]
