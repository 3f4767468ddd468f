"""Curves over steps as inline SVG with no text but numbers: titles and legends are left to the page around it.

The SVG uses the page's colours (`var(--...)`), so that light and dark both work, and draws no letters, so that no font
can be missing.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

MAX_POINTS = 1500
"""A curve with more points is thinned out: the page stays small, and a screen shows no more."""

FEW_POINTS = 20
"""A training curve of up to this many points has each one marked: between them nothing was logged."""

NUM_RAW = 100
"""A training curve of this many points or more is smoothed, and the raw one drawn behind it as a fainter line."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """The values of a key of metrics.jsonl, by step; null is NaN."""

    steps: Floats
    values: Floats

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], key: str) -> Series:
        points = [(row["step"], math.nan if row[key] is None else row[key]) for row in rows if key in row]
        return cls(*np.array(points, dtype=np.float64).reshape(-1, 2).T)

    @property
    def is_drawable(self) -> bool:
        return bool(np.isfinite(self.values).any())

    @property
    def last(self) -> float:
        """The mean of the last fiftieth of a drawable series."""
        finite = self.values[np.isfinite(self.values)]
        return float(finite[-max(1, len(finite) // 50) :].mean())

    def smoothed(self) -> Series:
        """The mean of the finite values in the fiftieth of the series around each point, in less near its ends."""
        places = np.arange(len(self.values))
        reach = np.minimum(places, len(places) // 100)  # no further ahead than back: a steep start is not flattened
        first, end = places - reach, np.minimum(places + reach + 1, len(places))
        finite = np.isfinite(self.values)
        sums = np.concatenate([[0.0], np.cumsum(np.where(finite, self.values, 0.0))])
        counts = np.concatenate([[0], np.cumsum(finite)])
        means = (sums[end] - sums[first]) / np.maximum(counts[end] - counts[first], 1)
        return Series(self.steps, np.where(finite, means, math.nan))

    def thinned(self) -> Series:
        every = -(-len(self.steps) // MAX_POINTS) or 1
        return Series(self.steps[::-1][::every][::-1], self.values[::-1][::every][::-1])


@dataclass(frozen=True)
class Panel:
    """One figure: a training curve, held-out points, and floors to compare with."""

    title: str
    training: Series
    held_out: Series
    floors: Mapping[str, float] = field(default_factory=dict)
    is_noisy: bool = True  # True smooths a long training curve
    # steps done when a part of the run (a phase, a stage) begins, by its name; each is a vertical line
    parts: Mapping[str, float] = field(default_factory=dict)
    # the end of the axis of steps, which then begins at 0; None: both ends follow the points
    last_step: float | None = None
    # of each held-out point, drawn to both sides of it; NaN: none
    spread: Floats | None = None

    @property
    def is_drawable(self) -> bool:
        return self.training.is_drawable or self.held_out.is_drawable

    @property
    def is_curve(self) -> bool:
        """Whether there are two points to draw a line between."""
        return any(np.isfinite(series.values).sum() > 1 for series in (self.training, self.held_out))

    @property
    def is_smoothed(self) -> bool:
        """Whether the training curve is smoothed, and the raw one drawn behind it."""
        return self.is_noisy and len(self.training.steps) >= NUM_RAW

    @property
    def num_not_finite(self) -> int:
        return int(sum(np.isnan(series.values).sum() for series in (self.training, self.held_out)))


INKS = {
    "axes": ("#010101", "var(--muted)"),
    "grid": ("#020202", "var(--line)"),
    "training": ("#030303", "var(--training)"),
    "held-out": ("#040404", "var(--held-out)"),
    "floor": ("#050505", "var(--floor)"),
}
"""Placeholder colours for matplotlib, and the page's variables put in their place: light or dark is up to the page."""


def draw(panel: Panel, width: int, height: int) -> Markup:
    """A panel as an SVG element without any text but numbers; sizes in CSS pixels."""
    with new_figure(f"{panel.title} {width}", width, height) as (figure, axes, ink):
        _draw_series(axes, panel, ink)
        for value in panel.floors.values():
            axes.axhline(value, color=ink["floor"], linewidth=1.3, linestyle=(0, (5, 4)))
        for step in panel.parts.values():
            axes.axvline(step, color=ink["axes"], linewidth=1, zorder=1)
        _bound(axes, panel)
        _number(axes.xaxis, max(3, width // 110), integer=True)
        _number(axes.yaxis, max(3, height // 45))
        return finished(figure, axes, ink, panel.title)


def draw_wide(panel: Panel) -> Markup:
    """A panel as wide as the page, drawn for a desk and for a telephone; the style shows the one that fits."""
    drawn = draw(panel, 960, 330), draw(panel, 460, 260)
    return Markup('<div class="for-desk">{}</div><div class="for-telephone">{}</div>').format(*drawn)


@contextmanager
def new_figure(salt: str, width: int, height: int) -> Iterator[tuple[Any, Any, dict[str, str]]]:
    """A figure to be `finished` inside the context, its axes, and the colours to draw with.

    Args:
        salt: the ids in the SVG are made of it.
        width, height: in CSS pixels.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "font.family": "sans-serif"}):
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        yield figure, figure.add_subplot(), {name: drawn for name, (drawn, _) in INKS.items()}


def finished(figure: Any, axes: Any, ink: Mapping[str, str], title: str) -> Markup:
    """A figure as an element of a page, its axes drawn as in all figures."""
    axes.tick_params(length=0, pad=6, labelsize=11, labelcolor=ink["axes"])
    axes.grid(axis="y", color=ink["grid"], linewidth=1)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(ink["grid"])
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    return _inline(drawn.getvalue(), title)


def _draw_series(axes: Any, panel: Panel, ink: Mapping[str, str]) -> None:
    curve, held_out = panel.training, panel.held_out
    if panel.is_smoothed:
        raw, curve = curve.thinned(), curve.smoothed()
        axes.plot(raw.steps, raw.values, color=ink["training"], linewidth=1, alpha=0.25)
    points: dict[str, Any] = {"markersize": 4, "clip_on": False, "in_layout": False}  # not cut off at the axes
    marker = "o" if len(curve.steps) <= FEW_POINTS else None
    curve = curve.thinned()
    axes.plot(curve.steps, curve.values, color=ink["training"], linewidth=1.8, marker=marker, **points)
    axes.plot(held_out.steps, held_out.values, color=ink["held-out"], linewidth=1.2, marker="o", **points)
    if panel.spread is not None:
        ends = held_out.values - panel.spread, held_out.values + panel.spread
        axes.vlines(held_out.steps, *ends, color=ink["held-out"], linewidth=1.2)


def _bound(axes: Any, panel: Panel) -> None:
    """Sets the ends of both axes: the steps of the whole run, and nothing below 0 for what is never negative."""
    if panel.last_step:
        margin = 0.01 * panel.last_step
        axes.set_xlim(-margin, panel.last_step + margin)
    values = np.concatenate([panel.training.values, panel.held_out.values, list(panel.floors.values())])
    if np.nanmin(values) >= 0 > axes.get_ylim()[0]:
        axes.set_ylim(bottom=0)


def _number(axis: Any, most: int, integer: bool = False) -> None:
    """Writes round numbers along an axis, about `most` of them at most."""
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    axis.set_major_locator(MaxNLocator(nbins=most, integer=integer, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(ScalarFormatter(useOffset=False))


def _inline(svg: str, title: str) -> Markup:
    """Makes matplotlib's file an element of a page: no prologue, no metadata, page colours, unique ids."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)
    for drawn, shown in INKS.values():
        svg = svg.replace(drawn, shown)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1))
