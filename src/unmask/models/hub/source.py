"""A model directory as it was read: its class, its sizes, its weights under their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.errors import ModelError
from unmask.models.elmo.directory import elmo_settings_of, is_elmo
from unmask.models.elmo.settings import ElmoSettings
from unmask.models.hub.config import CLASSES, ModelClass, class_named, settings_of
from unmask.models.hub.files import CONFIG, read_config, read_weights
from unmask.models.hub.weight_names import FAMILIES, FamilyNames, modernise
from unmask.models.settings import EncoderSettings


@dataclass(frozen=True)
class Source:
    """A model directory as it was read, with the names of its weights modernised."""

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
    """Reads a directory in the Hugging Face layout, or one of Google's checkpoints as if it were in that layout.

    Raises:
        ModelError: a file is missing or damaged, or the class is not supported.
    """
    if directory.is_dir() and not (directory / CONFIG).exists():
        from unmask.models.google.checkpoint import is_google_checkpoint, read_google_checkpoint

        if is_google_checkpoint(directory):
            return _source(directory, *read_google_checkpoint(directory))
    return _source(directory, read_config(directory), read_weights(directory))


def read_settings(directory: Path) -> EncoderSettings | ElmoSettings:
    """The sizes of the encoder in a directory, without reading its weights.

    Raises:
        ModelError: `config.json` is missing or damaged, or its class or one of its settings is not supported.
    """
    if directory.is_dir() and not (directory / CONFIG).exists():
        return read_source(directory).settings()
    config = read_config(directory)
    if is_elmo(config):
        return elmo_settings_of(directory / CONFIG, config)
    return settings_of(directory / CONFIG, config, class_named(directory / CONFIG, config))


def _source(directory: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Source:
    class_name = class_named(directory / CONFIG, config, weights)
    return Source(directory, config, class_name, modernise(weights, FAMILIES[CLASSES[class_name].family]))


def untie(source: Source) -> None:
    """Removes the second copies of tied weights, which must be equal to the first (else ModelError)."""
    for copy, original in source.family.tied.items():
        if copy not in source.weights:
            continue
        duplicate = source.weights.pop(copy)
        if not torch.equal(source.weights.setdefault(original, duplicate), duplicate):
            raise ModelError(
                f"{source.directory}: {copy} differs from {original}; expected the same weight: they are tied"
            )
