"""Makes `loss_curve.json`: the losses of twenty steps of a tiny BERT, from raw English and Korean text onwards.

    python tests/golden/make_loss_curve.py

`test_loss_curve.py` takes the same steps and compares. The file is made anew only when a change of the losses is
intended, and the change is explained where it is made.
"""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import islice
from pathlib import Path

import torch

from unmask import pretrain
from unmask.training.run_log import read_metrics

GOLDEN = Path(__file__).with_name("loss_curve.json")
SAMPLES = Path(__file__).parents[2] / "samples" / "text"
FIGURES = ("loss", "loss/mlm", "loss/nsp", "gradient_norm")

RECIPE = """
seed: 1
device: cpu
precision: fp32
tokenizer: {vocab_size: 1000}
held_out: 0
model: {preset: tiny, hidden_size: 64, hidden_dropout_prob: 0, attention_probs_dropout_prob: 0}
packing: {max_length: 64}
objective: {masking: whole_word}
optimizer: {learning_rate: 2e-3}
schedule: {warmup_steps: 5}
train: {steps: 20, batch_size: 16, micro_batch_size: 6, log_every: 1}
"""
"""Dropout is off: which numbers its generator gives depends on the processor."""


def loss_curve(changes: list[str], directory: Path) -> list[dict[str, float]]:
    """Takes the steps and returns the figures of each.

    Args:
        changes: `key.path=value` words over the recipe.
        directory: an empty one to work in.
    """
    corpus, recipe = directory / "corpus.jsonl", directory / "recipe.yaml"
    lines = []
    for name in ("en-books.jsonl", "ko-wiki.jsonl"):
        with (SAMPLES / name).open(encoding="utf-8") as file:
            lines += list(islice(file, 12))
    corpus.write_text("".join(lines), encoding="utf-8")
    recipe.write_text(RECIPE, encoding="utf-8")
    pretrain(str(recipe), [f"corpus={corpus}", *changes], out=directory / "run")
    rows = read_metrics(directory / "run" / "metrics.jsonl")
    return [{name: row[name] for name in FIGURES} for row in rows]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        steps = loss_curve([], Path(directory))
    made_with = {"torch": torch.__version__, "python": sys.version.split()[0]}
    GOLDEN.write_text(json.dumps({"made_with": made_with, "steps": steps}, indent=1) + "\n", encoding="utf-8")
    print(f"{GOLDEN}: {steps[0]['loss']:.4f} to {steps[-1]['loss']:.4f} in {len(steps)} steps")


if __name__ == "__main__":
    main()
