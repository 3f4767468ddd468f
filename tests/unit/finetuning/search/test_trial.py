"""A finished run that has the name of a trial: it is one where its settings are the trial's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from support.searches import new_recipe
from unmask.config import dump_settings
from unmask.errors import SettingsError
from unmask.finetuning.search.grid import plan_trials
from unmask.finetuning.search.trial import refuse_other_settings


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, None),
        ({"init_from": "{here}/{model}"}, None),  # spelt otherwise
        ({"train": {"epochs": 1, "log_every": 9}}, None),  # which may change at a resume
        ({"init_from": "elsewhere"}, "init_from=elsewhere"),
        ({"optimizer": {"weight_decay": 0.5}}, r"optimizer\.weight_decay=0\.5"),
    ],
    ids=str,
)
def test_settings_are_compared(changes: dict[str, Any], refused: str | None, tmp_path: Path) -> None:
    (trial, *_) = plan_trials(new_recipe({"restarts": 2}))
    words = {"here": os.getcwd(), "model": trial.settings.init_from}
    changes = {key: value.format(**words) if isinstance(value, str) else value for key, value in changes.items()}
    values = trial.settings.model_dump(mode="json", exclude_unset=True)
    for key, value in changes.items():
        values[key] = {**values[key], **value} if isinstance(value, dict) else value
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "results.json").write_text('{"dev": {}}')
    (tmp_path / "recipe.yaml").write_text(dump_settings(type(trial.settings).model_validate(values)), "utf-8")
    if refused is None:
        refuse_other_settings(trial, tmp_path)
    else:
        with pytest.raises(SettingsError, match=refused):
            refuse_other_settings(trial, tmp_path)
