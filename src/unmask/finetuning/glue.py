"""GLUE's nine tasks, each by its recipe, from GLUE's folders as they are published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from unmask.config import nearest
from unmask.errors import InputError, SettingsError
from unmask.inference.glue.average import average_runs
from unmask.inference.glue.runs import origins, runs_by_task
from unmask.inference.glue.submission import TABLES, folders_of
from unmask.io.paths import MODEL, RECIPE, RESULTS, SUMMARY
from unmask.io.progress import listed
from unmask.recipe.loading import load_finetune_recipe, read_recipe
from unmask.recipe.tree import FinetuneRecipe

TASKS = tuple(dict.fromkeys(table.task for table in TABLES.values()))
"""In the order of GLUE's tables; AX has nothing to train on."""

_FILES = {"train": "train.tsv", "dev": "dev.tsv"}
_FILES_OF_MNLI = {"train": "train.tsv", "dev": "dev_matched.tsv", "test": "dev_mismatched.tsv"}


def overrides_by_task(data: Path, overrides: Sequence[str], tasks: Sequence[str] = TASKS) -> dict[str, list[str]]:
    """What is set over each task's recipe, `finetune/<task>`, its files included.

    Args:
        data: the folder with GLUE's folders (`CoLA/train.tsv` ...). MNLI's two dev files become `data.dev` and
            `data.test`.
        overrides: `key.path=value` words for every run, such as `init_from=runs/bert`.
        tasks: some of `TASKS`.

    Raises:
        SettingsError: an unknown task, or settings that do not fit every recipe.
        InputError: files are missing; all of them are named.
    """
    for task in tasks:
        if task not in TASKS:
            raise SettingsError(f"GLUE has no task {task!r}{nearest(task, TASKS)}")
    missing: list[str] = []
    words = {task: [*_files(data, task, missing), *overrides] for task in dict.fromkeys(tasks)}
    if missing:
        raise InputError(
            f"{data}: no {', '.join(missing)}: expected GLUE's folders as they are published; name the tasks that are "
            "there with --tasks"
        )
    for task, its in words.items():
        load_finetune_recipe(f"finetune/{task}", its)
    return words


def finished_beside(out: Path, words: Mapping[str, Sequence[str]]) -> list[Path]:
    """The finished runs of GLUE's other tasks in a folder of runs, to be averaged with those that are to come.

    Args:
        words: of the tasks to come, see `overrides_by_task`.

    Raises:
        UserError: one has no figures on dev, is of one of the tasks to come, or of another model (see `origins`).
    """
    others = [task for task in TASKS if task not in words]
    runs = [out / task for task in others if _is_finished(out / task)]
    runs_by_task(runs, others)
    average_runs(runs)
    task, its = next(iter(words.items()))
    models = load_finetune_recipe(f"finetune/{task}", its).checkpoints  # those of every task
    for run in runs:
        recipe = read_recipe(run / RECIPE)
        assert isinstance(recipe, FinetuneRecipe), "it has figures on dev"
        if origins(models) != origins(recipe.checkpoints):
            raise SettingsError(
                f"{run} is there, of {listed(recipe.checkpoints, 3)}, and {task} would be of {listed(models, 3)}: an "
                "average is of one model: choose another --out"
            )
    return runs


def _is_finished(run: Path) -> bool:
    return (run / MODEL).is_dir() and any((run / name).is_file() for name in (RESULTS, SUMMARY))


def _files(data: Path, task: str, missing: list[str]) -> list[str]:
    """`data.*` of a task; what is not there is added to `missing`."""
    name, table = next((name, table) for name, table in TABLES.items() if table.task == task)
    published = name.removesuffix(".tsv").removesuffix("-m")
    folder = next(iter(folders_of(data, table)), data / published)
    files = _FILES_OF_MNLI if task == "mnli" else _FILES
    missing += [f"{folder.name}/{name}" for name in files.values() if not (folder / name).is_file()]
    return [f"data.{split}={folder / name}" for split, name in files.items()]
