"""`report.html`: one page that shows a run, made from its directory alone and needing nothing from the network.

Figures are drawn by matplotlib as inline SVG with no text but numbers; titles, legends and samples are HTML, in the
reader's own fonts and colours, so that any script can be shown and light and dark both work.

The files that are read, if they exist; all but the first two are written for this page:

    recipe.yaml, metrics.jsonl, environment.json
    results.json    final figures by name, nested or not; beside them `num_parameters`, `step` (the run's
                    last), `positive_label` (whose F1 the figure `f1` of two labels is) and `floors`, what a figure is
                    to be compared with, by the names of metrics.jsonl: `{"loss/mlm": {"no context": 6.6, "unigram
                    entropy": 7.1}}`; `degenerate`, what is wrong with a model that gives every example the same answer;
                    `thresholds_chosen_on`, which examples' figures that choice flatters;
                    `early_stopping`, the `step` of the weights and of how many `evaluations` on dev they are the best;
                    `dev_examples` and `test_examples`, what figures are of (see `examples_in_words`), with the
                    `accuracy_interval` of `unmask.inference.evaluation.evaluate`; and
                    `calibration`, as `unmask.tasks.text.calibration.Reliability.figures` gives it
    samples.json    decoded examples of what the model predicts; see `unmask.reports.sample_rows`

The held-out values of the loss are `eval/loss`, those of its term `mlm` are `eval/mlm_loss`.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from markupsafe import Markup

from unmask.io.json_files import read_object
from unmask.io.paths import RECIPE, RESULTS, SAMPLES
from unmask.io.progress import human_count, human_duration, human_number
from unmask.reports.figure import Panel, Series, draw, draw_wide
from unmask.reports.layout import write_page
from unmask.reports.reliability import draw_reliability
from unmask.reports.sample_rows import view_samples
from unmask.training.run.environment import ENVIRONMENT, changed_budgets, read_sessions
from unmask.training.run.log import METRICS, read_metrics

REPORT = "report.html"

Row = Mapping[str, Any]


def write_report(run_directory: Path, *, has_ended: bool = True) -> Path:
    """Writes `report.html` into a run directory and returns its path.

    Args:
        has_ended: False for a run that is under way, or stopped: what results there are, are of an earlier end of it.

    Raises:
        InputError: `metrics.jsonl`, `environment.json` or `results.json` is damaged.
    """
    recipe_path, metrics_path, results_path, samples_path = (
        run_directory / name for name in (RECIPE, METRICS, RESULTS, SAMPLES)
    )
    rows = read_metrics(metrics_path) if metrics_path.exists() else []
    recipe = yaml.safe_load(recipe_path.read_bytes()) if recipe_path.exists() else {}
    sessions = read_sessions(run_directory / ENVIRONMENT)
    results = read_object(results_path) if has_ended and results_path.exists() else {}
    samples = json.loads(samples_path.read_bytes()) if has_ended and samples_path.exists() else []
    floors = results.get("floors", {})
    floors |= {_held_out(key): its for key, its in floors.items() if key.startswith("loss/")}
    final = flatten({name: value for name, value in results.items() if name not in _NOT_FIGURES})
    # what is final of dev was measured with the weights kept, and after what was chosen there
    figures = {
        key: value for key, value in last_evaluation(rows).items() if key.replace("eval/", "dev.", 1) not in final
    }
    for name, value in final.items():
        figures[f"eval/{name}" if f"eval/{name}" in figures else name] = value
    held_out = "dev" if "task" in recipe else "held-out"
    titles = _titles(figures, held_out, results.get("positive_label"))
    headline = {titles[key]: figures[key] for key in sorted(figures, key=lambda key: key.startswith("dev."))}

    session = sessions[-1] if sessions else {}
    path = run_directory / REPORT
    write_page(
        path,
        "run.html",
        overwrite=True,
        title=run_directory.name,
        above=session.get("recipe"),
        command=shlex.join(session.get("command", [])),
        has_ended=has_ended,
        lost_at=_lost_at(rows),
        tiles=_tiles(rows, results.get("num_parameters"), headline),
        **_curves(rows, floors, parts_of(recipe, rows, sessions), held_out),
        is_short=not rows or rows[-1]["step"] < 2,
        nothing_held_out=has_ended and results_path.exists() and not figures,
        has_many_labels=bool(recipe.get("task", {}).get("multi_label")),
        figures_table=[
            (titles[key], human_number(value), _compared(floors.get(key, {}))) for key, value in figures.items()
        ],
        results=results,
        examples_in_words=examples_in_words,
        number=human_number,
        reliability=_reliability(results["calibration"]) if results.get("calibration") else None,
        **view_samples(samples),
        settings=_settings(recipe),
        environment=_environment(session),
        sessions=[(each.get("started"), shlex.join(each.get("command", [])) or "from Python") for each in sessions],
    )
    return path


# What the files say


_NOT_FIGURES = {
    *("floors", "num_parameters", "step", "degenerate", "positive_label", "calibration", "thresholds_chosen_on"),
    *("early_stopping", "dev_examples", "test_examples", "num_pairs"),  # the last: how many `pairs_accuracy` is of
}


def _held_out(key: str) -> str:
    """The key of a training loss's held-out values."""
    return "eval/loss" if key == "loss" else f"eval/{key.removeprefix('loss/')}_loss"


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


