"""GLUE's averages, against those that the papers print."""

from __future__ import annotations

import pytest

from unmask.errors import SettingsError
from unmask.tasks.text.glue import AVERAGE_RULES, AVERAGES, FIGURE_NAMES, Figure, glue_averages

BERT_LARGE: dict[str, Figure] = {
    "mnli": (86.7, 85.9), "qqp": (None, 72.1), "qnli": 92.7, "sst2": 94.9, "cola": 60.5, "stsb": (None, 86.5),
    "mrpc": (None, 89.3), "rte": 70.1,
}  # fmt: skip
BERT_BASE: dict[str, Figure] = {
    "mnli": (84.6, 83.4), "qqp": (None, 71.2), "qnli": 90.5, "sst2": 93.5, "cola": 52.1, "stsb": (None, 85.8),
    "mrpc": (None, 88.9), "rte": 66.4,
}  # fmt: skip
GPT_IN_BERTS_TABLE: dict[str, Figure] = {
    "mnli": (82.1, 81.4), "qqp": (None, 70.3), "qnli": 87.4, "sst2": 91.3, "cola": 45.4, "stsb": (None, 80.0),
    "mrpc": (None, 82.3), "rte": 56.0,
}  # fmt: skip


@pytest.mark.parametrize(("figures", "printed"), [(BERT_LARGE, 82.1), (BERT_BASE, 79.6), (GPT_IN_BERTS_TABLE, 75.1)])
def test_the_averages_of_berts_table(figures: dict[str, Figure], printed: float) -> None:
    averages = glue_averages(figures)
    assert list(averages) == ["bert"]  # nothing else can be told of these figures
    assert averages["bert"] == pytest.approx(printed, abs=0.05)  # printed to one decimal


def test_the_averages_of_gpt1s_table() -> None:
    # Table 5: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE; without pre-training 59.9, LSTM 69.1.
    for row, printed in (
        ((45.4, 91.3, 82.3, 82.0, 70.3, 81.8, 88.1, 56.0), 74.7),
        ((18.9, 84.0, 79.4, 30.9, 65.5, 75.7, 71.2, 53.8), 59.9),
        ((47.9, 92.0, 84.9, 83.2, 69.8, 81.1, 86.9, 54.4), 75.0),
        ((30.3, 90.5, 83.2, 71.8, 68.1, 73.7, 81.1, 54.6), 69.1),
    ):
        cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte = row
        figures: dict[str, Figure] = {
            "cola": cola, "sst2": sst2, "mrpc": (None, mrpc), "stsb": (stsb, None), "qqp": (None, qqp),
            "mnli": (mnli, mnli), "qnli": qnli, "rte": rte,
        }  # fmt: skip
        # Each figure is off by up to .05, and so their mean; what is printed by .05 again (69.16 as 69.1).
        assert glue_averages(figures) == {"gpt1": pytest.approx(printed, abs=0.1)}


def test_the_score_of_the_leaderboard() -> None:
    # BERT-Large on gluebenchmark.com: the second figures of MRPC, STS-B and QQP and WNLI stand there alone.
    figures = BERT_LARGE | {"mrpc": (85.4, 89.3), "stsb": (87.6, 86.5), "qqp": (89.3, 72.1), "wnli": 65.1}
    assert glue_averages(figures)["glue"] == pytest.approx(80.5, abs=0.05)


def test_the_averages_of_electras_dev_table() -> None:
    # RoBERTa's dev table: MNLI, QNLI, QQP, RTE, SST-2, MRPC, CoLA, STS-B; ELECTRA prints BERT-Large's mean as 84.0.
    figures: dict[str, Figure] = {
        "mnli": (86.6, None), "qnli": 92.3, "qqp": (91.3, None), "rte": 70.4, "sst2": 93.2, "mrpc": (88.0, None),
        "cola": 60.6, "stsb": (None, 90.0),
    }  # fmt: skip
    assert glue_averages(figures) == {"electra_dev": pytest.approx(84.0, abs=0.051)}  # 84.05


def test_figures_that_are_none_of_glues_are_refused() -> None:
    with pytest.raises(SettingsError, match="no figure of 'squad1' is averaged: expected cola, sst2"):
        glue_averages({"squad1": 90.0})
    with pytest.raises(SettingsError, match="mrpc has 1 figures: expected accuracy and f1, None for what is not known"):
        glue_averages({"mrpc": 88.9})
    assert glue_averages({}) == {}
    assert AVERAGE_RULES.keys() == AVERAGES.keys()
    assert all(name in FIGURE_NAMES for average in AVERAGES.values() for name in average)
