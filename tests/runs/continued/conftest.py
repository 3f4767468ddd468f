"""A pre-trained BERT, what a run that goes on from a model begins with, and the run itself, of two steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.batch import Batch, pack
from unmask.objectives.table import new_objective
from unmask.pretraining.run import pretrain
from unmask.pretraining.start import build_module, open_start
from unmask.recipe.loading import load_pretrain_recipe
from unmask.store.store import TokenStore
from unmask.tokenization.tokenizer import load_tokenizer
from unmask.training.run.log import read_metrics


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


def start_of(recipe: str, words: list[str]) -> Any:
    """What a run begins with."""
    settings = load_pretrain_recipe(recipe, words)
    assert settings.store is not None
    tokenizer = load_tokenizer(TokenStore(Path(settings.store)).tokenizer_directory)
    objective = new_objective(settings.objective, tokenizer.vocabulary)
    torch.manual_seed(settings.seed)
    module: Any = build_module(open_start(settings), objective, tokenizer)
    return module.eval()


def batch(first: int = 5, last: int = 36) -> Batch:
    return pack([list(range(first, last)), list(range(first, last, 2))])


@torch.no_grad()
def hidden_states(encoder: Any) -> Tensor:
    states: Tensor = encoder.eval()(batch())
    return states


def difference_of(first: Tensor, second: Tensor) -> float:
    return float((first - second).detach().abs().max())


def run_two_steps(recipe: str, words: list[str], run: Path) -> Path:
    model = pretrain(recipe, words, out=run)
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl") if "loss" in row] == [1, 2]
    return model


@pytest.fixture(scope="session")
def start() -> Callable[[str, list[str]], Any]:
    return start_of


@pytest.fixture(scope="session")
def hidden() -> Callable[[Any], Tensor]:
    return hidden_states


@pytest.fixture(scope="session")
def largest_difference() -> Callable[[Tensor, Tensor], float]:
    return difference_of


@pytest.fixture(scope="session")
def assert_it_runs() -> Callable[[str, list[str], Path], Path]:
    return run_two_steps