def examples_in_words(its: Mapping[str, Any]) -> str:
    """How many examples figures are of: `its` has `n`, of which some are `truncated` to task.max_length, and how many
    `unlabelled` ones, without an agreed label, were left out."""
    truncated = f", {its['truncated']:,} of them truncated" if its["truncated"] else ""
    return f"{its['n']:,} examples{truncated}" + (f"; {its['unlabelled']:,} unlabelled" if its["unlabelled"] else "")


# Curves


MOST_TILES = 12
"""How many figures the headline has: two rows."""

MOST_METRICS = 6
"""How many of the task's metrics, from the first, have a figure; the table has all."""


SECOND_STAGE = "second stage"
_RATE = "Learning rate"


def parts_of(recipe: Mapping[str, Any], rows: Sequence[Row], sessions: Sequence[Row] = ()) -> dict[str, int]:
    """The steps done when each part of a run begins, by the part's name, for the parts that have begun.

    The parts are the second of two stages, recognised by the losses that only its rows have, the phases after the first
    if the budget is in steps or tokens, and what was trained under a budget that a resumed session changed.
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
    begun |= {f"budget {change['now']}": change["step"] for change in changed_budgets(sessions)}
    found = [(row["step"], {key for key in row if key.startswith("loss/")}) for row in trained]
    terms = [(step, its) for step, its in found if its]
    new = terms[-1][1] - terms[0][1] if terms else set()
    first = [step for step, its in terms if not its & new]
    if new and all(step > first[-1] for step, its in terms if its & new):
        begun[SECOND_STAGE] = first[-1]
    return {name: step for name, step in begun.items() if step < steps[-1]}


def panels(
    rows: Sequence[Row],
    floors: Mapping[str, Mapping[str, float]],
    parts: Mapping[str, float] | None = None,
    held_out: str = "held-out",
) -> list[Panel]:
    """Every figure for which the rows have points, the loss first; `held_out` is what the rows' `eval` is called."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    losses = ["loss", *(key for key in keys if key.startswith("loss/"))]
    if len(losses) > 1 and (
        SECOND_STAGE in (parts or {}) or all(sum(key in row for key in losses[1:]) < 2 for row in rows)
    ):
        del losses[0]  # each stage has a sum of its own, or it equals its only term
    nothing, titles = Series.of((), ""), _titles(keys, held_out)
    found, shown = [], set()
    for key in losses:
        measured = _held_out(key)
        if len(losses) == 1 and measured not in keys:
            measured = "eval/loss"
        shown.add(measured)
        title = "Loss" if key == "loss" else f"{in_words(key.removeprefix('loss/'))} loss"
        title += "" if measured in keys else " in training"
        if key == "loss" and len(losses) > 1:
            title += f": weighted sum of {', '.join(words(each.removeprefix('loss/')) for each in losses[1:])}"
        found.append(Panel(title, Series.of(rows, key), Series.of(rows, measured), floors.get(key, {})))
    for key in [key for key in keys if key.startswith("eval/") and key not in shown][:MOST_METRICS]:
        found.append(Panel(titles[key], nothing, Series.of(rows, key), floors.get(key, {})))
    found.append(Panel(_RATE, Series.of(rows, "learning_rate"), nothing, is_noisy=False))
    found.append(Panel("Gradient norm before clipping", Series.of(rows, "gradient_norm"), nothing))
    found.append(Panel("Tokens per second", Series.of(rows, "tokens_per_s"), nothing))
    last_step = max((row["step"] for row in rows), default=0)
    return [replace(panel, parts=parts or {}, last_step=last_step) for panel in found if panel.is_drawable]


def _curves(
    rows: Sequence[Row], floors: Mapping[str, Mapping[str, float]], parts: Mapping[str, float], held_out: str
) -> dict[str, Any]:
    """The figures, of which the first, if it is not the learning rate's, has the whole width, and the values of what
    was logged only once.

    Of these there are training values alone: held-out values are among the results.
    """
    found = panels(rows, floors, parts, held_out)
    drawn = [panel for panel in found if panel.is_curve]
    once = [panel for panel in found if not panel.is_curve and panel.training.is_drawable]
    return {
        "figures": [_figure(panel, held_out, panel is drawn[0] and panel.title != _RATE) for panel in drawn],
        "logged_once": [(panel.title, human_number(panel.training.last), _compared(panel.floors)) for panel in once],
    }


def _compared(floors: Mapping[str, float]) -> Markup:
    return Markup(", ").join(_floor(name, value) for name, value in floors.items())


def _floor(name: str, value: float) -> Markup:
    """What a figure is compared with; its name may hold a label that is written from right to left."""
    return Markup("<bdi>{}</bdi>: {}").format(name, human_number(value))


