"""The files of a model directory, `config.json` and the safetensors: read with every failure reported, and written.

Nothing here depends on what the weights mean. Pickles are never opened.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from unmask.errors import ModelError
from unmask.io.encodings import LFS_POINTER
from unmask.io.json_files import read_object
from unmask.io.paths import HEAD_WEIGHTS
from unmask.io.writing import writing
from unmask.models.hub.config import without_lost_head
from unmask.models.hub.headers import WEIGHTS, WEIGHTS_INDEX, no_weights, weight_map

CONFIG = "config.json"

_LFS_POINTER = LFS_POINTER.encode()


def read_config(directory: Path) -> dict[str, Any]:
    """`config.json`, without a lost head. Raises ModelError if there is none, or it is not a JSON object."""
    if not directory.is_dir():
        raise ModelError(f"{directory} is not a directory: expected a model directory with {CONFIG} and {WEIGHTS}")
    if not (directory / CONFIG).is_file():
        raise ModelError(f"{directory / CONFIG} is missing: expected a model directory in the Hugging Face layout")
    return without_lost_head(directory, read_object(directory / CONFIG, ModelError))


def read_weights(directory: Path) -> dict[str, Tensor]:
    """All tensors of `model.safetensors`, or of the shards that its index names. Raises ModelError if the file or a
    shard is missing, cut short or damaged, or there is only a pickle or an ONNX file."""
    if (directory / WEIGHTS).is_file():
        return read_safetensors(directory / WEIGHTS)
    if (directory / WEIGHTS_INDEX).is_file():
        return _read_shards(directory / WEIGHTS_INDEX)
    raise no_weights(directory)


def read_head_weights(directory: Path) -> dict[str, Tensor]:
    """All tensors of `head.safetensors`, a head apart from its encoder. Raises ModelError if the file is missing, cut
    short or damaged."""
    path = directory / HEAD_WEIGHTS
    if not path.is_file():
        raise ModelError(f"{path} is missing: {CONFIG} says that the head is in it; get the whole directory again")
    return read_safetensors(path)


def _read_shards(index_path: Path) -> dict[str, Tensor]:
    places = weight_map(index_path)
    weights: dict[str, Tensor] = {}
    for name in sorted(set(places.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(f"{index_path}: {name!r} is not the name of a file beside it")
        weights |= read_safetensors(index_path.with_name(name))
    absent = sorted(set(places) - set(weights))
    if absent:
        raise ModelError(f"{index_path} names weights that its files do not hold: {', '.join(absent)}")
    return weights


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file; raises ModelError if it is missing, cut short or damaged."""
    if not path.is_file():
        raise ModelError(f"{path} is missing: the index names it; get the whole directory again")
    try:
        return load_file(path)
    except (SafetensorError, ValueError) as error:
        with path.open("rb") as file:
            is_pointer = file.read(len(_LFS_POINTER)) == _LFS_POINTER
        if is_pointer:
            raise ModelError(
                f"{path} is a pointer of Git LFS, not the weights: fetch them with `git lfs pull` in that clone"
            ) from error
        raise ModelError(f"{path} is cut short or damaged ({error}): get it again from where it came") from error


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file of large tensors as they are, in a directory that is being written. Raises OSError."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from error
    path.chmod(mode)  # safetensors lets nobody but its owner read it


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """A safetensors file of float32, whole or not at all. Raises OutputError if the disk is full, or the place cannot
    be written."""
    on_cpu = {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in weights.items()}
    with writing(path) as file:
        file.write(save(on_cpu, metadata={"format": "pt"}))
