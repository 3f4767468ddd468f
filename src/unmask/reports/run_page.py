"""`report.html`: one page that shows a run, made from its directory alone and needing nothing from the network.

Figures are drawn by matplotlib as inline SVG with no text but numbers; titles, legends and samples are HTML, in the
reader's own fonts and colours, so that any script can be shown and light and dark both work.

The files that are read, if they exist; all but the first two are written for this page:

    recipe.yaml, metrics.jsonl, environment.json
    results.json    final figures by name, nested or not; beside them `num_parameters` and `floors`, what a figure is to
                    be compared with: `{"loss/mlm": {"no context": 6.6, "unigram entropy": 7.1}}` by the names of
                    metrics.jsonl, or `{"unigram entropy": 7.1}` for the loss; and `degenerate`, what is wrong with a
                    model that gives every example the same answer
    samples.json    decoded examples of what the model predicts; see `unmask.reports.sample_rows`

The held-out values of the loss are `eval/loss`, those of its term `mlm` are `eval/mlm_loss` or `eval/loss/mlm`.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from unmask.errors import InputError
from unmask.io.progress import human_count, human_duration
from unmask.io.writing import write_text
from unmask.reports.figure import Panel, Series, draw
from unmask.reports.html_table import Html, table
from unmask.reports.sample_rows import are_samples, draw_samples
from unmask.training.run.log import ENVIRONMENT, METRICS, read_metrics, read_sessions

REPORT = "report.html"
STYLE = "style.css"

Row = Mapping[str, Any]


def write_report(run_directory: Path) -> Path:
    """Writes `report.html` into a run directory and returns its path.

    Raises:
        InputError: it is not a run's directory, or one of its files cannot be read.
    """
    recipe_path, metrics_path = run_directory / "recipe.yaml", run_directory / METRICS
    if not (recipe_path.exists() or metrics_path.exists()):
        raise InputError(f"{run_directory} is not a run directory: it holds neither recipe.yaml nor {METRICS}")
    rows = read_metrics(metrics_path) if metrics_path.exists() else []
    recipe = _read_recipe(recipe_path)
    sessions = read_sessions(run_directory / ENVIRONMENT)
    results = _read_json(run_directory / "results.json", _are_results, {})
    samples = _read_json(run_directory / "samples.json", are_samples, [])
    floors = _floors(results.pop("floors", {}))
    num_parameters = results.pop("num_parameters", None)
    degenerate = results.pop("degenerate", None)
    figures = last_evaluation(rows)
    for name, value in flatten(results).items():
        if figures.get(name.replace("dev.", "eval/", 1)) == value:  # measured at the last step
            continue
        figures[f"eval/{name}" if f"eval/{name}" in figures else name] = value

    try:
        parts = parts_of(recipe, rows)
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{recipe_path} is not the recipe of a run: take it out of the run directory") from error

    sections = [
        _headline(run_directory.name, sessions, rows, num_parameters, figures),
        _section("Curves", _curves(rows, floors, parts)),
        _section("Results", _results(figures, floors, degenerate)),
        _section("Sample predictions", draw_samples(samples)),
        _section("Settings", _settings(recipe)),
        _section("Environment", _environment(sessions)),
    ]
    style = files("unmask.reports").joinpath(STYLE).read_text(encoding="utf-8")
    path = run_directory / REPORT
    page = PAGE.format(title=escape(run_directory.name), style=style, body="\n".join(sections))
    write_text(path, page.encode("utf-8", errors="replace").decode())  # JSON can hold lone surrogates
    return path


# What the files say


def _read_recipe(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        recipe = yaml.safe_load(path.read_bytes())
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML ({error}): mend it, or take it out of the run directory") from error
    if not isinstance(recipe, dict):
        raise InputError(f"{path} is not a recipe: expected keys and values, found {type(recipe).__name__}")
    return recipe


def _read_json(path: Path, fits: Callable[[Any], bool], otherwise: Any) -> Any:
    if not path.exists():
        return otherwise
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): take it out of the run directory") from error
    if not fits(value):
        raise InputError(f"{path} has not the shape that a report reads: take it out of the run directory")
    return value


def _are_results(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("floors", {}), dict)


def _floors(given: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Floors by the name of their figure, then by their own name; those of a loss are also its held-out values'."""
    floors: dict[str, dict[str, float]] = {}
    for name, value in given.items():
        of, named = (name, value) if isinstance(value, dict) else ("loss", {name: value})
        for key in (of, *_held_out(of)):
            floors.setdefault(key, {}).update(named)
    return floors


