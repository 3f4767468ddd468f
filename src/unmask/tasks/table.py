"""Every kind of task by name, and how to open one from a recipe, or from what a fine-tuned model recorded of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unmask.config import build_settings
from unmask.errors import ModelError, SettingsError
from unmask.models.heads.heads import TwoOrderClassifier
from unmask.models.hub.source import LoadedModel
from unmask.tasks.base import Task
from unmask.tasks.choice import task as choice
from unmask.tasks.kinds import TaskKind
from unmask.tasks.qa import squad
from unmask.tasks.qa import task as qa
from unmask.tasks.recorded import kinds_for, recorded_task
from unmask.tasks.rows import check_columns
from unmask.tasks.settings import FIELDS_OF_KINDS, KINDS, ColumnSettings, TaskSettings, kind_of, wrong_name
from unmask.tasks.tagging import task as tagging
from unmask.tasks.text import classification, regression

TASKS: dict[TaskKind, Callable[[TaskSettings, ColumnSettings, bool], Task[Any]]] = {
    "classification": classification.open_task,
    "regression": regression.open_task,
    "qa": qa.open_task,
    "choice": choice.open_task,
    "tagging": tagging.open_task,
}


def open_task(settings: TaskSettings, columns: ColumnSettings, lenient: bool = False) -> Task[Any]:
    """The task that a recipe describes; its labels are empty if they must be read from the training file.

    Args:
        columns: the user's; what they leave out is as in the data set, or has its usual name.
        lenient: True also tries the columns of the data set and the usual ones, after the user's.

    Raises:
        SettingsError: `columns` names one that the kind of task does not have, or settings contradict the data set.
    """
    named = ColumnSettings(**columns.model_dump(exclude_defaults=True))  # a resolved recipe sets every field
    kind = kind_of(settings.name)
    check_columns(named, kind)
    return TASKS[kind](settings, named, lenient)


def recall_task(loaded: LoadedModel, name: str | None = None) -> Task[Any]:
    """The task of a fine-tuned model, lenient about columns.

    Args:
        loaded: if its head was not trained here, its config.json records no task, and the head gives the kind.
        name: a task to measure the model on, if it is not the one it was trained on; its data set then says whether
            questions may have no answer, and the model's threshold is kept if that holds for both.

    Raises:
        SettingsError: there is no task of that name, the model is of another kind, or the two contradict each other.
        ModelError: the model's record of its task cannot be read.
    """
    kept = _remembered(loaded)
    columns = kept.pop("columns")
    is_another = name is not None and name != kept["name"]
    if name is not None and is_another:
        _check_kind(name, kept["name"])
        kept["name"], columns = name, {}
        if kind_of(kept["name"]) in FIELDS_OF_KINDS["two_orders"]:  # left out, it would follow the other name
            kept["two_orders"] = loaded.head_class == TwoOrderClassifier.__name__
        all_answered = name in squad.DATA_SETS and squad.DATA_SETS[name].unanswerable is False
        if all_answered or not kept.get("unanswerable"):
            kept.pop("unanswerable", None)
            kept.pop("null_threshold", None)
    if loaded.problem_type == "multi_label_classification":
        if len(loaded.labels or ()) == 1:
            raise ModelError(
                "config.json: problem_type is multi_label_classification, and id2label has one label: expected two or "
                "more; without problem_type, the value of the one label is read as a number"
            )
        kept["multi_label"] = True
    if loaded.problem_type == "regression" and len(loaded.labels or ()) > 1:
        raise ModelError(
            f"config.json: problem_type is regression, and id2label has {len(loaded.labels or ())} labels: expected "
            "one, for one number is read of a text; correct problem_type if it classifies"
        )
    try:
        if kind_of(kept["name"]) in FIELDS_OF_KINDS["labels"]:
            kept["labels"] = list(loaded.labels or ())
        return open_task(
            build_settings(TaskSettings, kept, "unmask_task"),
            build_settings(ColumnSettings, columns, "unmask_task.columns"),
            lenient=True,
        )
    except SettingsError as error:
        if is_another:
            raise SettingsError(f"the model cannot be measured on {name!r}: {error}") from error
        raise ModelError(f"config.json says of the model's task what this version cannot read: {error}") from error


def _remembered(loaded: LoadedModel) -> dict[str, Any]:
    """Settings by name, and `columns`: the model's own; without a record, of the first kind that fits its head."""
    kinds = kinds_for(loaded.head_kind, len(loaded.labels or ()), loaded.problem_type)
    recorded, num_positions = recorded_task(loaded.config), loaded.encoder.settings.num_positions
    kept = {"name": kinds[0], "max_length": min(num_positions, 512), "columns": {}, **recorded}
    if kept["name"] in (*TASKS, *KINDS) and kind_of(kept["name"]) not in kinds:
        raise ModelError(
            f"config.json: unmask_task.name is {kept['name']}, and the head of a {loaded.architecture} is for "
            f"{' or '.join(kinds)}: get the model again"
        )
    if isinstance(kept["max_length"], int) and kept["max_length"] > num_positions:
        raise ModelError(
            f"config.json: unmask_task.max_length is {kept['max_length']}, and the model has {num_positions} "
            "positions: lower it"
        )
    return kept


def _check_kind(name: str, trained: Any) -> None:
    check_name(name)
    if kind_of(name) != kind_of(trained):  # type: ignore[arg-type]
        raise SettingsError(
            f"the model was trained for {trained!r}, which is {kind_of(trained)}, "
            f"and {name!r} is {kind_of(name)}: "  # type: ignore[arg-type]
            "name a task of the same kind, or a model of that one"
        )


def check_name(name: str) -> None:
    """Raises SettingsError, naming the closest match, if no task has this name."""
    if problem := wrong_name(name):
        raise SettingsError(problem)
