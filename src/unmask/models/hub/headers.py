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
from unmask.io.paths import CONFIGS
from unmask.models.hub.config import read_class, without_lost_head

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
    names: set[str] = set()
    for path in directory.glob("*.safetensors"):
        with _opened(path) as file:
            names.update(file.keys())
    return names


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
