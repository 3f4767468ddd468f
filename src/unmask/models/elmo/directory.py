"""Directories of ELMo: `config.json` and `model.safetensors`, written and strictly read.

`transformers` has no such class, so the layout is ours: `model_type` is `elmo`, the class `ElmoModel`, or
`ElmoForPreTraining` with the softmax of its language models, and the weights have the names of our modules. A head of
fine-tuning stands in `head.safetensors`, as with other models whose head `transformers` does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from unmask.errors import ModelError
from unmask.io.writing import write_json
from unmask.models.elmo.encoder import ElmoEncoder
from unmask.models.elmo.settings import ElmoSettings
from unmask.models.elmo.word_softmax import WordSoftmax
from unmask.models.hub.config import HEAD_KIND, head_kind_apart, labels_of, problem_type_of
from unmask.models.hub.files import (
    CONFIG,
    HEAD_WEIGHTS,
    WEIGHTS,
    read_config,
    read_head_weights,
    read_weights,
    write_weights,
)
from unmask.models.hub.loaded_model import LoadedModel
from unmask.models.hub.weight_filling import fill
from unmask.models.hub.weight_names import Place
from unmask.models.settings import reasons

MODEL_TYPE = "elmo"
BARE, WITH_SOFTMAX = "ElmoModel", "ElmoForPreTraining"
_SOFTMAX = "softmax."


def save_elmo(
    directory: Path,
    encoder: ElmoEncoder,
    softmax: WordSoftmax | None = None,
    extra_config: Mapping[str, Any] | None = None,
    head: nn.Module | None = None,
) -> None:
    """Writes `config.json` and the weights, each file whole or not at all; `model.safetensors` comes last.

    Args:
        directory: made where it is missing.
        extra_config: further keys for `config.json`: those of the head among them.
        head: of fine-tuning.

    Raises:
        OutputError: the disk is full, or the place cannot be written.
    """
    config = {
        "architectures": [BARE if softmax is None else WITH_SOFTMAX],
        "model_type": MODEL_TYPE,
        **encoder.settings.model_dump(mode="json", exclude={"architecture"}),
        "dtype": "float32",
    }
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / CONFIG, config | dict(extra_config or {}))
    if head is None:
        (directory / HEAD_WEIGHTS).unlink(missing_ok=True)
    else:
        write_weights(directory / HEAD_WEIGHTS, head.state_dict())
    write_weights(directory / WEIGHTS, _named(encoder, softmax))


def is_elmo(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of an ELMo."""
    return config.get("model_type") == MODEL_TYPE


def holds_elmo(directory: Path) -> bool:
    """Whether a directory holds an ELMo.

    Raises:
        ModelError: its `config.json` is damaged.
    """
    return (directory / CONFIG).is_file() and is_elmo(read_config(directory))


def load_elmo(directory: Path) -> LoadedModel:
    """Everything in a directory; of a fine-tuned head, only the weights.

    Raises:
        ModelError: a file is missing or damaged, a setting is missing or not possible, or a weight is missing, left
            over or of another shape; the message names it.
    """
    config, path = read_config(directory), directory / CONFIG
    settings = elmo_settings_of(path, config)
    classes = config.get("architectures")
    if classes not in ([BARE], [WITH_SOFTMAX]):
        raise ModelError(f"{path}: architectures is {classes!r}: expected [{BARE!r}] or [{WITH_SOFTMAX!r}]")
    with torch.device("meta"):
        encoder = ElmoEncoder(settings)
        softmax = WordSoftmax(settings) if classes == [WITH_SOFTMAX] else None
    places = {weight: Place((name,)) for name, weight in _named(encoder, softmax).items()}
    modules: list[nn.Module] = [encoder] if softmax is None else [encoder, softmax]
    fill(modules, places, read_weights(directory), directory, ())
    loaded = LoadedModel(classes[0], encoder, softmax=softmax, config=config)
    if HEAD_KIND not in config:
        return loaded
    kind = head_kind_apart(path, config)
    return replace(
        loaded,
        head_kind=kind,
        head_weights=read_head_weights(directory),
        labels=labels_of(path, config) if "id2label" in config else None,
        problem_type=problem_type_of(path, config),
    )


def load_elmo_encoder(directory: Path) -> LoadedModel:
    """The encoder alone, as `unmask.models.hub.directory.load_encoder` gives one.

    Raises:
        ModelError: as in `load_elmo`.
    """
    loaded = load_elmo(directory)
    of_softmax = (
        [] if loaded.softmax is None else [f"{_SOFTMAX}{name}" for name, _ in loaded.softmax.named_parameters()]
    )
    of_head = [] if loaded.head_kind is None else [HEAD_WEIGHTS]
    return LoadedModel(loaded.architecture, loaded.encoder, config=loaded.config, unused=(*of_softmax, *of_head))


def elmo_settings_of(path: Path, config: Mapping[str, Any]) -> ElmoSettings:
    """The sizes of the encoder.

    Raises:
        ModelError: a key is missing, or its value not possible.
    """
    if not is_elmo(config):
        raise ModelError(f"{path}: model_type is {config.get('model_type')!r}: expected {MODEL_TYPE!r}")
    fields = set(ElmoSettings.model_fields) - {"architecture"}
    missing = sorted(fields - config.keys())
    if missing:
        raise ModelError(f"{path} lacks {', '.join(missing)}: expected every size of an ELMo, as they are saved")
    try:
        return ElmoSettings(**{name: config[name] for name in fields})
    except ValidationError as error:
        raise ModelError(f"{path}: {reasons(error)}: mend it, or get the directory again") from error


def _named(encoder: ElmoEncoder, softmax: WordSoftmax | None) -> dict[str, nn.Parameter]:
    named = dict(encoder.named_parameters())
    if softmax is not None:
        named |= {f"{_SOFTMAX}{name}": weight for name, weight in softmax.named_parameters()}
    return named
