"""`report.html` of a search: every run as a dot beside the mean of its configuration."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
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
            ("By the number of training examples", _examples_curves(summary)),
            ("By the number of layers taken", _layers_curves(summary)),
            ("By the step of pre-training", _steps_curves(summary)),
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
    tiles = [
        ("Runs", f"{summary['num_finished']} of {summary['num_trials']}"),
        (f"Mean {words(metric)} ± sd of its configuration on dev", spread_in_words(over_all["dev"].get(metric))),
        (f"Best run's {words(metric)} on dev", human_number(best["dev"][metric])),
    ]
    if (its := on_test(metric)) in over_all["test"]:
        tiles.append((f"Mean {words(its)} ± sd of its configuration on test", spread_in_words(over_all["test"][its])))
    if ensemble := summary.get("ensemble"):
        values = [
            f"{split} {human_number(ensemble[split].get(name))}"
            for split, name in (("dev", metric), ("test", its))
            if split in ensemble
        ]
        tiles.append(
            (
                f"{' and '.join(map(words, dict.fromkeys((metric, its))))} of {len(ensemble['members'])} together",
                " · ".join(values),
            )
        )
    return tiles


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


def _examples_curves(summary: Summary) -> list[tuple[str, Markup]]:
    """The mean by number of training examples, a curve for each configuration of other settings (ELMo, figure 1)."""
    rows = [row for row in summary["combinations"] if "train_examples" in row]
    names = [row["name"].replace(f"_examples{row['train_examples']}", "") for row in rows]
    return _curves(summary, [(name, row["train_examples"], row) for name, row in zip(names, rows, strict=True)])


def _layers_curves(summary: Summary) -> list[tuple[str, Markup]]:
    """The mean by number of transferred layers, a curve for each configuration of other settings (GPT-1, figure 2)."""
    rows = [row for row in summary["combinations"] if "transfer_layers" in row]
    return _curves(summary, [(row["name"].rpartition("_layers")[0], row["transfer_layers"], row) for row in rows])


def _steps_curves(summary: Summary) -> list[tuple[str, Markup]]:
    """The mean by the step of pre-training, a curve for each run of it and each configuration of other settings (BERT,
    figure 5); none unless the step of every model is known."""
    rows = [row for row in summary["combinations"] if "init_from" in row]
    origins = {row["init_from"]: _origin(row["init_from"]) for row in rows}
    points = []
    for row in rows:
        if (origin := origins[row["init_from"]]) is None:
            return []
        run, step = origin
        points.append((f"{run}: lr{row['name'].rpartition('_lr')[2]}", step, row))
    return _curves(summary, points)


def _origin(model: str) -> tuple[str, int] | None:
    """The pre-training run and step of a model that `unmask checkpoint` has written; None for any other."""
    with suppress(UserError):  # the models of a search that is finished may be gone
        match read_config(model_directory(model)).get(MADE_BY):
            case {"command": "checkpoint", "of": [str(run)], "step": int(step)}:
                return run, step
    return None


def _curves(summary: Summary, rows: Sequence[tuple[str, int, Mapping[str, Any]]]) -> list[tuple[str, Markup]]:
    """The mean and the standard deviation of configurations, each with the name of its curve and its place there."""
    curves: dict[str, list[tuple[float, ...]]] = {}
    for name, place, row in rows:
        spread = row["dev"].get(summary["metric"], {})
        if (mean := spread.get("mean")) is not None:
            curves.setdefault(name, []).append((place, mean, math.nan if spread["sd"] is None else spread["sd"]))
    drawn = []
    for name, points in curves.items():
        if len(points) > 1:
            places, means, sds = np.array(sorted(points), dtype=np.float64).T
            panel = Panel(name, Series.of((), ""), Series(places, means), summary["floors"], spread=sds)
            drawn.append((name, draw_wide(panel)))
    return drawn


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
