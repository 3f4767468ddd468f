"""What kind of task a model without a record is for, and which columns are of which kind."""

from __future__ import annotations

import pytest

from support.small_bert import SIZES
from unmask.errors import ModelError, SettingsError
from unmask.models.bert import BertEncoder
from unmask.models.hub.config import ProblemType
from unmask.models.hub.source import LoadedModel
from unmask.tasks.kinds import TaskKind
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import open_task, recall_task


@pytest.mark.parametrize(
    ("problem_type", "labels", "message"),
    [
        ("multi_label_classification", ("a",), "id2label has one label: "),
        ("regression", ("LABEL_0", "LABEL_1"), "id2label has 2 labels: expected one, "),
    ],
)
def test_a_head_of_another_size_than_its_problem_is_refused(
    problem_type: ProblemType, labels: tuple[str, ...], message: str
) -> None:
    loaded = LoadedModel(
        architecture="BertForSequenceClassification",
        encoder=BertEncoder(SIZES),
        head_kind="sequence_classification",
        labels=labels,
        problem_type=problem_type,
    )
    with pytest.raises(ModelError, match=f"problem_type is {problem_type}, and {message}"):
        recall_task(loaded)


@pytest.mark.parametrize(
    ("kind", "column", "expected"),
    [
        ("classification", "context", "text, text_a, text_b, label, labels, id"),
        ("regression", "question", "text, text_a, text_b, label, id"),
        ("qa", "tokens", "question, context, answers, id"),
        ("choice", "text", "context, question, choices, first_choice, label, id"),
        ("tagging", "question", "tokens, text, tags, predicate, id"),
    ],
)
def test_a_column_of_another_kind_is_refused(kind: TaskKind, column: str, expected: str) -> None:
    with pytest.raises(SettingsError, match=f"^columns.{column} is not for {kind}: expected {expected}$"):
        open_task(TaskSettings(name=kind), ColumnSettings.model_validate({column: "x"}))
