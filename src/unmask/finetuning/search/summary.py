"""The results of a search: the mean and the spread over restarts, and separately the best run on dev.

A maximum over restarts grows with their number and says nothing about the next run, so the two are never mixed: the
mean and standard deviation are over all runs of a configuration, whatever they gave. Degenerate runs (BERT-Large on
small data sets: Devlin et al. 2019, section 4.1) are named and stay in the mean; a second mean leaves them out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

from unmask.finetuning.search.trial import Trial
from unmask.io.progress import human_number
from unmask.training.run.best import Metric

Figures = Mapping[str, float]


@dataclass(frozen=True)
class TrialOutcome:
    """The result of a trial.

    Attributes:
        dev, test: its figures; empty if it failed, or if there is no such file.
        degenerate: what is wrong if it gives every example the same answer; None if it does not.
        error: why it failed; None if it did not.
        floors: what its figures are to be compared with, as in results.json.
        chosen_on_dev: what was chosen there, `thresholds`, `temperature` or, by early stopping, the `step`.
    """

    trial: Trial
    dev: Figures
    test: Figures
    degenerate: str | None = None
    error: str | None = None
    floors: Mapping[str, Any] | None = None
    chosen_on_dev: tuple[str, ...] = ()


def summarise(outcomes: Sequence[TrialOutcome], metric: Metric, num_trials: int) -> dict[str, Any]:
    """All that is known of a search, as JSON; a figure that is not finite is null.

    Args:
        outcomes: of the trials so far, at least one of which has not failed.
        metric: what runs are compared by.
        num_trials: how many there are in all.
    """
    finished = [outcome for outcome in outcomes if outcome.error is None]
    best = best_run(finished, metric)
    of_best = [outcome for outcome in finished if outcome.trial.configuration == best.trial.configuration]
    return {
        "metric": metric.name,
        "lower_is_better": metric.lower_is_better,
        "num_trials": num_trials,
        "num_finished": len(finished),
        "num_failed": len(outcomes) - len(finished),
        "best_on_dev": _run(best) | {"combination": best.trial.configuration, "all_runs_of_it": _spreads(of_best)},
        "combinations": [
            _configuration([outcome for outcome in outcomes if outcome.trial.configuration == name], metric)
            for name in dict.fromkeys(outcome.trial.configuration for outcome in outcomes)
        ],
        "floors": (best.floors or {}).get(f"dev.{metric.name}", {}),
        "chosen_on_dev": sorted({what for outcome in finished for what in outcome.chosen_on_dev}),
        "trials": [
            {
                **_run(outcome),
                "combination": outcome.trial.configuration,
                **outcome.trial.given,
                "degenerate": outcome.degenerate,
                "error": outcome.error,
            }
            for outcome in outcomes
        ],
    }


def best_run(finished: Sequence[TrialOutcome], metric: Metric) -> TrialOutcome:
    """The best run on dev, the first of equal ones."""
    best = finished[0]
    for outcome in finished[1:]:
        if metric.is_better(outcome.dev[metric.name], best.dev[metric.name]):
            best = outcome
    return best


def runs_of_best_point(finished: Sequence[TrialOutcome], metric: Metric) -> list[TrialOutcome]:
    """All runs with the learning rate, batch size, epochs and layers that have the best mean on dev."""
    points = [
        [outcome for outcome in finished if outcome.trial.point == name]
        for name in dict.fromkeys(outcome.trial.point for outcome in finished)
    ]
    best = points[0]
    for runs in points[1:]:
        if metric.is_better(_mean_of(runs, metric.name), _mean_of(best, metric.name)):
            best = runs
    return best


def _mean_of(runs: Sequence[TrialOutcome], metric: str) -> float:
    return fmean(run.dev[metric] for run in runs)


def _configuration(outcomes: Sequence[TrialOutcome], metric: Metric) -> dict[str, Any]:
    finished = [outcome for outcome in outcomes if outcome.error is None]
    sound = [outcome for outcome in finished if outcome.degenerate is None]
    any_degenerate = len(sound) < len(finished)
    return {
        "name": outcomes[0].trial.configuration,
        **{name: value for name, value in outcomes[0].trial.given.items() if name != "seed"},
        **_spreads(finished),
        "degenerate": [outcome.trial.name for outcome in finished if outcome.degenerate is not None],
        "without_degenerate": _spreads(sound) if any_degenerate else None,
        "failed": [outcome.trial.name for outcome in outcomes if outcome.error is not None],
        "best_on_dev": _run(best_run(finished, metric)) if finished else None,
    }


def _run(outcome: TrialOutcome) -> dict[str, Any]:
    return {"trial": outcome.trial.name, "dev": finite(outcome.dev), "test": finite(outcome.test)}


def _spreads(outcomes: Sequence[TrialOutcome]) -> dict[str, Any]:
    """Mean, median and sample standard deviation of every figure that all runs have."""
    return {
        "n": len(outcomes),
        "dev": _spread([outcome.dev for outcome in outcomes]),
        "test": _spread([outcome.test for outcome in outcomes]),
    }


def _spread(figures: Sequence[Figures]) -> dict[str, dict[str, float | None]]:
    names = [name for name in (figures[0] if figures else {}) if all(name in of_run for of_run in figures)]
    spreads = {}
    for name in names:
        values = [of_run[name] for of_run in figures]
        is_finite = all(map(math.isfinite, values))  # else there is no mean
        spreads[name] = {
            "mean": fmean(values) if is_finite else None,
            "median": median(values) if is_finite else None,
            "sd": stdev(values) if is_finite and len(values) > 1 else None,
        }
    return spreads


def finite(figures: Figures) -> dict[str, float | None]:
    """Figures as JSON has them: null for what is not a finite number."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def describe(summary: Mapping[str, Any]) -> Iterable[str]:
    """A line for each configuration, one for the best run, and one if that run has learned nothing."""
    metric = summary["metric"]
    for row in summary["combinations"]:
        parts = [f"{metric} {spread_in_words(row['dev'].get(metric))} on dev"] if row["n"] else []
        if (its := on_test(metric)) in row["test"]:
            name = "" if its == metric else f"{its} "
            parts.append(f"{name}{spread_in_words(row['test'][its])} on test")
        if row["n"]:
            parts[-1] += f" (mean ± sd of {row['n']} runs)" if row["n"] > 1 else " (1 run)"
        if row["degenerate"]:
            without = row["without_degenerate"]
            rest = spread_in_words(without["dev"].get(metric)) if without["n"] else "none left"
            parts.append(f"degenerate: {', '.join(row['degenerate'])} (without: {rest})")
        if row["failed"]:
            parts.append(f"failed: {', '.join(row['failed'])}")
        yield f"{row['name']}: {'; '.join(parts)}"
    best = summary["best_on_dev"]
    yield f"best run on dev: {best['trial']}, {metric} {human_number(best['dev'][metric])}"
    if fault := what_was_not_learned(summary):
        yield fault


