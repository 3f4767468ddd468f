"""One model from several: the mean of their weights (Wortsman et al. 2022, "Model soups").

It costs what one of them does. It helps where the models come from one: an encoder and what further pre-training made
of it, or restarts of a fine-tuning. Models from different random weights have nothing in common to average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from unmask.errors import ModelError, OutputError, SettingsError
from unmask.io.paths import model_directory
from unmask.io.writing import write_json, writing_directory
from unmask.models.hub.files import CONFIG, HEAD_WEIGHTS, WEIGHTS, read_head_weights, write_weights
from unmask.models.hub.source import open_source
from unmask.tokenization.opening import open_tokenizer


def average_models(models: Sequence[str | Path], directory: str | Path, *, overwrite: bool = False) -> Path:
    """Writes the mean of models' weights, as float32, with the configuration and the tokenizer of the first.

    Args:
        models: at least two of one kind, or the runs that made them; one that is named twice counts twice.
        directory: the directory to write.
        overwrite: True replaces a model there.

    Returns:
        `directory`.

    Raises:
        SettingsError: fewer than two models.
        ModelError: one is no model, or they differ in their sizes, their heads, their labels or their tokenizer.
        OutputError: the directory exists already, or cannot be written.
    """
    directory = Path(directory)
    found = [model_directory(model) for model in models]
    if len(found) < 2:
        raise SettingsError(f"the mean of {len(found)} model(s): expected two or more")
    if overwrite and directory.exists() and not (directory / CONFIG).is_file():
        raise OutputError(f"{directory} is no model, so --overwrite does not remove it: choose another name")
    first = found[0]
    alike = _sorts(first)
    for other in found[1:]:
        for what, value in _sorts(other).items():
            if value != alike[what]:
                raise ModelError(
                    f"{other} has another {what} than {first}: expected models that differ in weights alone"
                )
    weights = _mean([dict(open_source(model).read()) for model in found], found)
    heads = [model for model in found if (model / HEAD_WEIGHTS).is_file()]
    tokenizer = open_tokenizer(first)
    with writing_directory(directory, overwrite) as unfinished:
        write_json(unfinished / CONFIG, {**open_source(first).config, "dtype": "float32"})
        write_weights(unfinished / WEIGHTS, weights)
        if heads:
            write_weights(unfinished / HEAD_WEIGHTS, _mean([read_head_weights(model) for model in heads], heads))
        tokenizer.save(unfinished)
    return directory


def _sorts(model: Path) -> dict[str, Any]:
    """Everything in which the models have to agree, by name."""
    source = open_source(model)
    return {
        "class": source.class_name,
        "size": source.settings,
        "set of labels": source.config.get("id2label"),
        "kind of head": (model / HEAD_WEIGHTS).is_file(),
        "tokenizer": open_tokenizer(model).fingerprint(),
    }


def _mean(weights: Sequence[Mapping[str, Tensor]], models: Sequence[Path]) -> dict[str, Tensor]:
    first = weights[0]
    for each, model in zip(weights, models, strict=True):
        shapes = {name: tensor.shape for name, tensor in each.items()}
        expected = {name: tensor.shape for name, tensor in first.items()}
        if shapes != expected:
            name = min(name for name in shapes | expected if shapes.get(name) != expected.get(name))
            raise ModelError(
                f"{model} has another {name} than {models[0]}: expected models that differ in weights alone"
            )
    return {
        name: sum((each[name].float() for each in weights[1:]), first[name].float()) / len(weights) for name in first
    }
