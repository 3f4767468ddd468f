"""One model from several: the mean of their weights (Wortsman et al. 2022, "Model soups").

It costs what one of them does. It helps where the models come from one: an encoder and what further pre-training made
of it, or restarts of a fine-tuning. Models from different random weights have nothing in common to average.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from unmask.errors import ModelError, SettingsError
from unmask.inference.ensemble import CHOSEN, answers_of, task_of
from unmask.io.paths import GENERATOR, HEAD_WEIGHTS, model_directory
from unmask.io.writing import refuse_inputs_inside, write_json, writing_directory
from unmask.models.hub.config import MADE_BY, TRAINED_LENGTH
from unmask.models.hub.files import CONFIG, read_config, read_head_weights, write_weights
from unmask.models.hub.headers import WEIGHTS
from unmask.models.hub.source import ModelSource, open_source
from unmask.tokenization.opening import open_tokenizer
from unmask.training.run.model_place import check_place

_OF_TRAINING = ("hidden_dropout_prob", "embedding_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
"""Settings in which the models may differ: they say nothing of what a model computes when it answers."""

_OF_HEADS = {"window_pooling": None, "feature_layers": "last"}
"""Settings of a task that decide what a head reads, where its weights do not show it, and what a model that names none
was trained with."""

logger = logging.getLogger("unmask")


def average_models(
    models: str | Path | Iterable[str | Path], directory: str | Path, *, overwrite: bool = False
) -> Path:
    """Writes the mean of models' weights, as float32, with the configuration and the tokenizer of the first; and so of
    the generators beside ELECTRAs, if all have theirs.

    Args:
        models: at least two of one kind, or the runs that made them; one that is named twice counts twice.
        directory: the directory to write.
        overwrite: True replaces a model there.

    Returns:
        `directory`.

    Raises:
        SettingsError: fewer than two models.
        ModelError: one is no model, or they differ in their sizes, their heads, what they answer or their tokenizer.
        OutputError: the directory exists already, or cannot be written.
    """
    directory = Path(directory)
    models = [models] if isinstance(models, str | Path) else list(models)
    if len(models) < 2:
        raise SettingsError(f"the mean of {len(models)} model(s): expected two or more")
    check_place(directory, overwrite)
    directories = [model_directory(model) for model in models]
    folders = [Path(), *([Path(GENERATOR)] if all((each / GENERATOR).is_dir() for each in directories) else [])]
    refuse_inputs_inside(directory, [each / folder for folder in folders for each in directories])
    made_by = {"command": "average", "of": [str(model) for model in models]}
    with writing_directory(directory, overwrite) as unfinished:
        for folder in folders:
            _write_mean([each / folder for each in directories], unfinished / folder, {MADE_BY: made_by})
    return directory


def _write_mean(directories: Sequence[Path], out: Path, extra_config: Mapping[str, Any]) -> None:
    sources = [open_source(directory) for directory in directories]
    first = sources[0]
    alike = _kinds(first)
    for source in sources[1:]:
        for what, value in _kinds(source).items():
            if value != alike[what]:
                raise _differs(source, what, first, f" ({value} and {alike[what]})" if what == "class" else "")
    weights = _mean(sources, [source.weights() for source in sources])
    head = None
    if (first.directory / HEAD_WEIGHTS).is_file():
        head = _mean(sources, [read_head_weights(source.directory) for source in sources])
    out.mkdir(exist_ok=True)
    write_json(out / CONFIG, {**_config(sources), **extra_config})
    write_weights(out / WEIGHTS, weights)
    if head is not None:
        write_weights(out / HEAD_WEIGHTS, head)
    open_tokenizer(first.directory).save(out)


def _kinds(source: ModelSource) -> dict[str, Any]:
    """Everything in which the models have to agree, by name."""
    sizes = source.settings.model_dump(exclude=set(_OF_TRAINING))
    task = task_of(read_config(source.directory))
    return {
        "class": source.class_name,
        **{f"size ({name})": value for name, value in sizes.items()},
        **answers_of(source.directory),
        **{f"task.{name}": task.get(name, usual) for name, usual in _OF_HEADS.items()},
        "tokenizer": open_tokenizer(source.directory).fingerprint(),
        "kind of head": (source.directory / HEAD_WEIGHTS).is_file(),
    }


def _mean(sources: Sequence[ModelSource], weights: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    shapes = [{name: weight.shape for name, weight in each.items() if weight.is_floating_point()} for each in weights]
    for source, its in zip(sources, shapes, strict=True):
        if its != shapes[0]:
            name = min(name for name in its | shapes[0] if its.get(name) != shapes[0].get(name))
            raise _differs(source, name, sources[0])
    return {
        name: sum((each[name].float() for each in weights[1:]), weights[0][name].float()) / len(weights)
        for name in shapes[0]
    }


def _differs(source: ModelSource, what: str, first: ModelSource, values: str = "") -> ModelError:
    return ModelError(
        f"{source.directory} and {first.directory} differ in {what}{values}: expected models that differ in weights "
        "alone, as runs of one recipe give"
    )


def _config(sources: Sequence[ModelSource]) -> dict[str, Any]:
    """That of the first, without what was chosen for its weights, and with the length that all have seen."""
    config = {name: value for name, value in sources[0].config.items() if name != "torch_dtype"} | {"dtype": "float32"}
    trained = [source.trained_length for source in sources if source.trained_length is not None]
    if trained:
        config[TRAINED_LENGTH] = min(trained)
    task = task_of(config)
    if chosen := [name for name in CHOSEN if task.get(name) is not None]:
        config["unmask_task"] = {name: value for name, value in task.items() if name not in chosen}
        logger.warning("%s: left out, for it was chosen on dev for the weights of one model", " and ".join(chosen))
    return config
