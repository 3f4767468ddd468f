"""Searches whose runs are pretended."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unmask.config import build_settings
from unmask.finetuning.search.search import run_trials
from unmask.finetuning.search.trial import RunOne
from unmask.recipe.tree import FinetuneRecipe


def new_recipe(search: Mapping[str, Any], **changed: Any) -> FinetuneRecipe:
    values = {
        **({} if search.get("checkpoints") else {"init_from": "model"}),
        "device": "cpu",
        "data": {"train": "train.tsv", "dev": "dev.tsv"},
        "train": {"epochs": 3, "batch_size": 16},
        "optimizer": {"learning_rate": 5e-5},
        "search": search,
    }
    return build_settings(FinetuneRecipe, values | changed, "a test")


class Pretended:
    """Stands in for `finetune_settings`: figures by the trial's name."""

    def __init__(self, figures: Callable[[FinetuneRecipe], Mapping[str, Any]]) -> None:
        self.figures = figures
        self.begun: list[str] = []
        self.resumed: list[bool] = []

    def __call__(
        self, settings: FinetuneRecipe, directory: Path, *, recipe: str, resume: bool, overwrite: bool
    ) -> Path:
        assert not settings.search.is_wanted
        assert not overwrite
        self.begun.append(directory.name)
        self.resumed.append((directory / "checkpoints").is_dir() and resume)
        (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
        results = self.figures(settings)
        model = directory / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps({"made_by": directory.name}))
        (directory / "results.json").write_text(json.dumps({"num_parameters": 1, "degenerate": None} | dict(results)))
        (directory / "report.html").touch()
        return model


def of_accuracy(value: float, **more: Any) -> dict[str, Any]:
    return {"dev": {"loss": 1 - value, "accuracy": value}, **more}


def run_search(
    directory: Path,
    settings: FinetuneRecipe,
    run: RunOne,
    *,
    resume: bool = False,
    overwrite: bool = False,
    check: Callable[[FinetuneRecipe], None] = lambda settings: None,
) -> dict[str, Any]:
    """The summary of a search."""
    model = run_trials(settings, directory, recipe="a test", resume=resume, overwrite=overwrite, run=run, check=check)
    assert model == directory / "model"
    return read_json(directory / "summary.json")


def results_of(directory: Path) -> dict[str, bytes]:
    """What a search leaves that is the same however its trials were run."""
    patterns = ("summary.json", "model/*", "trials/*/model/*", "trials/*/re*", "trials/*/samples.json")
    paths = [path for pattern in patterns for path in directory.glob(pattern)]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def read_json(path: Path) -> dict[str, Any]:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(path.read_text(), parse_constant=refuse)
