"""A command's options for a fine-tuned model's task: columns and settings in place of those that it remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from unmask.config import as_settings, build_settings, parse_overrides
from unmask.errors import SettingsError
from unmask.io.progress import listed
from unmask.tasks.base import Task
from unmask.tasks.rows import check_columns
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import open_task
from unmask.tasks.text.text_task import TextTask

NOTHING_SAID = ColumnSettings()
"""No columns given: they are those that the model remembers, or the usual ones."""

Columns = ColumnSettings | Mapping[str, Any]
"""Names of columns: settings, or a dictionary such as `{"label": "gold"}`."""

Use = Literal["predict", "evaluate", "score"]
"""`score`: measures existing predictions, without a model."""

_TRAINING = "it is for training, which is over"
_HEAD = "it is decided by the model's head, which was trained with it"
_FIXED = {
    "units": "it is decided by the tags that the model was trained with",
    "name": "--task says of which data set a file is",
    "labels": _HEAD,
    "multi_label": _HEAD,
    "tagging_head": _HEAD,
    "bilstm_size": _HEAD,
    "encoder_top": _HEAD,
    "two_orders": _HEAD,
    "long_text": _HEAD,
    "window_pooling": _HEAD,
    "feature_layers": _HEAD,
    "answerability": _HEAD,
    "classifier_dropout": _TRAINING,
    "mixture_penalty": _TRAINING,
    "auxiliary_lm_weight": _TRAINING,
    "class_weights": _TRAINING,
    "label_smoothing": _TRAINING,
    "calibration": _TRAINING,
    "drop_unfound_answers": _TRAINING,
    "cut_pieces": "it decides the tokenizer's pieces, which the model was trained with",
}
"""Settings that only a new training could change, and why."""
_OF_LABELS = ("label_separator", "repair_tags")
"""How labels are read: `predict` reads none."""
_OF_SCORES = (*_OF_LABELS, "unanswerable", "negative_label", "units")
"""All settings that affect how existing predictions are measured."""


def read_task_settings(words: Sequence[str]) -> dict[str, Any]:
    """Settings by name, from `task.KEY=VALUE` words of a command line.

    Raises:
        SettingsError: a word sets something else.
    """
    for word in words:
        if "=" not in word:
            raise SettingsError(
                f"{word!r}: one FILE is read: quote the glob, or name its folder; a setting is task.KEY=VALUE"
            )
    given = parse_overrides(words)
    for key in given:
        if key != "task" or not isinstance(given[key], Mapping):
            raise SettingsError(
                f"{key}: expected a setting of the task, such as task.max_length=256; columns are named by "
                "--column NAME=COLUMN, and all else was decided when the model was trained"
            )
    return dict(given.get("task", {}))


def as_columns(columns: Columns) -> ColumnSettings:
    """Raises SettingsError for an unknown name, or a value that is no column."""
    return as_settings(ColumnSettings, columns, "columns")


def check_task_settings(settings: Mapping[str, Any], use: Use) -> None:
    """Raises SettingsError for settings that have no effect in this use of a task, naming the first and the reason."""
    for name in settings:
        if name in _FIXED and not (use == "score" and name in _OF_SCORES):
            reason = "the predictions show it" if use == "score" and name == "multi_label" else _FIXED[name]
            raise SettingsError(f"task.{name} cannot be set here: {reason}; leave it out")
        if name == "thresholds" and settings[name] == "dev":
            raise SettingsError(f"task.thresholds=dev cannot be had here: {_TRAINING}; give a number for each label")
        if use == "predict" and name in _OF_LABELS:
            raise SettingsError(f"task.{name} says how labels are read, and `unmask predict` reads none: leave it out")
        if use == "predict" and name == "negative_label":
            raise SettingsError("task.negative_label says what is measured, and `unmask predict` measures nothing")
        if use == "score" and name in TaskSettings.model_fields and name not in _OF_SCORES:
            raise SettingsError(
                f"task.{name} is for a model that reads the examples, and --predictions are there already: leave it out"
            )


def build_task_settings(settings: Mapping[str, Any]) -> TaskSettings:
    """Builds a task's settings; raises SettingsError for an unknown name or a value out of range."""
    return build_settings(TaskSettings, settings, "task")


def adjusted_task(task: Task[Any], columns: Columns, settings: Mapping[str, Any], num_positions: int) -> Task[Any]:
    """A fine-tuned model's task with a user's options.

    If a column is named, every row has to have it; the usual names are no longer looked for instead.

    Args:
        columns: those that are named replace the model's own; the others stay.
        settings: of `TaskSettings`, by name; checked by `check_task_settings`.
        num_positions: the encoder's.

    Raises:
        SettingsError: a setting or column is unknown, out of range, or of another kind of task.
    """
    columns = as_columns(columns)
    if not isinstance(settings, Mapping):
        raise SettingsError(f"settings: {settings!r}: expected a dictionary, such as {{'max_length': 256}}")
    if not settings and not columns.model_fields_set:
        return task
    kept = task.remembered()
    own_columns = kept.pop("columns")
    given_thresholds = settings.get("thresholds")
    if isinstance(given_thresholds, Mapping):
        settings = {**settings, "thresholds": {**kept.get("thresholds", {}), **given_thresholds}}
    labels = {"labels": list(task.labels)} if task.labels else {}
    adjusted = build_task_settings({**kept, **labels, **settings})
    if adjusted.max_length > num_positions:
        raise SettingsError(
            f"task.max_length {adjusted.max_length} is over the {num_positions} positions of the model: lower it"
        )
    given = columns.model_dump(include=columns.model_fields_set)
    if isinstance(task, TextTask):
        check_columns(columns, task.kind)
        check_label_columns(columns, task.labels)
        if columns.texts:
            kept_names = ("label", "id") if "label" in given else ("label", "labels", "id")
            given = {name: own_columns[name] for name in kept_names if name in own_columns} | given
        return replace(task, settings=adjusted, files=task.files.with_columns(ColumnSettings(**given), False))
    named = build_settings(ColumnSettings, {**own_columns, **given}, "columns")
    return open_task(adjusted, named, lenient=not given)


def check_label_columns(columns: ColumnSettings, labels: Sequence[str]) -> None:
    """Raises SettingsError where each label is to have a column and one has none: no example would have that label."""
    if columns.labels is not None and (missing := [label for label in labels if label not in columns.labels]):
        raise SettingsError(
            f"columns.labels lacks {listed(missing)}: expected a column for each label ({listed(labels)})"
        )
