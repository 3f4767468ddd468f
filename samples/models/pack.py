"""Writes the model of a run as a sample encoder: its weights in bf16, its tokenizer and its recipe.

    python samples/models/pack.py RUN samples/models/en
    python samples/models/pack.py RUN CONTINUED CONTINUED samples/models/en

Of several runs, which begin with the model of the first, the mean of their weights is written (Wortsman et al. 2022);
the recipe is that of the first. README.md, the model's card, is written by hand and stays as it is.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file, save_file


def pack(runs: Sequence[Path], to: Path) -> None:
    models = [run / "model" for run in runs]
    for model in models:
        if not (model / "model.safetensors").is_file():
            raise SystemExit(f"{model.parent}: no finished run with a model")
    to.mkdir(parents=True, exist_ok=True)
    for path in models[0].iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            shutil.copy(path, to / path.name)
    weights = [load_file(model / "model.safetensors") for model in models]
    means = {name: torch.stack([each[name] for each in weights]).mean(0) for name in weights[0]}
    halved = {name: mean.to(torch.bfloat16).contiguous() for name, mean in means.items()}
    save_file(halved, to / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((models[0] / "config.json").read_text("utf-8"))
    (to / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}, indent=2) + "\n", encoding="utf-8")
    recipe = yaml.safe_load((runs[0] / "recipe.yaml").read_text("utf-8"))
    recipe["store"] = recipe["eval"]["pairs"] = None  # places on the machine that it was made on
    if recipe["init_from"] is not None:
        recipe["init_from"] = ""  # to be given anew, and not forgotten
    (to / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    size = sum(path.stat().st_size for path in to.iterdir())
    print(f"{to}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    pack([Path(run) for run in sys.argv[1:-1]], Path(sys.argv[-1]))
