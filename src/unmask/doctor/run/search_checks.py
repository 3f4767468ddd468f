"""The doctor's look at a search: its trials' results, and whether the choice among them means anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.doctor.findings import Diagnosis, FigureTable, Finding
from unmask.errors import InputError
from unmask.finetuning.search.seeds import difference_over_seeds
from unmask.finetuning.search.summary import on_test, spread_in_words, what_was_not_learned
from unmask.info import unreadable_summary
from unmask.io.json_files import read_object
from unmask.io.paths import SUMMARY
from unmask.io.progress import human_number, listed

Summary = Mapping[str, Any]

GRID = ("learning_rate", "batch_size", "epochs", "steps", "tokens", "minutes", "transfer_layers")
"""Numeric settings of which a search may try several values."""


def examine_search(path: Path) -> Diagnosis:
    """Diagnoses a search, finished or not.

    Raises:
        InputError: its summary cannot be read.
    """
    try:
        summary: Summary = read_object(path / SUMMARY)
        findings = list(check_search(summary))
        tables = (_configurations_table(summary), _trials_table(summary))
        best, metric = summary["best_on_dev"], summary["metric"]
        headline = (
            ("Runs", f"{summary['num_finished']} of {summary['num_trials']}"),
            ("Best on dev", f"{metric} {human_number(best['dev'][metric])}"),
            ("Its configuration, mean ± sd", spread_in_words(best["all_runs_of_it"]["dev"].get(metric))),
        )
    except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable_summary(path, error) from error
    return Diagnosis("search", str(path), tuple(findings), headline, tables, figures=dict(summary))


def check_search(summary: Summary) -> Iterator[Finding]:
    """Findings about a search, from its summary."""
    trials: Sequence[Summary] = summary["trials"]
    left = summary["num_trials"] - summary["num_finished"] - summary["num_failed"]
    if left:
        message = f"{left} of {summary['num_trials']} runs are not made yet"
        yield Finding("unfinished-search", "warning", message, "its command with --resume continues it")
    if failed := [trial for trial in trials if trial["error"]]:
        message = f"{len(failed)} of {len(trials)} runs have failed, the first, {failed[0]['trial']}, with: "
        advice = "fix what the message says; --resume starts failed runs again"
        yield Finding("failed-runs", "warning", message + str(failed[0]["error"]), advice)
    if nothing := what_was_not_learned(summary):
        found, _, advice = nothing.partition(": try ")
        yield Finding("nothing-learned", "fault", found, f"try {advice}")
        return
    if degenerate := [trial for trial in trials if trial["degenerate"]]:
        names = listed([str(trial["trial"]) for trial in degenerate], 5)
        message = f"{len(degenerate)} of {len(trials)} runs give every example the same answer: {names}"
        advice = "more restarts, a lower learning rate or more epochs make them rarer; the mean counts them in"
        yield Finding("degenerate-runs", "warning", message, advice)
    else:
        yield Finding(
            "learned", "good", "the best run is better than always giving the same answer, and no run is degenerate"
        )
    yield from _edges(summary)
    yield from _spread(summary)


def _edges(summary: Summary) -> Iterator[Finding]:
    """Numeric settings of which the best run has the smallest or largest value tried: better ones may lie beyond."""
    finished = [trial for trial in summary["trials"] if not trial["error"]]
    best = next(trial for trial in finished if trial["trial"] == summary["best_on_dev"]["trial"])
    for name in GRID:
        tried = sorted({trial[name] for trial in finished if name in trial})
        if len(tried) > 1 and best[name] in (tried[0], tried[-1]):
            end, beyond = ("smallest", "smaller") if best[name] == tried[0] else ("largest", "larger")
            yield Finding(
                f"best-at-edge-{name.replace('_', '-')}",
                "note",
                f"the best run has the {end} {name} of those tried, {best[name]:g} of "
                f"{', '.join(f'{value:g}' for value in tried)}",
                f"try {beyond} ones too",
            )


def _spread(summary: Summary) -> Iterator[Finding]:
    """Whether the two best configurations differ by more than their seeds do, as `unmask compare` judges recipes."""
    metric = summary["metric"]
    rows = [row for row in summary["combinations"] if metric in row["dev"]]
    if len(rows) > 1 and all(row["n"] == 1 for row in rows):
        message = "configurations were run once each: how much of their difference is chance is not known"
        yield Finding("no-restarts", "note", message, "set search.restarts=3 or more for small data sets")
    spread = [row for row in rows if row["dev"][metric]["sd"] is not None]
    if len(spread) < 2:
        return
    spread.sort(key=lambda row: row["dev"][metric]["mean"], reverse=not summary["lower_is_better"])
    best, second = (
        {
            run["seed"]: run["dev"][metric]
            for run in summary["trials"]
            if run["combination"] == row["name"] and run["dev"]
        }
        for row in spread[:2]
    )
    found = difference_over_seeds(second, best)
    if found is not None and found.low is not None and found.high is not None and found.low <= 0 <= found.high:
        yield Finding(
            "within-chance",
            "note",
            f"the two best configurations differ by {found.mean:.2g} in their mean {metric} over {found.pairs} "
            f"seeds (95 %: {found.low:.2g} to {found.high:.2g}): which is better is not known",
            "take either, or raise search.restarts",
        )


def _configurations_table(summary: Summary) -> FigureTable:
    metric = summary["metric"]
    rows = tuple(
        (
            str(row["name"]),
            str(row["n"]),
            spread_in_words(row["dev"].get(metric)),
            spread_in_words(row["test"].get(on_test(metric))),
            str(len(row["degenerate"]) or ""),
            str(len(row["failed"]) or ""),
        )
        for row in summary["combinations"]
    )
    floors = ", ".join(f"{name} {human_number(value)}" for name, value in summary["floors"].items())
    note = f"To compare with: {floors}." if floors else ""
    of_test = "test" if on_test(metric) == metric else f"test ({on_test(metric)})"
    columns = ("configuration", "runs", "dev", of_test, "degenerate", "failed")
    return FigureTable(f"Mean {metric} and standard deviation", rows, columns, note)


def _trials_table(summary: Summary) -> FigureTable:
    metric = summary["metric"]
    rows = tuple(
        (
            str(trial["trial"]),
            human_number(trial["dev"].get(metric)),
            human_number(trial["test"].get(on_test(metric))),
            str(trial["error"] or trial["degenerate"] or ""),
        )
        for trial in summary["trials"]
    )
    of_test = "on test" if on_test(metric) == metric else f"{on_test(metric)} on test"
    return FigureTable("Runs", rows, ("run", f"{metric} on dev", of_test, "what is wrong"))
