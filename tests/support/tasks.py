"""Tasks by their names."""

from __future__ import annotations

from typing import Any

from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import open_task


def new_task(
    name: str = "classification", columns: ColumnSettings | None = None, *, lenient: bool = False, **settings: Any
) -> Any:
    """What a recipe with these settings describes."""
    return open_task(TaskSettings.model_validate({"name": name, **settings}), columns or ColumnSettings(), lenient)