def _figure(panel: Panel, held_out: str, is_wide: bool) -> dict[str, Any]:
    training = "training, smoothed (faint: as logged)" if panel.is_smoothed else "training"
    keys = [("training", training)] if panel.training.is_drawable else []
    if panel.held_out.is_drawable:
        keys.append(("held-out", held_out))
    keys += [("floor", _floor(name, value)) for name, value in panel.floors.items()]
    keys += [("part", f"{name} from step {step + 1:,}") for name, step in panel.parts.items()]
    kinds = [kind for kind, _ in keys if kind != "part"]
    if kinds in (["training"], ["held-out"]) and not panel.is_smoothed:  # the title says what is drawn
        del keys[0]
    return {
        "title": panel.title,
        "legend": keys,
        "num_not_finite": panel.num_not_finite,
        "is_wide": is_wide,
        "svg": draw_wide(panel) if is_wide else draw(panel, 460, 220),
    }


def _reliability(calibration: Mapping[str, Any]) -> dict[str, Any]:
    """The picture of how far the task's probabilities can be believed, and what is said of it."""
    error, before = calibration["expected_calibration_error"], calibration.get("error_before")
    return {
        "error": human_number(error),
        "before": None if before is None else human_number(before),
        "has_grown": before is not None and before < error,
        "temperature": human_number(calibration.get("temperature")),
        "svg": draw_reliability(calibration["bins"]),
    }


# The other sections


def _tiles(rows: Sequence[Row], num_parameters: float | None, figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    tiles = [(label, value) for label, value in _facts(rows, num_parameters) if value]
    tiles += [(title, human_number(value)) for title, value in figures.items() if isinstance(value, int | float)]
    return tiles[:MOST_TILES]


def _facts(rows: Sequence[Row], num_parameters: float | None) -> Iterator[tuple[str, str]]:
    training = [row for row in rows if row.get("tokens") and row.get("tokens_per_s")]
    before = [0, *(row["tokens"] for row in training)]
    seconds = sum((row["tokens"] - start) / row["tokens_per_s"] for row, start in zip(training, before, strict=False))
    yield "Parameters", human_count(num_parameters) if num_parameters else ""
    yield "Steps", f"{rows[-1]['step']:,}" if rows else ""
    yield "Tokens", human_count(training[-1]["tokens"]) if training else ""
    yield "Time training", human_duration(seconds) if training else ""
    terms = [key for key in training[-1] if key.startswith("loss/")] if training else []
    for key in terms if len(terms) > 1 else ["loss"]:  # their sum is to be compared with nothing
        loss = Series.of(rows, key)
        title = "Training loss" if key == "loss" else in_words(f"training_{key.removeprefix('loss/')}_loss")
        yield title, human_number(loss.last) if loss.is_drawable else ""


def _lost_at(rows: Sequence[Row]) -> int | None:
    """The step at whose loss the run ends, if that is not finite."""
    step, loss = next(((row["step"], row["loss"]) for row in reversed(rows) if "loss" in row), (None, 0.0))
    return step if loss is None else None


def _settings(recipe: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, Any]]]]:
    single = {name: value for name, value in recipe.items() if not isinstance(value, dict)}
    groups = {"run": single} | {name: flatten(value) for name, value in recipe.items() if isinstance(value, dict)}
    return [(name, list(group.items())) for name, group in groups.items() if group]


def _environment(session: Row) -> list[tuple[str, Any]]:
    known = {name: value for name, value in flatten(session).items() if value is not None}
    return [
        (in_words(name.removeprefix("versions.")), value)
        for name, value in known.items()
        if name not in ("recipe", "command")
    ]


WORDS = {"mlm": "MLM", "lm": "LM", "nsp": "NSP", "sop": "SOP", "sbo": "SBO", "eval": "held-out", "f1": "F1"}
WORDS |= {"num": "number of", "cpus": "CPUs", "matthews": "Matthews"}
"""Parts of keys and the words to show for them."""


_OF_100 = re.compile("(best_|HasAns_|NoAns_)?(f1|exact|exact_match)")
"""The figures of question answering that are of 100, as its own scripts give them."""


def _titles(keys: Iterable[str], held_out: str, positive_label: str | None = None) -> dict[str, str]:
    """The figures' names; `dev.f1` of two labels also names the positive one, and what is of 100 says so."""
    names = {key: re.split("[/.]", key)[-1] for key in keys}
    answers_questions = not {"exact", "exact_match"}.isdisjoint(names.values())
    titles = {}
    for key, name in names.items():
        of_label = f" of label {positive_label}" if name == "f1" and positive_label is not None else ""
        titles[key] = in_words(key.replace("eval/", f"{held_out}/", 1)) + (
            " (%)" if answers_questions and _OF_100.fullmatch(name) else of_label
        )
    return titles


def in_words(key: str) -> str:
    """A key as a person says it: `eval/nsp_accuracy` is "Held-out NSP accuracy"."""
    said = words(key)
    return said[:1].upper() + said[1:]


def words(key: str) -> str:
    """As `in_words`, for the middle of a sentence."""
    return " ".join(WORDS.get(word, word) for word in re.split("[/._]", key))
