"""What kind of task a model without a record is for."""

from __future__ import annotations

import pytest

from support.small_bert import SIZES
from unmask.errors import ModelError
from unmask.models.bert import BertEncoder
from unmask.models.hub.source import LoadedModel
from unmask.tasks.table import recall_task


def test_one_label_of_which_a_text_has_any_number_is_refused() -> None:
    loaded = LoadedModel(
        architecture="BertForSequenceClassification",
        encoder=BertEncoder(SIZES),
        head_kind="sequence_classification",
        labels=("a",),
        problem_type="multi_label_classification",
    )
    with pytest.raises(ModelError, match=r"problem_type is multi_label_classification, and id2label has one label: "):
        recall_task(loaded)
