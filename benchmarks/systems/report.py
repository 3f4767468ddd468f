"""Tables and figures of what `run.py` has measured so far."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import Any

from systems.plan import MEASURES, POINT_TASKS, SYSTEMS, System, flops_per_token, folder_of, points_of, run_of, store_of


@dataclass(frozen=True)
class Point:
    """A checkpoint that was fine-tuned; `step` 0 stands for what the run started from.

    Attributes:
        text_mb: millions of bytes of the documents read, as often as they were.
        tokens: tokens seen, in millions.
        minutes: of training on one core that does nothing else.
        petaflop: necessary floating-point operations, in 10^15.
        scores: the figure on dev of each task.
    """

    step: int
    text_mb: float
    tokens: float
    minutes: float
    petaflop: float
    scores: dict[str, float]


@dataclass(frozen=True)
class Curve:
    """A held-out loss of a run, in nats, beside that of knowing only frequencies."""

    system: str
    term: str
    text_mb: list[float]
    losses: list[float]
    floor: float


def read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def text_mb_per_step(out: Path, system: System, run: Path) -> float:
    """Millions of bytes of text that a step reads, by the last checkpoint."""
    last = points_of(run)[-1]
    epochs = read_json(run / "checkpoints" / f"step-{last:08d}" / "state.json")["epochs"]
    return float(epochs * read_json(store_of(out, system) / "manifest.json")["text_bytes"] / 1e6 / last)


def seconds_per_token(out: Path, name: str) -> float:
    """The seconds that a token takes on a core that does nothing else: by the median of the short run's rows, before
    there is one by the fastest tenth of the rows of the run itself, since the rest ran beside other work."""
    short = out / "rates" / folder_of(name) / "metrics.jsonl"
    metrics, quantile = (short, 0.5) if short.exists() else (run_of(out, name) / "metrics.jsonl", 0.9)
    rows = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
    rates = sorted(row["tokens_per_s"] for row in rows if row.get("tokens_per_s"))
    return 1 / float(rates[int(len(rates) * quantile)])


def points(out: Path, name: str, system: System) -> list[Point]:
    """The points of one system: random weights, or the model that it starts from, and its checkpoints, in order."""
    run, flops = run_of(out, name), flops_per_token(out, system)
    a_step, a_token = text_mb_per_step(out, system, run), seconds_per_token(out, name)
    begun = Point(0, 0.0, 0.0, 0.0, 0.0, scores(out, system.same_as or name, 0))
    if system.continues:
        begun = replace(points(out, system.continues, SYSTEMS[system.continues])[-1], step=0)
    found = [begun]
    for step in points_of(run):
        state = read_json(run / "checkpoints" / f"step-{step:08d}" / "state.json")
        own = state["tokens"] / 1e6
        found.append(
            Point(
                step,
                begun.text_mb + step * a_step,
                begun.tokens + own,
                begun.minutes + own * 1e6 * a_token / 60,
                begun.petaflop + flops * own / 1e9,
                scores(out, name, step),
            )
        )
    return found


def scores(out: Path, name: str, step: int) -> dict[str, float]:
    """The scores on the tasks from one checkpoint."""
    paths = {task: out / "scores" / f"{folder_of(name)}-{step}-{task}" / "results.json" for task in POINT_TASKS}
    return {task: read_json(path)["dev"][MEASURES[task].metric] for task, path in paths.items() if path.exists()}


def curves(out: Path, name: str, system: System, text_mb_before: float) -> Iterator[Curve]:
    """The held-out losses of one system's run, each with its own floor.

    Args:
        text_mb_before: what its model had been shown before that run.
    """
    run = run_of(out, name)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    evaluations = [row for row in rows if any(key.startswith("eval/") for key in row)]
    floors = {
        key.removeprefix("loss/"): next(iter(named.values()))
        for key, named in read_json(run / "results.json")["floors"].items()
    }
    floors["nsp"] = log(2)
    if evaluations and (share := evaluations[-1].get("eval/replaced_share")):
        floors["discriminator"] = -share * log(share) - (1 - share) * log(1 - share)
    a_step = text_mb_per_step(out, system, run)
    for term, floor in floors.items():
        shown = [row for row in evaluations if f"eval/{term}_loss" in row]
        if shown:
            text_mb = [text_mb_before + row["step"] * a_step for row in shown]
            yield Curve(name, term, text_mb, [row[f"eval/{term}_loss"] for row in shown], floor)


def table_of_points(found: dict[str, list[Point]]) -> str:
    titles = ["", "step", "MB of text", "million tokens", "minutes", "PFLOP", *POINT_TASKS]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, its in found.items():
        for point in its:
            cells = [f"{point.step:,}", f"{point.text_mb:.1f}", f"{point.tokens:.2f}", f"{point.minutes:.1f}"]
            cells += [f"{point.petaflop:.2f}"]
            cells += [f"{point.scores[task]:.3f}" if task in point.scores else "" for task in POINT_TASKS]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table_of_losses(found: list[Curve]) -> str:
    lines = ["| | held-out loss | first | last | floor | gained |", "|---" * 6 + "|"]
    lines += [
        f"| {curve.system} | {curve.term} | {curve.losses[0]:.3f} | {curve.losses[-1]:.3f} | {curve.floor:.3f} | "
        f"{curve.floor - curve.losses[-1]:.3f} |"
        for curve in found
    ]
    return "\n".join(lines)


def table_of_ends(out: Path, names: Sequence[str]) -> str:
    """A table of means and sample standard deviations over the seeds, random weights beside pre-trained ones."""
    tasks = list(dict.fromkeys(task for system in SYSTEMS.values() for task in system.tasks))
    lines = [f"| | {' | '.join(f'{task} {MEASURES[task].metric}, random / pre-trained' for task in tasks)} |"]
    lines.append("|---" * (len(tasks) + 1) + "|")
    for name in names:
        system, cells = SYSTEMS[name], []
        for task in tasks:
            arms = []
            for arm in ("random", "pretrained"):
                weights_of = system.same_as or name if arm == "random" else name
                summary = out / "ends" / f"{folder_of(weights_of)}-{task}-{arm}" / "summary.json"
                if task not in system.tasks or not summary.exists():
                    arms.append("")
                    continue
                figure = read_json(summary)["combinations"][0]["dev"][MEASURES[task].metric]
                arms.append(f"{figure['mean']:.3f} ± {figure['sd'] or 0:.3f}")
            cells.append(" / ".join(arms) if any(arms) else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw_scores(found: dict[str, list[Point]], to: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.8), layout="constrained")
    for place, task in enumerate(POINT_TASKS):
        axes = figure.add_subplot(1, len(POINT_TASKS), place + 1)
        for name, its in found.items():
            scored = [point for point in its if task in point.scores]
            marks = [point.scores[task] for point in scored]
            axes.plot([point.text_mb for point in scored], marks, marker="o", markersize=4, label=name)
        axes.set_title(f"{task}: {MEASURES[task].metric} on dev, fine-tuned")
        axes.set_xlabel("text read in pre-training, MB (0: random weights)")
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize=9)
    figure.savefig(to, dpi=120)


def draw_losses(found: list[Curve], to: Path) -> None:
    from matplotlib.figure import Figure

    columns = 4
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.4 * rows), layout="constrained")
    for place, curve in enumerate(found):
        axes = figure.add_subplot(rows, columns, place + 1)
        axes.plot(curve.text_mb, curve.losses, marker=".")
        axes.axhline(curve.floor, color="gray", linestyle="--")
        axes.set_title(f"{curve.system}: {curve.term}", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    figure.supxlabel("text read, MB", fontsize=9)
    figure.supylabel("held-out loss, nats (dashed: frequencies alone)", fontsize=9)
    figure.savefig(to, dpi=120)


def report(out: Path, names: Sequence[str]) -> None:
    """Writes `systems.md`, `systems.png` and `systems-losses.png` for those of the systems whose runs exist."""
    done = {name: SYSTEMS[name] for name in names if (run_of(out, name) / "results.json").exists()}
    found = {name: points(out, name, system) for name, system in done.items()}
    losses = [curve for name, system in done.items() for curve in curves(out, name, system, found[name][0].text_mb)]
    tables = [table_of_losses(losses), table_of_points(found), table_of_ends(out, names)]
    (out / "systems.md").write_text("\n\n".join(tables) + "\n", encoding="utf-8")
    draw_scores(found, out / "systems.png")
    draw_losses(losses, out / "systems-losses.png")
    print(*(out / name for name in ("systems.md", "systems.png", "systems-losses.png")), sep="\n")
