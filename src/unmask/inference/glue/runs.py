"""Which fine-tuned run is for which of GLUE's tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from unmask.errors import SettingsError
from unmask.inference.ensemble import read_members
from unmask.io.paths import RECIPE, model_directory, model_in
from unmask.models.hub.files import read_config
from unmask.recipe.loading import read_recipe
from unmask.recipe.tree import FinetuneRecipe
from unmask.tasks.recorded import recorded_in
from unmask.tasks.text.glue import FIGURE_NAMES


def runs_by_task(runs: Sequence[Path], wanted: Collection[str]) -> dict[str, Path]:
    """The run for each task, by what its model's `config.json` says, in the order of `runs`.

    Raises:
        SettingsError: a run is for no task of `wanted`, or two are for the same.
        ModelError: a run has made no model yet.
    """
    by_task: dict[str, Path] = {}
    for run in runs:
        model = first_model(run)
        task = recorded_in(model, read_config(model)).get("name")
        if task is None or task not in wanted:
            found = f"says that it was fine-tuned for {task!r}" if task else "names no task"
            raise SettingsError(
                f"{run}: its config.json {found} (unmask_task.name); expected a run of {', '.join(wanted)}"
            )
        if task in by_task:
            raise SettingsError(f"{by_task[task]} and {run} are both for {task}: name one of them")
        by_task[task] = run
    return by_task


def first_model(run: Path) -> Path:
    """The model of a run, or the first of an ensemble, whose members all have one task."""
    members = read_members(run)
    return model_directory(run) if members is None else members[0]


def origins(models: Iterable[str]) -> frozenset[Path]:
    """Where the models are that runs began from, the same for a run and its model, however they are written. One that
    was fine-tuned for another of GLUE's tasks, as MNLI's for RTE (Liu et al. 2019, section 5.1), counts as the models
    that its run began from.

    Args:
        models: `checkpoints` of a recipe.
    """
    found: set[Path] = set()
    seen: set[Path] = set()
    places = [_place(model) for model in models]
    while places:
        place = places.pop()
        if place in seen:
            continue
        seen.add(place)
        before = _begun_from(place)
        places += before
        if not before:
            found.add(place)
    return frozenset(found)


def _place(model: str) -> Path:
    return model_in(Path(model)).resolve()


def _begun_from(model: Path) -> list[Path]:
    """Where the models are that the run of a model for one of GLUE's tasks began from; empty for other models."""
    if not (model.parent / RECIPE).is_file():
        return []
    with suppress(SettingsError):  # a run of an earlier version is a model like any other
        recipe = read_recipe(model.parent / RECIPE)
        if isinstance(recipe, FinetuneRecipe) and recipe.task.name in FIGURE_NAMES:
            return [_place(each) for each in recipe.checkpoints]
    return []
