"""GLUE's nine tasks, each by its recipe, from GLUE's folders as they are published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unmask.config import nearest
from unmask.errors import InputError, SettingsError
from unmask.inference.glue.submission import TABLES, folders_of
from unmask.recipe.loading import load_finetune_recipe

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


def _files(data: Path, task: str, missing: list[str]) -> list[str]:
    """`data.*` of a task; what is not there is added to `missing`."""
    name, table = next((name, table) for name, table in TABLES.items() if table.task == task)
    published = name.removesuffix(".tsv").removesuffix("-m")
    folder = next(iter(folders_of(data, table)), data / published)
    files = _FILES_OF_MNLI if task == "mnli" else _FILES
    missing += [f"{folder.name}/{name}" for name in files.values() if not (folder / name).is_file()]
    return [f"data.{split}={folder / name}" for split, name in files.items()]
