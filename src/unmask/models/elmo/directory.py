"""Directories of ELMo: `config.json` and `model.safetensors`, written and strictly read.

`transformers` has no such class, so the layout is ours: `model_type` is `elmo`, the class `ElmoModel`, or
`ElmoForPreTraining` with the softmax of its language models, and the weights have the names of our modules. A head of
fine-tuning is in `head.safetensors`, as with other models whose head `transformers` does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.io.writing import write_json
from unmask.models.elmo.encoder import ElmoEncoder
from unmask.models.elmo.settings import ElmoSettings
from unmask.models.elmo.word_softmax import WordSoftmax
from unmask.models.families.elmo import ELMO
from unmask.models.hub.config import HEAD_KIND, head_kind_apart, labels_of, problem_type_of
from unmask.models.hub.files import (
    CONFIG,
    HEAD_WEIGHTS,
    WEIGHTS,
    read_head_weights,
    write_weights,
)
from unmask.models.hub.source import LoadedModel, ModelSource
from unmask.models.hub.weight_filling import fill_weights
from unmask.models.hub.weight_names import WeightPlace

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

    Raises:
        OutputError: the disk is full, or the place cannot be written.
    """
    config = {
        "architectures": [ELMO.class_with(frozenset() if softmax is None else frozenset({"softmax"}))],
        "model_type": ELMO.model_type,
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


def load_elmo(source: ModelSource) -> LoadedModel:
    """Everything in a directory; of a fine-tuned head, only the weights.

    Raises:
        ModelError: a file is missing or damaged, or a weight is missing, left over or of another shape; the message
            names it.
    """
    assert isinstance(source.settings, ElmoSettings), "an ELMo's"
    with torch.device("meta"):
        encoder = ElmoEncoder(source.settings)
        softmax = WordSoftmax(source.settings) if "softmax" in source.model_class.parts else None
    places = {weight: WeightPlace((name,)) for name, weight in _named(encoder, softmax).items()}
    modules: list[nn.Module] = [encoder] if softmax is None else [encoder, softmax]
    fill_weights(modules, places, source.read(), source.directory, ())
    loaded = LoadedModel(source.class_name, encoder, softmax=softmax, config=source.config)
    if HEAD_KIND not in source.config:
        return loaded
    return replace(
        loaded,
        head_kind=head_kind_apart(source.config_path, source.config),
        head_weights=read_head_weights(source.directory),
        labels=labels_of(source.config_path, source.config) if "id2label" in source.config else None,
        problem_type=problem_type_of(source.config_path, source.config),
    )


def load_elmo_encoder(source: ModelSource) -> LoadedModel:
    """The encoder alone, as `unmask.models.hub.directory.load_encoder` gives one.

    Raises:
        ModelError: as in `load_elmo`.
    """
    loaded = load_elmo(source)
    of_softmax = (
        [] if loaded.softmax is None else [f"{_SOFTMAX}{name}" for name, _ in loaded.softmax.named_parameters()]
    )
    of_head = [] if loaded.head_kind is None else [HEAD_WEIGHTS]
    return LoadedModel(loaded.architecture, loaded.encoder, config=loaded.config, unused=(*of_softmax, *of_head))


def _named(encoder: ElmoEncoder, softmax: WordSoftmax | None) -> dict[str, nn.Parameter]:
    named = dict(encoder.named_parameters())
    if softmax is not None:
        named |= {f"{_SOFTMAX}{name}": weight for name, weight in softmax.named_parameters()}
    return named
