"""Tasks that tag entities, parts of speech, and characters."""

from __future__ import annotations

from typing import Any

from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.tagging.task import Tagging, open_task


def tagging_task(**settings: Any) -> Tagging:
    given = {"name": "tagging", "labels": ["O", "B-X", "I-X", "B-Y", "I-Y"], "max_length": 24, **settings}
    return open_task(TaskSettings.model_validate(given), ColumnSettings())


TASK = tagging_task(doc_stride=8)
POS = tagging_task(labels=["NOUN", "VERB", "X"])
KLUE = tagging_task(name="klue-ner", labels=None, max_length=64)
