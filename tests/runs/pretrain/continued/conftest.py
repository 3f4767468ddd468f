"""A pre-trained BERT to continue from, and the recipe of a run that does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unmask.pretraining.run import pretrain


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Without a word on the model: its sizes are those of the model that a run starts from."""
    path = tmp_path_factory.mktemp("recipe") / "continued.yaml"
    path.write_text(
        "seed: 3\ndevice: cpu\nprecision: fp32\nheld_out: 0.3\npacking: {max_length: 32}\n"
        "optimizer: {learning_rate: 1e-3}\n"
        "train: {steps: 2, batch_size: 8, log_every: 1, eval_sequences: 16}\n"
    )
    return str(path)


@pytest.fixture(scope="session")
def bert(tiny_recipe: Path, tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT after four steps with next-sentence prediction."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.pretraining.run.write_report", lambda directory: None)
        words = [f"store={tiny_store}", "train.steps=4"]
        return pretrain(str(tiny_recipe), words, out=tmp_path_factory.mktemp("bert") / "run")