def _held_out(key: str) -> list[str]:
    """The possible keys of a training loss's held-out values, the first that exists counts; none if not a loss."""
    if key == "loss":
        return ["eval/loss"]
    if key.startswith("loss/"):
        term = key.removeprefix("loss/")
        return [f"eval/{term}_loss", f"eval/loss/{term}"]
    return []


def last_evaluation(rows: Sequence[Row]) -> dict[str, Any]:
    """The last value of every `eval/...` in metrics rows."""
    return {name: value for row in rows for name, value in row.items() if name.startswith("eval/")}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, keys joined by dots."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


# Curves


MOST_TILES = 12
"""How many figures the headline has: two rows."""

MOST_METRICS = 6
"""How many of the task's metrics, from the first, have a figure; the table has all."""


def parts_of(recipe: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, int]:
    """The steps done when each part of a run begins, by the part's name, for the parts that have begun.

    The parts are the second of ELECTRA's two stages, recognised by its loss, and the phases after the first if the
    budget is in steps or tokens.
    """
    trained = [row for row in rows if "tokens" in row]
    steps, tokens = ([0, *(row[name] for row in trained)] for name in ("step", "tokens"))
    phases, budget = recipe.get("phases") or (), recipe.get("train", {})
    begun: dict[str, int] = {}
    for number, phase in enumerate(phases[:-1], start=2):
        if budget.get("steps"):
            begun[f"phase {number}"] = math.ceil(phase["until"] * budget["steps"])
        elif budget.get("tokens"):
            begun[f"phase {number}"] = math.ceil(np.interp(phase["until"] * budget["tokens"], tokens, steps))
    of_generator = [row["step"] for row in trained if "loss/generator" in row and "loss/discriminator" not in row]
    begun["second stage"] = max(of_generator, default=steps[-1])
    return {name: step for name, step in begun.items() if step < steps[-1]}


