"""GLUE's averages: which figures of which data sets the papers average.

Wang et al. 2019; Devlin et al. 2019, table 1; Radford et al. 2018, table 5; Clark et al. 2020.
"""

from __future__ import annotations

from collections.abc import Mapping

from unmask.errors import SettingsError

Figure = float | tuple[float | None, ...]

FIGURE_NAMES: dict[str, tuple[str, ...]] = {
    "cola": ("matthews_correlation",),
    "sst2": ("accuracy",),
    "mrpc": ("accuracy", "f1"),
    "stsb": ("pearson", "spearmanr"),
    "qqp": ("accuracy", "f1"),
    "mnli": ("accuracy, matched", "accuracy, mismatched"),
    "qnli": ("accuracy",),
    "rte": ("accuracy",),
    "wnli": ("accuracy",),
}
"""The figures that `glue_averages` takes for each data set, in this order."""

_FIRST, _SECOND, _BOTH = (0,), (1,), (0, 1)
_FIRST_OF_EACH = {name: (_FIRST,) for name in FIGURE_NAMES if name != "wnli"}

AVERAGES: dict[str, dict[str, tuple[tuple[int, ...], ...]]] = {
    "bert": {**_FIRST_OF_EACH, "mnli": (_FIRST, _SECOND), **dict.fromkeys(("qqp", "stsb", "mrpc"), (_SECOND,))},
    "gpt1": {**_FIRST_OF_EACH, "mnli": (_BOTH,), "mrpc": (_SECOND,), "qqp": (_SECOND,)},
    "glue": {name: (tuple(range(len(figures))),) for name, figures in FIGURE_NAMES.items()},
    "electra_dev": {**_FIRST_OF_EACH, "stsb": (_SECOND,)},
}
"""The columns of each average: which figures of a data set (`FIGURE_NAMES`) are averaged to make one.

`bert`: table 1 of BERT. `gpt1`: table 5 of GPT-1. `glue`: the leaderboard's score. `electra_dev`: ELECTRA's dev tables
(and RoBERTa's, without its WNLI). See `AVERAGE_RULES`.
"""

AVERAGE_RULES: dict[str, str] = {
    "bert": "BERT's nine columns: MNLI matched and mismatched, F1 of QQP and MRPC, Spearman of STS-B, without WNLI",
    "gpt1": "GPT-1's eight: the mean of MNLI's two, F1 of QQP and MRPC, Pearson of STS-B, without WNLI",
    "glue": "the leaderboard's score: nine tasks with WNLI, the mean where a task has two figures",
    "electra_dev": "ELECTRA's eight on dev: MNLI matched, accuracy of QQP and MRPC, Spearman of STS-B, without WNLI",
}
"""A description of each average."""


def glue_averages(figures: Mapping[str, Figure]) -> dict[str, float]:
    """The averages of GLUE figures that the papers report, by the names in `AVERAGES`.

    Args:
        figures: by data set, in 0..1 or 0..100; where `FIGURE_NAMES` has two, both in that order, None for one that is
            not known.

    Returns:
        The averages whose figures are all known.

    Raises:
        SettingsError: a name is not a data set of GLUE, or has the wrong number of figures.
    """
    known: dict[str, tuple[float | None, ...]] = {}
    for name, figure in figures.items():
        if name not in FIGURE_NAMES:
            raise SettingsError(f"no figure of {name!r} is averaged: expected {', '.join(FIGURE_NAMES)}")
        known[name] = figure if isinstance(figure, tuple) else (figure,)
        if len(known[name]) != len(FIGURE_NAMES[name]):
            raise SettingsError(
                f"{name} has {len(known[name])} figures: expected {' and '.join(FIGURE_NAMES[name])}, None for what is "
                "not known"
            )
    averages = {}
    for average, columns in AVERAGES.items():
        if not missing_figures(average, known):
            chosen = [[known[name][i] or 0.0 for i in which] for name, each in columns.items() for which in each]
            averages[average] = sum(sum(column) / len(column) for column in chosen) / len(chosen)
    return averages


def missing_figures(average: str, known: Mapping[str, tuple[float | None, ...]]) -> list[str]:
    """The figures still missing for an average of `AVERAGES`, such as `mnli accuracy, mismatched`."""
    return [
        f"{name} {FIGURE_NAMES[name][i]}"
        for name, each in AVERAGES[average].items()
        for i in dict.fromkeys(i for which in each for i in which)
        if known.get(name, (None, None))[i] is None
    ]
