"""Every kind of task by name, and how a task is opened: from a recipe, or as a fine-tuned model remembers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from unmask.config import build_settings, nearest
from unmask.errors import ModelError, SettingsError
from unmask.tasks.classification import Classification
from unmask.tasks.datasets import DATA_SETS, DataSet
from unmask.tasks.settings import ColumnSettings, TaskSettings

TASKS: dict[str, type[Classification]] = {
    "classification": Classification,
}

USUAL_COLUMNS = (ColumnSettings(text="text"), ColumnSettings(text_a="text_a", text_b="text_b"))
"""What is looked for where nothing else is said."""

_PLAIN = DataSet("classification", USUAL_COLUMNS, ())


def open_task(settings: TaskSettings, columns: ColumnSettings) -> Classification:
    """The task that a recipe describes; its labels are empty where only the training file can tell them."""
    published = DATA_SETS.get(settings.name, _PLAIN)
    layouts = published.layouts
    if columns.texts:
        layouts = (columns,)
    elif "label" in columns.model_fields_set or columns.id is not None:
        given = columns.model_dump(include=columns.model_fields_set)
        layouts = tuple(layout.model_copy(update=given) for layout in layouts)
    return TASKS[published.kind](
        name=settings.name,
        layouts=layouts,
        labels=tuple(settings.labels or published.labels),
        max_length=settings.max_length,
        truncation=settings.truncation,
        classifier_dropout=settings.classifier_dropout,
        unlabelled=published.unlabelled,
        txt_format=published.txt_format,
    )


def remembered(task: Classification, columns: ColumnSettings) -> dict[str, Any]:
    """What a fine-tuned model's `config.json` keeps of its task, under `unmask_task`."""
    return {
        "name": task.name,
        "max_length": task.max_length,
        "truncation": task.truncation,
        "columns": columns.model_dump(exclude_none=True),
    }


def recall_task(
    config: Mapping[str, Any], labels: Sequence[str], most_tokens: int, name: str | None = None
) -> Classification:
    """The task of a fine-tuned model.

    Its layouts are the columns that the model was trained on, then those of the data set, then the usual ones.

    Args:
        config: of the model; one that was not trained here has no `unmask_task`.
        labels: of the model, in the order of their ids.
        most_tokens: that the model can take.
        name: a task to measure the model on, where it is another one than it was trained on.

    Raises:
        SettingsError: there is no task of that name.
        ModelError: what the model remembers cannot be read.
    """
    kept: dict[str, Any] = {"max_length": min(most_tokens, 512), **config.get("unmask_task", {})}
    columns = kept.pop("columns", {})
    if name is not None and name != kept.get("name"):
        check_name(name)
        kept["name"], columns = name, {}
    try:
        trained = build_settings(ColumnSettings, columns, "unmask_task.columns")
        task = open_task(build_settings(TaskSettings, {**kept, "labels": list(labels)}, "unmask_task"), trained)
    except SettingsError as error:
        raise ModelError(f"config.json says of the model's task what this version cannot read: {error}") from error
    published = DATA_SETS[task.name].layouts if task.name in DATA_SETS else ()
    usual = [layout.model_copy(update={"label": trained.label}) for layout in USUAL_COLUMNS]
    lengths = {len(layout.texts) for layout in task.layouts}
    others = [layout for layout in (*published, *usual) if len(layout.texts) in lengths]
    return replace(task, layouts=tuple(dict.fromkeys((*task.layouts, *others))))


def check_name(name: str) -> None:
    """Raises SettingsError where no task has this name; the nearest one is told."""
    known = [*TASKS, *DATA_SETS]
    if name not in known:
        raise SettingsError(f"no task {name!r}: expected one of {', '.join(known)}{nearest(name, known)}")
