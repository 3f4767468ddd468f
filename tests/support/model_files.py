"""Changes to a model directory that was saved, as old or damaged ones have them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

Edit = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(directory: Path, edit: Edit, name: str = "model.safetensors") -> None:
    path = directory / name
    save_file(edit({name: tensor.clone() for name, tensor in load_file(path).items()}), path)


def without(name: str) -> Edit:
    return lambda weights: {other: tensor for other, tensor in weights.items() if other != name}


def with_one(name: str, tensor: Tensor) -> Edit:
    return lambda weights: weights | {name: tensor}
