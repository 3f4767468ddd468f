"""`report.html` of a search: every run as a dot beside the mean of its configuration."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from unmask.errors import UserError
from unmask.finetuning.search.summary import on_test, spread_in_words, what_was_not_learned
from unmask.io.paths import TRIALS, model_directory
from unmask.io.progress import figures_in_a_line, human_number, listed
from unmask.models.hub.config import MADE_BY
from unmask.models.hub.files import read_config
from unmask.reports.figure import Panel, Series, draw_wide
from unmask.reports.layout import write_page
from unmask.reports.run_page import REPORT, in_words, words
from unmask.training.run.environment import ENVIRONMENT, read_sessions

Summary = Mapping[str, Any]


def write_trials_page(directory: Path, summary: Summary) -> None:
    """Writes the page of a search into its directory.

    Args:
        summary: as `unmask.finetuning.search.summary.summarise` makes it, with `ensemble` added.

    Raises:
        OutputError: the place cannot be written.
    """
    sessions = read_sessions(directory / ENVIRONMENT)
    write_page(
        directory / REPORT,
        "search.html",
        overwrite=True,
        title=directory.name,
        above="a search",
        command=shlex.join(sessions[-1]["command"]) if sessions else "",
        tiles=_tiles(summary),
        summary=summary,
        metric=words(summary["metric"]),
        heading_of_runs=f"{in_words(summary['metric'])} of every run on dev",
        metric_on_test=words(on_test(summary["metric"])),
        verdict=what_was_not_learned(summary),
        **_strips(summary),
        curves=[
            (
                "By the number of training examples",
                _curves(summary, "train_examples", _by("train_examples", "_examples")),
            ),
            ("By the number of layers taken", _curves(summary, "transfer_layers", _by("transfer_layers", "_layers"))),
            ("By the step of pre-training", _curves(summary, "init_from", _by_step)),
        ],
        best=_best(summary),
        together=_together(summary),
        means=_means(summary),
        faults=[
            (row["trial"], str(row["error"] or row["degenerate"]))
            for row in summary["trials"]
            if row["error"] or row["degenerate"]
        ],
        without_degenerate=_without_degenerate(summary),
        runs=[
            (
                row["trial"],
                not row["error"] or (directory / TRIALS / row["trial"] / REPORT).is_file(),
                _in_a_line(row["dev"]),
                _in_a_line(row["test"]),
            )
            for row in summary["trials"]
        ],
        number=human_number,
    )


def _in_a_line(figures: Mapping[str, float | None]) -> str:
    return figures_in_a_line({words(name): value for name, value in figures.items()})


def _tiles(summary: Summary) -> list[tuple[str, str]]:
    metric, best = summary["metric"], summary["best_on_dev"]
    over_all = best["all_runs_of_it"]
    return [
        ("Runs", f"{summary['num_finished']} of {summary['num_trials']}"),
        (f"Mean {words(metric)} ± sd of its configuration on dev", spread_in_words(over_all["dev"].get(metric))),
        (f"Best run's {words(metric)} on dev", human_number(best["dev"][metric])),
    ]


def _strips(summary: Summary) -> dict[str, Any]:
    """A row for each configuration, with its runs, their mean and the floors as places on one scale, in percent."""
    metric, configurations = summary["metric"], summary["combinations"]
    runs: dict[str, list[float]] = {row["name"]: [] for row in configurations}
    for run in summary["trials"]:
        if (value := run["dev"].get(metric)) is not None:
            runs[run["combination"]].append(value)
    floors = [value for value in summary["floors"].values() if isinstance(value, int | float)]
    known = [*(value for values in runs.values() for value in values), *floors]
    if not known:
        return {"strips": []}
    low, high = min(known), max(known)

    def place(value: float) -> float:
        return round(3 + 94 * (value - low) / (high - low), 2) if high > low else 50.0

    strips = []
    for row in configurations:
        mean = row["dev"].get(metric, {}).get("mean")
        strips.append(
            {
                "name": row["name"],
                "n": row["n"],
                "on_dev": spread_in_words(row["dev"].get(metric)),
                "on_test": spread_in_words(row["test"].get(on_test(metric))),
                "values_in_words": ", ".join(map(human_number, runs[row["name"]])),
                "dots": [place(value) for value in runs[row["name"]]],
                "mean": None if mean is None else place(mean),
                "floors": [place(floor) for floor in floors],
            }
        )
    return {"strips": strips, "low": low, "high": high}


def _curves(
    summary: Summary, key: str, place: Callable[[Mapping[str, Any]], tuple[str, int] | None]
) -> list[tuple[str, Markup]]:
    """The mean and the standard deviation on dev by one of the settings that were searched, a curve for each
    configuration of other settings: ELMo, figure 1; GPT-1, figure 2; BERT, figure 5.

    Args:
        key: the setting.
        place: the name of a configuration's curve and its place there; there are no curves if any has none.
    """
    curves: dict[str, list[tuple[float, ...]]] = {}
    for row in summary["combinations"]:
        if key not in row:
            continue
        if (its := place(row)) is None:
            return []
        spread = row["dev"].get(summary["metric"], {})
        if (mean := spread.get("mean")) is not None:
            curves.setdefault(its[0], []).append((its[1], mean, math.nan if spread["sd"] is None else spread["sd"]))
    drawn = []
    for name, points in curves.items():
        if len(points) > 1:
            places, means, sds = np.array(sorted(points), dtype=np.float64).T
            panel = Panel(name, Series.of((), ""), Series(places, means), summary["floors"], spread=sds)
            drawn.append((name, draw_wide(panel)))
    return drawn


def _by(key: str, mark: str) -> Callable[[Mapping[str, Any]], tuple[str, int]]:
    """The place of a configuration by a number that its name has behind a mark."""
    return lambda row: (row["name"].replace(f"{mark}{row[key]}", ""), row[key])


def _by_step(row: Mapping[str, Any]) -> tuple[str, int] | None:
    """The place of a configuration by the step of pre-training, a curve for each run of that; None if the step of its
    model is not known."""
    origin = _origin(row["init_from"])
    return origin and (f"{origin[0]}: lr{row['name'].rpartition('_lr')[2]}", origin[1])


def _origin(model: str) -> tuple[str, int] | None:
    """The pre-training run and step of a model that `unmask checkpoint` has written; None for any other."""
    with suppress(UserError):  # the models of a search that is finished may be gone
        match read_config(model_directory(model)).get(MADE_BY):
            case {"command": "checkpoint", "of": [str(run)], "step": int(step)}:
                return run, step
    return None


def _best(summary: Summary) -> tuple[list[str], list[list[str]]]:
    best, together = summary["best_on_dev"], summary.get("ensemble")
    over_all = best["all_runs_of_it"]
    head = ["", f"best on dev: {best['trial']}", "mean ± sd, median (runs)"]
    if together:
        head.append(f"{len(together['members'])} together")
    rows = []
    for split in ("dev", "test"):
        for name, spread in over_all[split].items():
            row = [
                f"{split} {words(name)}",
                human_number(best[split].get(name)),
                f"{spread_in_words(spread)}, {human_number(spread['median'])} ({over_all['n']})",
            ]
            rows.append([*row, human_number(together[split].get(name))] if together else row)
    return head, rows


def _together(summary: Summary) -> str:
    """Which runs an ensemble has, beside which one is the best; empty where there is none."""
    if not (ensemble := summary.get("ensemble")):
        return ""
    of_trials = {row["trial"]: row["combination"] for row in summary["trials"]}
    configurations = listed(list(dict.fromkeys(of_trials[member] for member in ensemble["members"])), 5)
    return (
        f"model/ is the best single run on dev, {summary['best_on_dev']['trial']}; ensemble/ is the "
        f"{len(ensemble['members'])} runs with the best mean on dev together, those of {configurations}."
    )


def _means(summary: Summary) -> tuple[list[str], list[list[str]]] | None:
    """A row for each metric, a column for each configuration; None for one configuration, whose means stand beside the
    best run."""
    configurations = summary["combinations"]
    if len(configurations) < 2:
        return None
    metrics = list(
        dict.fromkeys((split, name) for row in configurations for split in ("dev", "test") for name in row[split])
    )
    rows = [
        [f"{split} {words(name)}", *(spread_in_words(row[split].get(name)) for row in configurations)]
        for split, name in metrics
    ]
    return ["", *(row["name"] for row in configurations)], rows


def _without_degenerate(summary: Summary) -> list[tuple[str, str, str]]:
    """For each configuration that has degenerate runs, its mean with and without them."""
    metric = summary["metric"]
    return [
        (
            row["name"],
            f"{spread_in_words(row['dev'].get(metric))} ({row['n']})",
            f"{spread_in_words(rest['dev'].get(metric))} ({rest['n']})",
        )
        for row in summary["combinations"]
        if (rest := row["without_degenerate"])
    ]
