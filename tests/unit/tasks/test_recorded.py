"""Which record of a task is that of the head in the same `config.json`."""

from __future__ import annotations

from typing import Any

import pytest

from unmask.errors import ModelError
from unmask.tasks.recorded import recorded_task

LABELS, MULTI_LABEL = {"id2label": {"0": "a", "1": "b", "2": "c"}}, {"problem_type": "multi_label_classification"}
MANY: dict[str, Any] = {"name": "classification", "multi_label": True}
ONE_LABEL = {"id2label": {"0": "LABEL_0"}}


@pytest.mark.parametrize(
    ("task", "head", "changes", "is_its_own"),
    [
        ({"name": "mrpc"}, "SequenceClassification", {}, True),
        ({"name": "classification"}, "SequenceClassification", LABELS, True),
        ({"name": "classification"}, "SequenceClassification", ONE_LABEL, False),
        ({"name": "classification"}, "SequenceClassification", {"problem_type": "regression"}, False),
        ({"name": "classification"}, "SequenceClassification", MULTI_LABEL, False),
        ({"name": "classification", "multi_label": True}, "SequenceClassification", LABELS | MULTI_LABEL, True),
        ({"name": "classification", "multi_label": True}, "SequenceClassification", LABELS, False),
        ({"name": "stsb"}, "SequenceClassification", ONE_LABEL, True),
        ({"name": "qa"}, "QuestionAnswering", {}, True),
        ({"name": "qa"}, "MultipleChoice", {}, False),
        ({"name": "tagging"}, "TokenClassification", LABELS, True),
        ({"name": "tagging"}, "MaskedLM", {}, False),
        ({"name": "tagging"}, "TokenClassification", {"architectures": ["Other"]}, False),
        ({"name": "classification"}, "SequenceClassification", {"num_labels": None}, True),
        (MANY | {"thresholds": {"a": 0.2}}, "SequenceClassification", LABELS | MULTI_LABEL, True),
        (MANY | {"thresholds": {"x": 0.2}}, "SequenceClassification", LABELS | MULTI_LABEL, False),
    ],
)
def test_a_record_of_another_head_is_not_read(
    task: dict[str, Any], head: str, changes: dict[str, Any], is_its_own: bool
) -> None:
    ours = {"architectures": [f"BertFor{head}"], "unmask_task": task, **changes}
    assert recorded_task(ours) == task, "of a model that was saved here, what is wrong is refused"
    assert recorded_task({**ours, "transformers_version": "5.23.0"}) == (task if is_its_own else {})


@pytest.mark.parametrize("config", [{}, {"transformers_version": "5.23.0"}])
def test_a_record_that_cannot_be_read_is_refused(config: dict[str, Any]) -> None:
    for record, message in (
        ("qa", "unmask_task, or columns in it, is no object"),
        ({"name": "juggling"}, "unmask_task: name: there is no task 'juggling'"),
        ({"name": 3}, "name is no text"),
    ):
        with pytest.raises(ModelError, match=message):
            recorded_task({**config, "unmask_task": record})
    assert recorded_task(config) == {}
