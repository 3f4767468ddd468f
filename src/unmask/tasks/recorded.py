"""What the `config.json` of a fine-tuned model records of its task, and which tasks its head is for. Torch is not
imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from unmask.errors import ModelError
from unmask.models.family import HeadKind
from unmask.models.hub.config import HEAD_KIND, class_in, head_kind_in
from unmask.tasks.kinds import FACTS, TaskKind
from unmask.tasks.settings import TaskName, kind_of, wrong_name

_UNNAMED = ("LABEL_0", "LABEL_1")
"""What the labels are where `config.json` has no `id2label`."""


def recorded_task(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`unmask_task` of a `config.json`; {} where there is none, or it was of another head: `transformers` keeps the key
    when it saves the model with a head of its own.

    Raises:
        ModelError: it is no object, or its task is none that this version knows.
    """
    recorded = config.get("unmask_task", {})
    if not isinstance(recorded, Mapping) or not isinstance(recorded.get("columns", {}), Mapping):
        raise ModelError(
            "config.json: unmask_task, or columns in it, is no object: get the model again, or take it out"
        )
    name: Any = recorded.get("name")
    if name is None and "name" not in recorded:
        return recorded
    if not isinstance(name, str):
        raise ModelError("config.json: unmask_task.name is no text: get the model again, or take unmask_task out")
    if wrong := wrong_name(name):
        raise ModelError(
            f"config.json says of the model's task what this version cannot read: unmask_task: name: {wrong}"
        )
    if "transformers_version" not in config:
        return recorded
    found, labels, problem_type = class_in(config), config.get("id2label"), config.get("problem_type")
    head = config.get(HEAD_KIND, None if found is None else head_kind_in(found[1].parts))
    num_labels = len(labels) if isinstance(labels, Mapping) else config.get("num_labels") or 2
    is_its_kind = kind_of(cast(TaskName, name)) in kinds_for(head, num_labels, problem_type)
    gives_many = problem_type == "multi_label_classification"
    names, thresholds = labels.values() if isinstance(labels, Mapping) else _UNNAMED, recorded.get("thresholds")
    has_its_labels = not isinstance(thresholds, Mapping) or all(name in names for name in thresholds)
    is_its_own = is_its_kind and has_its_labels and bool(recorded.get("multi_label")) == gives_many
    return recorded if is_its_own else {}


def recorded_in(directory: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`recorded_task` of a model directory, which its errors name."""
    try:
        return recorded_task(config)
    except ModelError as error:
        raise ModelError(f"{directory}/{error}") from error


def kinds_for(head: HeadKind | None, num_labels: int, problem_type: str | None) -> list[TaskKind]:
    """The kinds of task that a head may be for, the likeliest first; `num_labels` and `problem_type` are of one that
    classifies sequences."""
    gives_values = num_labels == 1 or problem_type == "regression"
    return [
        kind
        for kind, facts in FACTS.items()
        if facts.head == head and (head != "sequence_classification" or facts.is_number == gives_values)
    ]
