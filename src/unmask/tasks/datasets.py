"""Published data sets: how their files are laid out.

Adding one is an entry of `DATA_SETS`, and its name in `unmask.tasks.settings.TaskName`.
"""

from __future__ import annotations

from dataclasses import dataclass

from unmask.tasks.settings import ColumnSettings


@dataclass(frozen=True)
class DataSet:
    """The layout of a data set's files.

    Attributes:
        kind: the task it is for, a key of `unmask.tasks.table.TASKS`.
        layouts: the columns in each form that it is published in.
        labels: in the order of their ids, spelt as in the files.
        unlabelled: labels that say that annotators did not agree on one.
        txt_format: the format of its files that call themselves `.txt`.
    """

    kind: str
    layouts: tuple[ColumnSettings, ...]
    labels: tuple[str, ...]
    unlabelled: frozenset[str] = frozenset()
    txt_format: str | None = None


DATA_SETS: dict[str, DataSet] = {
    # Socher et al. 2013, as in GLUE: 0 is negative, 1 positive.
    "sst2": DataSet("classification", (ColumnSettings(text="sentence"),), ("0", "1")),
    # Bowman et al. 2015: reduced to three fields, and as the authors publish it.
    "snli": DataSet(
        "classification",
        (
            ColumnSettings(text_a="premise", text_b="hypothesis"),
            ColumnSettings(text_a="sentence1", text_b="sentence2", label="gold_label"),
        ),
        ("entailment", "neutral", "contradiction"),
        unlabelled=frozenset({"-"}),
    ),
    # Naver sentiment movie corpus: 0 is negative, 1 positive; `ratings_train.txt` is tab-separated.
    "nsmc": DataSet("classification", (ColumnSettings(text="document"),), ("0", "1"), txt_format=".tsv"),
}
