"""The runs of a search: every configuration of what `search.*` lists, each with as many seeds as it has restarts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from unmask.config import build_settings, merge
from unmask.errors import SettingsError
from unmask.finetuning.search.trial import Trial
from unmask.io.paths import MODEL, model_directory
from unmask.recipe.tree import FinetuneRecipe


def plan_trials(settings: FinetuneRecipe) -> list[Trial]:
    """The runs of a search, in order; those of one configuration follow each other.

    Raises:
        SettingsError: there is nothing to compare them on, or `search` contradicts other settings.
    """
    search = settings.search
    budget, amount = settings.train.budget
    if settings.data.dev is None:
        raise SettingsError("search compares runs on dev: give data.dev, or leave out search")
    if search.epochs and budget != "epochs":
        raise SettingsError(
            f"search.epochs and train.{budget}={amount} both set the length of a run: leave out one of them"
        )
    if search.transfer_layers and settings.from_scratch:
        raise SettingsError("search.transfer_layers takes layers from a model, and from_scratch=true none: keep one")
    checkpoints = settings.checkpoints
    names = _short_names(checkpoints)
    numbers_of_examples: list[int | None] = [*search.train_examples] or [settings.data.train_examples]
    numbers_of_layers: list[int | None] = [*search.transfer_layers] or [settings.transfer_layers]
    trials = []
    for (checkpoint, label), examples, layers, learning_rate, batch_size, length in product(
        zip(checkpoints, names, strict=True),
        numbers_of_examples,
        numbers_of_layers,
        search.learning_rates or [settings.optimizer.learning_rate],
        search.batch_sizes or [settings.train.batch_size],
        search.epochs or [amount],
    ):
        point = f"lr{_short(learning_rate)}_batch{batch_size}_{budget}{_short(length)}"
        given: dict[str, Any] = {"learning_rate": learning_rate, "batch_size": batch_size, budget: length}
        if search.train_examples:
            point += f"_examples{examples}"
            given["train_examples"] = examples
        if search.transfer_layers:
            point += f"_layers{layers}"
            given["transfer_layers"] = layers
        configuration = point
        if len(checkpoints) > 1:
            configuration = f"{label}_{point}"
            given["init_from"] = checkpoint
        for seed in range(settings.seed, settings.seed + search.restarts):
            name = f"{configuration}_seed{seed}"
            chosen = {
                "seed": seed,
                "init_from": checkpoint,
                "data": {"train_examples": examples},
                "transfer_layers": layers,
                "optimizer": {"learning_rate": learning_rate},
                "train": {"batch_size": batch_size, budget: length},
            }
            # Only what the recipe sets: some settings are refused if they are given at all.
            values = merge(settings.model_dump(mode="json", exclude={"search"}, exclude_unset=True), chosen)
            single = build_settings(FinetuneRecipe, values, f"search, {name}")
            trials.append(Trial(name, configuration, point, given | {"seed": seed}, single))
    return trials


def bases_of(settings: FinetuneRecipe) -> dict[str, Path]:
    """The models whose weights the trials of a search begin from, by their keys in the recipe."""
    if settings.from_scratch:
        return {}
    key = "search.checkpoints" if settings.search.checkpoints else "init_from"
    found = [model_directory(path) for path in settings.checkpoints]
    return {key + (f"[{number}]" if len(found) > 1 else ""): path for number, path in enumerate(found)}


def _short_names(checkpoints: Sequence[str]) -> list[str]:
    """Short names for models, all different."""
    names: list[str] = []
    for number, checkpoint in enumerate(checkpoints, start=1):
        path = Path(checkpoint)
        last = path.parent.name if path.name == MODEL and path.parent.name else path.name
        name = re.sub(r"[^\w.-]+", "-", last) or "checkpoint"
        while name in names:
            name = f"{name}-{number}"
        names.append(name)
    return names


def _short(value: float) -> str:
    return repr(int(value)) if value == int(value) else repr(value)
