"""A reliability picture: how often predictions are right against how sure they are, as inline SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from unmask.reports.figure import finished, new_figure

_WIDTH, _HEIGHT = 460, 330
"""In CSS pixels."""
_FAINTEST = 0.25
"""The strength of a bar with hardly any predictions, where the fullest has 1."""


def draw_reliability(bins: Sequence[Mapping[str, Any]]) -> Markup:
    """A bar for each range of certainty, as high as its predictions are right, beside the line on which they would be
    as right as they are sure.

    Args:
        bins: those that hold predictions, each with `from`, `to`, `count` and `accuracy`.
    """
    most = max((each["count"] for each in bins), default=1)
    with new_figure("reliability", _WIDTH, _HEIGHT) as (figure, axes, ink):
        for each in bins:
            axes.bar(
                (each["from"] + each["to"]) / 2,
                each["accuracy"],
                0.9 * (each["to"] - each["from"]),
                color=ink["training"],
                alpha=_FAINTEST + (1 - _FAINTEST) * each["count"] / most,
            )
        axes.plot([0, 1], [0, 1], color=ink["floor"], linewidth=1.3, linestyle=(0, (5, 4)))
        axes.set_xlim(min((each["from"] for each in bins), default=0.0), 1)
        axes.set_ylim(0, 1)
        return finished(figure, axes, ink, "Accuracy by certainty")
