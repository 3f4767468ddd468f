"""GLUE's averages of finished runs, each by its paper's rule; on dev, since the test files' labels are not public."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import InputError
from unmask.inference.glue.runs import runs_by_task
from unmask.io.json_text import read_object
from unmask.io.paths import RECIPE, RESULTS, SUMMARY
from unmask.recipe.loading import read_recipe
from unmask.recipe.tree import FinetuneRecipe
from unmask.tasks.text.glue import AVERAGE_RULES, AVERAGES, FIGURE_NAMES, glue_averages, missing_figures


@dataclass(frozen=True)
class GlueAverages:
    """The figures of some runs, and the averages of them.

    Attributes:
        figures: in 0..1, by data set, in the order of `FIGURE_NAMES`; None for what a run did not measure.
        averages: in 0..1, by the names in `AVERAGES`; only those with all their figures.
        missing: for each of the other averages, what it lacks.
        runs: of how many runs these are the best on the same dev file, by data set; higher than their mean by that.
    """

    figures: Mapping[str, tuple[float | None, ...]]
    averages: Mapping[str, float]
    missing: Mapping[str, Sequence[str]]
    runs: Mapping[str, int]

    def describe(self) -> str:
        """A line for each figure and each average, in 0..100 as papers print them."""
        lines = []
        for name, values in self.figures.items():
            figures = ", ".join(
                f"{what} {_percent(value)}" for what, value in zip(FIGURE_NAMES[name], values, strict=True)
            )
            best = f"   (the best of {self.runs[name]:,} runs on these examples)" if self.runs[name] > 1 else ""
            lines.append(f"{name:<6} {figures}{best}")
        for average, rule in AVERAGE_RULES.items():
            if average in self.averages:
                lines.append(f"{average:<12} {_percent(self.averages[average])}   {rule}")
            else:
                lines.append(f"{average:<12} {'-':>4}   {rule}; missing: {'; '.join(self.missing[average])}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The same for scripts."""
        figures = {name: dict(zip(FIGURE_NAMES[name], values, strict=True)) for name, values in self.figures.items()}
        averages, missing, runs = dict(self.averages), dict(self.missing), dict(self.runs)
        return {"figures": figures, "averages": averages, "missing": missing, "runs": runs}


def _percent(value: float | None) -> str:
    return "   -" if value is None else f"{100 * value:4.1f}"


def average_runs(runs: Sequence[Path]) -> GlueAverages:
    """Averages the figures on dev of one run per task.

    Args:
        runs: directories of finished runs, or of searches, whose best run on dev counts. MNLI's has one of the two dev
            files as data.dev and the other, if it is to count, as data.test; the file names say which is which.

    Raises:
        SettingsError: a task has two runs, or a run is not for a GLUE task.
        InputError: a run has no figures on dev.
        ModelError: a run has made no model yet.
    """
    by_task = runs_by_task(runs, FIGURE_NAMES)
    results = {task: _results(run) for task, run in by_task.items()}
    figures = {task: _figures(run, task, results[task]) for task, run in by_task.items()}
    averages = glue_averages(figures)
    missing = {name: found for name in AVERAGES if (found := missing_figures(name, figures))}
    return GlueAverages(figures, averages, missing, {task: its.get("runs", 1) for task, its in results.items()})


def _figures(run: Path, task: str, results: Mapping[str, Any]) -> tuple[float | None, ...]:
    files = _files(run)
    dev = results.get("dev")
    if not isinstance(dev, dict) or not dev:
        raise InputError(f"{run}: it was measured on no dev file: fine-tune with data.dev=...")
    if task != "mnli":
        return tuple(dev.get(name) for name in FIGURE_NAMES[task])
    by_kind: dict[bool, float | None] = {True: None, False: None}
    for split in ("test", "dev"):
        if (measured := results.get(split)) and (split == "dev" or "matched" in files.get(split, "")):
            by_kind["mismatched" not in files.get(split, "")] = measured.get("accuracy")
    return by_kind[True], by_kind[False]


def _results(run: Path) -> dict[str, Any]:
    """The results of a run, or of the best run of a search, with how many `runs` that has."""
    try:
        if (run / SUMMARY).is_file():
            summary = read_object(run / SUMMARY)
            found = {**summary["best_on_dev"], "runs": summary["num_finished"]}
        else:
            found = read_object(run / RESULTS)
    except (InputError, KeyError, TypeError) as error:
        raise InputError(
            f"{run}: no figures there ({RESULTS} of a run, or {SUMMARY} of a search): expected what `unmask finetune` "
            "wrote, finished"
        ) from error
    return found


def _files(run: Path) -> dict[str, str]:
    """The names of the files that a run was measured on."""
    recipe = read_recipe(run / RECIPE)
    assert isinstance(recipe, FinetuneRecipe), "its model is for a task"
    given = {"dev": recipe.data.dev, "test": recipe.data.test}
    return {
        split: Path(file).name if isinstance(file, str) else ", ".join(file) for split, file in given.items() if file
    }
