"""What tests of runs that continue from a model share: what a run begins with, and the run itself, of two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.batch import Batch, pack
from unmask.objectives.table import new_objective
from unmask.pretraining.initial_weights import build_module
from unmask.pretraining.run import pretrain
from unmask.pretraining.start import open_start
from unmask.recipe.loading import load_pretrain_recipe
from unmask.store.store import TokenStore
from unmask.tokenization.tokenizer import load_tokenizer
from unmask.training.run.log import read_metrics


def module_of(recipe: str, words: list[str]) -> Any:
    """The module that a run begins with."""
    settings = load_pretrain_recipe(recipe, words)
    assert settings.store is not None
    tokenizer = load_tokenizer(TokenStore(Path(settings.store)).tokenizer_directory)
    objective = new_objective(settings.objective, tokenizer.vocabulary)
    torch.manual_seed(settings.seed)
    module: Any = build_module(open_start(settings), objective, tokenizer)
    return module.eval()


def two_sequences() -> Batch:
    return pack([list(range(5, 36)), list(range(5, 36, 2))])


@torch.no_grad()
def hidden_states(encoder: Any) -> Tensor:
    return encoder.eval()(two_sequences())


def largest_difference(first: Tensor, second: Tensor) -> float:
    return float((first - second).detach().abs().max())


def run_two_steps(recipe: str, words: list[str], run: Path) -> Path:
    """Its model."""
    model = pretrain(recipe, words, out=run)
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl") if "loss" in row] == [1, 2]
    return model
