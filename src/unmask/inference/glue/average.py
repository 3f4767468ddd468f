"""GLUE's averages of finished runs, each by its paper's rule; on dev, since the test files' labels are not public."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import InputError
from unmask.inference.glue.runs import origins, runs_by_task
from unmask.io.json_files import read_object
from unmask.io.paths import RECIPE, RESULTS, SUMMARY
from unmask.io.progress import listed
from unmask.recipe.loading import read_recipe
from unmask.recipe.tree import FinetuneRecipe
from unmask.tasks.text.glue import AVERAGE_RULES, AVERAGES, FIGURE_NAMES, glue_averages, missing_figures

logger = logging.getLogger("unmask")


@dataclass(frozen=True)
class GlueAverages:
    """The figures of some runs, and the averages of them.

    Attributes:
        figures: in 0..1, by data set, in the order of `FIGURE_NAMES`; None for what a run did not measure.
        averages: in 0..1, by the names in `AVERAGES`; only those with all their figures.
        missing: for each of the other averages, what it lacks.
        runs: of how many runs these are the best on the same dev file, by data set; higher than their mean by that.
        early_stopped: data sets whose runs are measured at their best evaluation there, which flatters them too.
        means, medians: the same figures over the restarts of the best run's configuration, where there are several.
        averages_of_means, averages_of_medians: the averages with these where there are any; empty without.
    """

    figures: Mapping[str, tuple[float | None, ...]]
    averages: Mapping[str, float]
    missing: Mapping[str, Sequence[str]]
    runs: Mapping[str, int]
    early_stopped: Sequence[str]
    means: Mapping[str, tuple[float | None, ...]]
    medians: Mapping[str, tuple[float | None, ...]]
    averages_of_means: Mapping[str, float]
    averages_of_medians: Mapping[str, float]

    def describe(self) -> str:
        """A line for each figure and each average, in 0..100 as papers print them."""
        lines = []
        for name, values in self.figures.items():
            notes = [f"the best of {self.runs[name]:,} runs on these examples"] if self.runs[name] > 1 else []
            notes += ["at the best evaluation on these examples"] if name in self.early_stopped else []
            notes += [f"mean over restarts: {_in_words(name, self.means[name])}"] if name in self.means else []
            notes += [f"their median: {_in_words(name, self.medians[name])}"] if name in self.medians else []
            lines.append(f"{name:<6} {_in_words(name, values)}" + (f"   ({'; '.join(notes)})" if notes else ""))
        for average, rule in AVERAGE_RULES.items():
            if average in self.averages:
                of_restarts = {"means over restarts": self.averages_of_means, "medians": self.averages_of_medians}
                found = [
                    f"with the {what}: {_percent(its[average])}" for what, its in of_restarts.items() if average in its
                ]
                restarts = f"   ({'; '.join(found)})" if found else ""
                lines.append(f"{average:<12} {_percent(self.averages[average])}   {rule}{restarts}")
            else:
                lines.append(f"{average:<12} {'-':>4}   {rule}; missing: {'; '.join(self.missing[average])}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The same for scripts."""
        named = {
            key: {name: dict(zip(FIGURE_NAMES[name], values, strict=True)) for name, values in vars(self)[key].items()}
            for key in ("figures", "means", "medians")
        }
        return {**vars(self), **named}


def _in_words(name: str, values: tuple[float | None, ...]) -> str:
    return ", ".join(f"{what} {_percent(value)}" for what, value in zip(FIGURE_NAMES[name], values, strict=True))


def _percent(value: float | None) -> str:
    return "   -" if value is None else f"{100 * value:4.1f}"


def average_runs(runs: Sequence[Path]) -> GlueAverages:
    """Averages the figures on dev of one run per task, and warns where they are of different models.

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
    missing = {name: found for name in AVERAGES if (found := missing_figures(name, figures))}
    best_of = {task: its.get("runs", 1) for task, its in results.items()}
    early_stopped = [task for task, its in results.items() if its.get("early_stopping")]
    means, medians = (
        {task: _figures(by_task[task], task, its[key]) for task, its in results.items() if its.get(key)}
        for key in ("means", "medians")
    )
    of_means, of_medians = (glue_averages(figures | its) if its else {} for its in (means, medians))
    _warn_of_models(list(by_task.values()))
    averages = glue_averages(figures)
    return GlueAverages(figures, averages, missing, best_of, early_stopped, means, medians, of_means, of_medians)


def _warn_of_models(runs: Sequence[Path]) -> None:
    models = {run: _recipe(run).checkpoints for run in runs}
    for run in runs[1:]:
        if origins(models[run]) != origins(models[runs[0]]):
            first, other = (f"{each} is of {listed(models[each], 3)}" for each in (runs[0], run))
            logger.warning("%s, and %s: an average is of one model", first, other)
            return


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
    """The results of a run, or of the best run of a search, with how many `runs` that has, and the `means` over the
    restarts of its configuration, where there are several."""
    try:
        if (run / SUMMARY).is_file():
            summary = read_object(run / SUMMARY)
            best, restarts = summary["best_on_dev"], summary["best_on_dev"]["all_runs_of_it"]
            found = {**best, "runs": summary["num_finished"], "early_stopping": "step" in summary["chosen_on_dev"]}
            if restarts["n"] > 1:
                for key, which in (("means", "mean"), ("medians", "median")):
                    found[key] = {
                        split: {name: spread[which] for name, spread in restarts[split].items()}
                        for split in ("dev", "test")
                        if which in next(iter(restarts["dev"].values()), {})  # no median in an earlier version
                    }
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
    data = _recipe(run).data
    given = {"dev": data.dev, "test": data.test}
    return {
        split: Path(file).name if isinstance(file, str) else ", ".join(file) for split, file in given.items() if file
    }


def _recipe(run: Path) -> FinetuneRecipe:
    recipe = read_recipe(run / RECIPE)
    assert isinstance(recipe, FinetuneRecipe), "its model is for a task"
    return recipe