def on_test(metric: str) -> str:
    """What is shown of test where runs are compared by `metric` on dev: the figure with the model's own threshold, not
    with one that is chosen on the answers of test."""
    return metric.removeprefix("best_")


def what_was_not_learned(summary: Mapping[str, Any]) -> str | None:
    """Why not even the best run has learned anything; None if it has, as far as its figures show."""
    metric, best = summary["metric"], summary["best_on_dev"]
    value = best["dev"][metric]
    fault = next(row["degenerate"] for row in summary["trials"] if row["trial"] == best["trial"])
    if fault is not None:
        found = f"Not even the best run on dev has learned anything: {fault}."
    elif value is None:
        return None
    else:
        its = Metric(metric, summary["lower_is_better"])
        floors = [
            f"{name} {human_number(floor)}"
            for name, floor in summary["floors"].items()
            if isinstance(floor, int | float) and not its.is_better(value, floor)
        ]
        if not floors:
            return None
        found = f"The best run's {metric} on dev, {human_number(value)}, is no better than {', '.join(floors)}."
    return (
        f"{found} Nothing was learned that counts, and which configuration is best says nothing: try higher learning "
        "rates, more epochs or more examples, and examine a run with `unmask doctor`."
    )


def spread_in_words(spread: Mapping[str, float | None] | None) -> str:
    """`0.8412 ± 0.012`; without the `±` part if there is only one run."""
    if spread is None:
        return "–"
    mean, sd = spread["mean"], spread["sd"]
    return human_number(mean) if sd is None else f"{human_number(mean)} ± {sd:.2g}"
