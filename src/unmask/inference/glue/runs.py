"""Which fine-tuned run is for which of GLUE's tasks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from unmask.errors import SettingsError
from unmask.inference.ensemble import read_members
from unmask.io.paths import model_directory
from unmask.models.hub.files import read_config


def runs_by_task(runs: Sequence[Path], wanted: Collection[str]) -> dict[str, Path]:
    """The run for each task, by what its model's `config.json` says, in the order of `runs`.

    Raises:
        SettingsError: a run is for no task of `wanted`, or two are for the same.
        ModelError: a run has made no model yet.
    """
    by_task: dict[str, Path] = {}
    for run in runs:
        remembered = read_config(first_model(run)).get("unmask_task")
        task = remembered.get("name") if isinstance(remembered, dict) else None
        if not isinstance(task, str) or task not in wanted:
            found = f"says that it was fine-tuned for {task!r}" if task else "names no task"
            raise SettingsError(
                f"{run}: its config.json {found} (unmask_task.name); expected a run of {', '.join(wanted)}"
            )
        if task in by_task:
            raise SettingsError(f"{by_task[task]} and {run} are both for {task}: name one of them")
        by_task[task] = run
    return by_task


def first_model(run: Path) -> Path:
    """The model of a run, or the first of an ensemble, whose members all have one task."""
    members = read_members(run)
    return model_directory(run) if members is None else members[0]
