"""The page of `unmask evaluate --pairs --out`: how often the right sentence is likelier, paradigm by paradigm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.reports.figure import Panel, Series, draw_wide
from unmask.reports.layout import write_page

COIN = 50.0
"""The percentage of pairs that guessing gets right."""


def write_pairs_page(path: Path, model: str, pairs: str, results: Sequence[Mapping[str, Any]], overwrite: bool) -> None:
    """Writes the page.

    Args:
        model: what was measured, as it was given.
        pairs: the file or folder of pairs.
        results: what `unmask.inference.pairs.evaluate_pairs` returns, of one model; or of the checkpoints of a run, in
            their order, each with its `step`. The table is that of the last.

    Raises:
        OutputError: as `unmask.reports.layout.write_page`.
    """
    last = results[-1]
    mean = last["metrics"]
    curve = None
    if len(results) > 1:
        rows = [{"step": result["step"], "mean": result["metrics"]["accuracy"]} for result in results]
        panel = Panel("Mean of all paradigms by step", Series.of((), ""), Series.of(rows, "mean"), {"a coin": COIN})
        curve = draw_wide(panel)
    by_term: dict[str, list[tuple[str, Mapping[str, float]]]] = {}
    for name, figures in last["paradigms"].items():
        by_term.setdefault(figures["term"], []).append((name, figures))
    write_page(
        path,
        "pairs.html",
        overwrite,
        title=f"{model} on {pairs}",
        above=None,
        tiles=[
            ("Mean of all paradigms", f"{mean['accuracy']:.1f} %"),
            ("95 % interval", f"{mean['low']:.1f}–{mean['high']:.1f}"),
            ("Pairs", f"{last['n']:,}"),
            ("Paradigms", f"{len(last['paradigms']):,}"),
        ],
        alike=last["alike"],
        num_pairs=last["n"],
        curve=curve,
        terms=[(term, last["terms"].get(term), members) for term, members in by_term.items()],
    )
