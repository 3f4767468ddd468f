"""`report.html` of a search: every run as a dot beside the mean of its combination, in the style of a run's report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from unmask.finetuning.search.summary import in_words, spread_in_words, what_was_not_learned
from unmask.io.writing import write_text
from unmask.reports.figure import Panel, Series, draw
from unmask.reports.run_page import PAGE, REPORT, STYLE
from unmask.training.run.log import ENVIRONMENT, read_sessions

Summary = Mapping[str, Any]

STRIP_WIDTH, STRIP_HEIGHT = 300, 22
"""The size of the strip of dots in a row, in CSS pixels."""


def write_trials_page(directory: Path, summary: Summary) -> Path:
    """Writes the page of a search into its directory and returns its path.

    Args:
        summary: as `unmask.finetuning.search.summary.summarise` makes it, with `ensemble` added.

    Raises:
        OutputError: the place cannot be written.
    """
    metric = summary["metric"]
    sections = [
        _headline(directory.name, read_sessions(directory / ENVIRONMENT), summary),
        _note(what_was_not_learned(summary)),
        _section(f"{metric} of every run on dev", _strips(summary)),
        _section("By the number of layers taken", _layers_curve(summary)),
        _section("The best run on dev, beside all runs of its combination", _best(summary)),
        _section("All metrics, mean and standard deviation", _means(summary)),
        _section("Degenerate and failed runs", _faults(summary)),
        _section("Runs", _runs(summary)),
    ]
    style = files("unmask.reports").joinpath(STYLE).read_text(encoding="utf-8")
    page = PAGE.format(title=escape(directory.name), style=style, body="\n".join(filter(None, sections)))
    path = directory / REPORT
    write_text(path, page.encode("utf-8", errors="replace").decode())
    return path


def _headline(name: str, sessions: Sequence[Mapping[str, Any]], summary: Summary) -> str:
    metric, best = summary["metric"], summary["best_on_dev"]
    over_all = best["all_runs_of_it"]
    tiles = [
        ("Runs", f"{summary['num_finished']} of {summary['num_trials']}"),
        (f"Mean {metric} of its combination on dev", spread_in_words(over_all["dev"].get(metric))),
        (f"Best run's {metric} on dev", in_words(best["dev"][metric])),
    ]
    if metric in over_all["test"]:
        tiles.append((f"Mean {metric} of its combination on test", spread_in_words(over_all["test"][metric])))
    if ensemble := summary.get("ensemble"):
        told = [f"{split} {in_words(ensemble[split].get(metric))}" for split in ("dev", "test") if split in ensemble]
        tiles.append((f"{metric} of {len(ensemble['members'])} together", " · ".join(told)))
    cells = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in tiles)
    command = f"<pre>{escape(shlex.join(sessions[-1]['command']))}</pre>" if sessions else ""
    return f"<header><p>a search</p><h1>{escape(name)}</h1>{command}<dl>{cells}</dl></header>"


def _strips(summary: Summary) -> str:
    """A row for each combination: its runs as dots on one scale, the mean as a line, floors dashed."""
    metric = summary["metric"]
    runs = {row["name"]: _values_of(row["name"], summary) for row in summary["combinations"]}
    floors = [value for value in summary["floors"].values() if isinstance(value, int | float)]
    known = [*(value for values in runs.values() for value in values), *floors]
    if not known:
        return ""
    low, high = min(known), max(known)
    rows = [
        (
            escape(row["name"]),
            str(row["n"]),
            spread_in_words(row["dev"].get(metric)),
            spread_in_words(row["test"].get(metric)),
            _strip(runs[row["name"]], row["dev"].get(metric, {}).get("mean"), floors, low, high),
        )
        for row in summary["combinations"]
    ]
    keys = '<span class="key held-out">mean</span>' + "".join(
        f'<span class="key floor">{escape(name)} {in_words(value)}</span>' for name, value in summary["floors"].items()
    )
    legend = f"<figcaption><span>● a run</span>{keys}<span>{in_words(low)} to {in_words(high)}</span></figcaption>"
    return legend + _table(("combination", "runs", "mean on dev", "mean on test", "runs on dev"), rows, "wide")


def _values_of(combination: str, summary: Summary) -> list[float]:
    runs = [row for row in summary["trials"] if row["combination"] == combination]
    values = [run["dev"].get(summary["metric"]) for run in runs]
    return [value for value in values if value is not None]


def _strip(values: Sequence[float], mean: float | None, floors: Sequence[float], low: float, high: float) -> str:
    """Dots on a line from `low` to `high`, as SVG without any text."""
    middle, margin = STRIP_HEIGHT / 2, 8

    def place(value: float) -> str:
        share = (value - low) / (high - low) if high > low else 0.5
        return f"{margin + share * (STRIP_WIDTH - 2 * margin):.1f}"

    def upright(value: float, colour: str, dashes: str) -> str:
        ends = f'x1="{place(value)}" x2="{place(value)}" y1="1" y2="{STRIP_HEIGHT - 1}"'
        return f'<line {ends} stroke="var(--{colour})" stroke-width="2"{dashes}/>'

    shapes = [f'<line x1="0" x2="{STRIP_WIDTH}" y1="{middle}" y2="{middle}" stroke="var(--line)"/>']
    shapes += [upright(floor, "floor", ' stroke-dasharray="3 3"') for floor in floors]
    shapes += [
        f'<circle cx="{place(value)}" cy="{middle}" r="4.5" fill="var(--training)" fill-opacity=".6"/>'
        for value in values
    ]
    if mean is not None:
        shapes.append(upright(mean, "held-out", ""))
    told = escape(", ".join(map(in_words, values)))
    size = f'width="{STRIP_WIDTH}" height="{STRIP_HEIGHT}" viewBox="0 0 {STRIP_WIDTH} {STRIP_HEIGHT}"'
    return f'<svg role="img" aria-label="{told}" {size}><title>{told}</title>{"".join(shapes)}</svg>'


def _layers_curve(summary: Summary) -> str:
    """The mean by number of transferred layers, a curve for each combination of other settings (GPT-1, figure 2)."""
    metric = summary["metric"]
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in summary["combinations"]:
        mean = row["dev"].get(metric, {}).get("mean")
        if "transfer_layers" in row and mean is not None:
            rest = row["name"].rpartition("_layers")[0]
            curves.setdefault(rest, []).append((row["transfer_layers"], mean))
    drawn = []
    for name, points in curves.items():
        if len(points) > 1:
            steps, values = np.array(sorted(points), dtype=np.float64).T
            panel = Panel(name, Series.of((), ""), Series(steps, values), summary["floors"])
            caption = f"<figcaption><b>{escape(name)}</b><span>mean {escape(metric)} on dev</span></figcaption>"
            drawn.append(f'<figure class="wide">{caption}{draw(panel, 960, 280)}</figure>')
    return "".join(drawn)


def _best(summary: Summary) -> str:
    best = summary["best_on_dev"]
    over_all = best["all_runs_of_it"]
    rows = [
        (
            f"{split} {escape(name)}",
            in_words(best[split].get(name)),
            f"{spread_in_words(spread)} ({over_all['n']})",
            *([in_words(together[split].get(name))] if (together := summary.get("ensemble")) else []),
        )
        for split in ("dev", "test")
        for name, spread in over_all[split].items()
    ]
    head = ["", f"best on dev: {best['trial']}", "mean ± sd (runs)"]
    if summary.get("ensemble"):
        head.append(f"{len(summary['ensemble']['members'])} together")
    return _table(head, rows)


def _means(summary: Summary) -> str:
    columns = list(
        dict.fromkeys(
            (split, name) for row in summary["combinations"] for split in ("dev", "test") for name in row[split]
        )
    )
    rows = [
        (escape(row["name"]), *(spread_in_words(row[split].get(name)) for split, name in columns))
        for row in summary["combinations"]
    ]
    return _table(("combination", *(f"{split} {name}" for split, name in columns)), rows, "wide")


def _faults(summary: Summary) -> str:
    metric = summary["metric"]
    rows = [
        (escape(row["trial"]), escape(str(row["error"] or row["degenerate"])))
        for row in summary["trials"]
        if row["error"] or row["degenerate"]
    ]
    if not rows:
        return ""
    without = [
        (
            escape(row["name"]),
            f"{spread_in_words(row['dev'].get(metric))} ({row['n']})",
            f"{spread_in_words(rest['dev'].get(metric))} ({rest['n']})",
        )
        for row in summary["combinations"]
        if (rest := row["without_degenerate"])
    ]
    head = ("combination", f"mean {metric} on dev, all (runs)", "without the degenerate (runs)")
    return _table(("run", "what is wrong"), rows) + (_table(head, without) if without else "")


def _runs(summary: Summary) -> str:
    rows = []
    for row in summary["trials"]:
        link = f'<a href="trials/{escape(row["trial"])}/report.html">{escape(row["trial"])}</a>'
        figures = [f"{name} {in_words(value)}" for name, value in row["dev"].items()]
        on_test = [f"{name} {in_words(value)}" for name, value in row["test"].items()]
        rows.append((link, escape(" · ".join(figures)), escape(" · ".join(on_test))))
    return _table(("run", "dev", "test"), rows)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _note(text: str | None) -> str:
    return f'<section><p class="verdict">{escape(text)}</p></section>' if text else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table of cells that are HTML already; a `wide` table keeps each cell on one line, and scrolls."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
