"""What the `config.json` of a fine-tuned model records of its task, and which tasks its head is for. Torch is not
imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.models.family import HeadKind
from unmask.models.hub.config import HEAD_KIND, class_in, head_kind_in
from unmask.tasks.kinds import FACTS, TaskKind
from unmask.tasks.settings import KINDS, kind_of


def recorded_task(config: Mapping[str, Any]) -> Any:
    """`unmask_task` of a `config.json`; {} where there is none, or it was of another head: `transformers` keeps the key
    when it saves the model with a head of its own."""
    recorded = config.get("unmask_task", {})
    if "transformers_version" not in config or not isinstance(recorded, Mapping):
        return recorded
    name: Any = recorded.get("name")
    if name not in (*FACTS, *KINDS):
        return recorded
    found, labels, problem_type = class_in(config), config.get("id2label"), config.get("problem_type")
    head = config.get(HEAD_KIND, None if found is None else head_kind_in(found[1].parts))
    num_labels = len(labels) if isinstance(labels, Mapping) else config.get("num_labels", 2)
    is_its_kind = kind_of(name) in kinds_for(head, num_labels, problem_type)
    gives_many = problem_type == "multi_label_classification"
    return recorded if is_its_kind and bool(recorded.get("multi_label")) == gives_many else {}


def kinds_for(head: HeadKind | None, num_labels: int, problem_type: str | None) -> list[TaskKind]:
    """The kinds of task that a head may be for, the likeliest first; `num_labels` and `problem_type` are of one that
    classifies sequences."""
    gives_values = num_labels == 1 or problem_type == "regression"
    return [
        kind
        for kind, facts in FACTS.items()
        if facts.head == head and (head != "sequence_classification" or facts.is_number == gives_values)
    ]
