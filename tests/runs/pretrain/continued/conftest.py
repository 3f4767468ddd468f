"""A pre-trained BERT to continue from, and the recipe of a run that does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.files import write
from support.runs import pretrain_without_report

RECIPE = """
{seed: 3, device: cpu, precision: fp32, held_out: 0.3, packing: {max_length: 32}, optimizer: {learning_rate: 1e-3},
 train: {steps: 2, batch_size: 8, log_every: 1, eval_sequences: 16}}
"""


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Without a word on the model: its sizes are those of the model that a run starts from."""
    return str(write(tmp_path_factory.mktemp("recipe") / "continued.yaml", RECIPE))


@pytest.fixture(scope="session")
def bert(tiny_recipe: Path, tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT after four steps with next-sentence prediction."""
    torch.set_num_threads(1)
    words = [f"store={tiny_store}", "train.steps=4"]
    return pretrain_without_report(str(tiny_recipe), words, tmp_path_factory.mktemp("bert") / "run") / "model"
