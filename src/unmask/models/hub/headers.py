"""What a model directory says of itself before its weights are read: its class, and how many parameters it has. Torch
is imported for Google's checkpoints alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from unmask.errors import ModelError
from unmask.io.json_files import read_object
from unmask.io.paths import CONFIGS, ONNX
from unmask.models.hub.config import read_class, without_lost_head

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Types of parameters; old directories keep position ids beside them, as integers."""


def is_google(directory: Path) -> bool:
    """Whether a model directory is a checkpoint of Google's, without `config.json`."""
    return not (directory / CONFIGS[0]).is_file()


def read_any_config(directory: Path) -> dict[str, Any]:
    """`config.json` or Google's `bert_config.json`, with the `architectures` that loading finds by the names of the
    weights where the file names none. The directory has one of `CONFIGS`. Raises ModelError if it cannot be read."""
    config = read_object(next(directory / name for name in CONFIGS if (directory / name).is_file()), ModelError)
    if is_google(directory) or not config.get("architectures"):
        with suppress(ModelError):  # `refusal_of` gives the reason
            config["architectures"] = [_class_of(directory, config)]
    return without_lost_head(directory, config)


def refusal_of(directory: Path, config: Mapping[str, Any]) -> str | None:
    """Why a model does not load, as far as its `config.json` and the names of its weights say; None where they say
    nothing against it."""
    try:
        _class_of(directory, config)
    except ModelError as error:
        return str(error)
    return None


def _class_of(directory: Path, config: Mapping[str, Any]) -> str:
    if is_google(directory):
        from unmask.models.google.checkpoint import architecture_in  # it imports torch

        return architecture_in(directory)
    return read_class(directory / CONFIGS[0], config, lambda: _names_in(directory))[0]


def _names_in(directory: Path) -> set[str]:
    """The names of all weights that loading reads. Raises ModelError as loading does."""
    if (directory / WEIGHTS).is_file():
        with _opened(directory / WEIGHTS) as file:
            return set(file.keys())
    if (directory / WEIGHTS_INDEX).is_file():
        return set(weight_map(directory / WEIGHTS_INDEX))
    raise no_weights(directory)


def weight_map(index_path: Path) -> dict[str, str]:
    """The file of each weight, by the index of several. Raises ModelError if it names none."""
    places = read_object(index_path, ModelError).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ModelError(f"{index_path}: expected `weight_map`, an object from weight names to file names")
    return places


def no_weights(directory: Path) -> ModelError:
    """What to do about a directory without safetensors, by what is there in their place."""
    if (directory / PICKLE).is_file():
        return ModelError(
            f"{directory} has only {PICKLE}: that is a pickle, which can run any code and is never opened here; "
            "convert it where you trust it, heads and all: import torch; from safetensors.torch import save_file; "
            "save_file({name: weight.clone().contiguous() for name, weight in torch.load("
            f"'{directory / PICKLE}', weights_only=True).items()}}, '{directory / WEIGHTS}', {{'format': 'pt'}})"
        )
    if (directory / ONNX).is_file():
        return ModelError(f"{directory} holds an ONNX file, and no weights: name the directory that it was made from")
    return ModelError(f"{directory} has no {WEIGHTS}: expected a model directory in the Hugging Face layout")


def num_parameters(files: Sequence[Path]) -> int | None:
    """How many numbers the weights have; None where there are no files. Raises ModelError if a file is damaged."""
    if not files:
        return None
    return sum(map(_num_in, files))


def _num_in(path: Path) -> int:
    with _opened(path) as file:
        tensors = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118
        return sum(prod(tensor.get_shape()) for tensor in tensors if tensor.get_dtype() in FLOATS)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, "np") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: cut short or damaged ({error}): get it again from where it came") from error
