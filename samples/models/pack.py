"""Writes the model of a run as a sample encoder: its weights in bf16, its tokenizer and its recipe.

    python samples/models/pack.py RUN samples/models/en
    python samples/models/pack.py RUN samples/models/en MEAN      weights of MEAN, a model that `unmask average` wrote

README.md, the model's card, is written by hand and stays as it is.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file, save_file


def pack(run: Path, to: Path, model: Path) -> None:
    if not (model / "model.safetensors").is_file():
        raise SystemExit(f"{model}: no model")
    to.mkdir(parents=True, exist_ok=True)
    for path in model.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            shutil.copy(path, to / path.name)
    weights = load_file(model / "model.safetensors")
    halved = {name: weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    save_file(halved, to / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text("utf-8"))
    (to / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}, indent=2) + "\n", encoding="utf-8")
    recipe = yaml.safe_load((run / "recipe.yaml").read_text("utf-8"))
    recipe["store"] = recipe["eval"]["pairs"] = None  # places on the machine that it was made on
    if recipe["init_from"] is not None:
        recipe["init_from"] = ""  # to be given anew, and not forgotten
    (to / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    size = sum(path.stat().st_size for path in to.iterdir())
    print(f"{to}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    run, to = map(Path, sys.argv[1:3])
    pack(run, to, Path(sys.argv[3]) if len(sys.argv) == 4 else run / "model")
