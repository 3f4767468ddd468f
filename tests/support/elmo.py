"""The recipe of a small ELMo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

RECIPE: dict[str, Any] = {
    "seed": 3,
    "device": "cpu",
    "precision": "fp32",
    "held_out": 0,
    "tokenizer": {"kind": "word", "vocab_size": 300},
    "model": {
        "architecture": "elmo",
        "preset": "tiny",
        "filters": [[1, 4], [2, 8]],
        "projection_size": 8,
        "cell_size": 16,
    },
    "objective": {"name": "bilm", "num_negatives": 50},
    "packing": {"format": "stream", "max_length": 10},
    "optimizer": {"name": "adagrad", "learning_rate": 0.2, "initial_accumulator": 0.0025, "weight_decay": 0},
    "schedule": {"name": "constant"},
    "train": {"steps": 12, "batch_size": 8, "micro_batch_size": 3, "save_every": 4},
}


def write_elmo_recipe(path: Path, **changes: Any) -> str:
    """Writes it with other values for keys, or for keys of its sections; the path as `pretrain` takes it."""
    sections = {name: {**RECIPE[name], **value} for name, value in changes.items() if isinstance(value, dict)}
    path.write_text(yaml.safe_dump(RECIPE | changes | sections), encoding="utf-8")
    return str(path)