def panels(
    rows: Sequence[Row], floors: Mapping[str, Mapping[str, float]], parts: Mapping[str, float] | None = None
) -> list[Panel]:
    """Every figure for which the rows have points, the loss first."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    losses = ["loss", *(key for key in keys if key.startswith("loss/"))]
    if len(losses) > 1 and all(sum(key in row for key in losses[1:]) < 2 for row in rows):
        del losses[0]  # it equals its only term, in each stage
    nothing = Series.of((), "")
    found, shown = [], set()
    for key in losses:
        held_out = next((name for name in _held_out(key) if name in keys), "eval/loss" if len(losses) == 1 else "")
        shown.add(held_out)
        told = dict(floors.get("loss", {}) if len(losses) == 1 else {}) | dict(floors.get(key, {}))
        title = "Loss" if key == "loss" else f"{_spoken(key.removeprefix('loss/'))} loss"
        title += "" if held_out in keys else " in training"
        found.append(Panel(title, Series.of(rows, key), Series.of(rows, held_out), told))
    for key in [key for key in keys if key.startswith("eval/") and key not in shown][:MOST_METRICS]:
        found.append(Panel(_spoken(key), nothing, Series.of(rows, key), floors.get(key, {})))
    found.append(Panel("Learning rate", Series.of(rows, "learning_rate"), nothing, is_noisy=False))
    found.append(Panel("Gradient norm before clipping", Series.of(rows, "gradient_norm"), nothing))
    found.append(Panel("Tokens per second", Series.of(rows, "tokens_per_s"), nothing))
    last_step = max((row["step"] for row in rows), default=0)
    return [replace(panel, parts=parts or {}, last_step=last_step) for panel in found if panel.is_drawable]


def _curves(rows: Sequence[Row], floors: Mapping[str, Mapping[str, float]], parts: Mapping[str, float]) -> str:
    """The first figure over the whole width, the others side by side; a table of what was logged only once."""
    shapes = [(960, 330, "wide")]
    found = panels(rows, floors, parts)
    drawn = [panel for panel in found if panel.is_curve]
    shapes += [(460, 220, "")] * (len(drawn) - 1)
    figures = "".join(_figure(panel, *shape) for panel, shape in zip(drawn, shapes, strict=False))
    return figures + _logged_once([panel for panel in found if not panel.is_curve])


def _logged_once(panels: Sequence[Panel]) -> str:
    """Of training values alone: held-out values are among the results."""
    lines = [
        (panel.title, number(panel.training.last), _compared(panel.floors))
        for panel in panels
        if panel.training.is_drawable
    ]
    if not lines:
        return ""
    note = "Logged once, so that there is no curve to draw: a shorter train.log_every logs more of the training."
    return f'<p class="note">{note}</p>' + table(("", "training", "to compare with"), lines)


def _compared(floors: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in floors.items())


def _figure(panel: Panel, width: int, height: int, shape: str) -> str:
    keys = [("training", "training")] if panel.training.is_drawable else []
    if panel.held_out.is_drawable:
        keys.append(("held-out", "held-out"))
    keys += [("floor", f"{name} {number(value)}") for name, value in panel.floors.items()]
    keys += [("part", f"{name} from step {step + 1:,}") for name, step in panel.parts.items()]
    if [kind for kind, _ in keys if kind != "part"] in (["training"], ["held-out"]):  # the title says what is drawn
        del keys[0]
    legend = "".join(f'<span class="key {kind}">{escape(text)}</span>' for kind, text in keys)
    if panel.num_not_finite:
        legend += f"<span>{panel.num_not_finite} not finite</span>"
    caption = f"<figcaption><b>{escape(panel.title)}</b>{legend}</figcaption>"
    return f'<figure class="{shape}">{caption}{draw(panel, width, height)}</figure>'


# The other sections


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _headline(
    name: str,
    sessions: Sequence[Row],
    rows: Sequence[Row],
    num_parameters: float | None,
    figures: Mapping[str, Any],
) -> str:
    session = sessions[-1] if sessions else {}
    tiles = [(label, value) for label, value in _facts(rows, num_parameters) if value]
    told = [(_spoken(key), number(value)) for key, value in figures.items() if isinstance(value, int | float)]
    tiles += told[: MOST_TILES - len(tiles)]
    recipe = f"<p>{escape(str(session['recipe']))}</p>" if session.get("recipe") else ""
    command = f"<pre>{escape(shlex.join(session['command']))}</pre>" if session.get("command") else ""
    cells = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in tiles)
    return f"<header>{recipe}<h1>{escape(name)}</h1>{command}<dl>{cells}</dl></header>"


def _facts(rows: Sequence[Row], num_parameters: float | None) -> Iterator[tuple[str, str]]:
    training = [row for row in rows if row.get("tokens") and row.get("tokens_per_s")]
    before = [0, *(row["tokens"] for row in training)]
    seconds = sum((row["tokens"] - start) / row["tokens_per_s"] for row, start in zip(training, before, strict=False))
    yield "Parameters", human_count(num_parameters) if num_parameters else ""
    yield "Steps", f"{rows[-1]['step']:,}" if rows else ""
    yield "Tokens", human_count(training[-1]["tokens"]) if training else ""
    yield "Time training", human_duration(seconds) if training else ""
    loss = Series.of(rows, "loss")
    yield "Training loss", number(loss.last) if loss.is_drawable else ""


def _results(figures: Mapping[str, Any], floors: Mapping[str, Mapping[str, float]], degenerate: str | None) -> str:
    if not figures:
        return ""
    warning = f'<p class="note">On dev {escape(degenerate)}: the model tells nothing apart.</p>' if degenerate else ""
    lines = []
    for key, value in figures.items():
        lines.append((_spoken(key), number(value), _compared(floors.get(key, {}))))
    return warning + table(("", "value", "to compare with"), lines)


def _settings(recipe: Mapping[str, Any]) -> str:
    single = {name: value for name, value in recipe.items() if not isinstance(value, dict)}
    groups = {"run": single} | {name: flatten(value) for name, value in recipe.items() if isinstance(value, dict)}
    cards = [
        f"<div><h3>{escape(name)}</h3>{table((), list(group.items()))}</div>" for name, group in groups.items() if group
    ]
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


def _environment(sessions: Sequence[Row]) -> str:
    if not sessions:
        return ""
    last = flatten(sessions[-1])
    told = {name.removeprefix("versions."): value for name, value in last.items() if name not in ("recipe", "command")}
    settled = table((), [(_spoken(name), value) for name, value in told.items() if value is not None])
    if len(sessions) == 1:
        return settled
    lines = [
        (session.get("started"), Html(f"<code>{escape(shlex.join(session.get('command', [])))}</code>"))
        for session in sessions
    ]
    return f"{settled}<h3>Sessions</h3>{table(('started', 'command'), lines)}"


def number(value: Any) -> str:
    """A result for people: a fraction in four digits, whole and large numbers with thousands separated."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


SPOKEN = {
    "mlm": "MLM",
    "lm": "LM",
    "nsp": "NSP",
    "sop": "SOP",
    "sbo": "SBO",
    "eval": "held-out",
}
"""Parts of keys and the words to show for them."""


def _spoken(key: str) -> str:
    """A key as a person says it: `eval/nsp_accuracy` is "Held-out NSP accuracy"."""
    words = " ".join(SPOKEN.get(word, word) for word in key.replace("/", " ").replace("_", " ").split(" "))
    return words[:1].upper() + words[1:]


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
