"""What the doctor says of a search, by its summary alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from support.searches import new_recipe
from unmask.doctor.diagnosis import diagnose
from unmask.doctor.run.search_checks import check_search
from unmask.errors import InputError, SettingsError
from unmask.finetuning.search.summary import TrialOutcome, summarise
from unmask.finetuning.search.trial import Trial
from unmask.training.run.best import Metric


def outcome(rate: float, seed: int, accuracy: float, **more: Any) -> TrialOutcome:
    dev = {} if "error" in more else {"loss": 1 - accuracy, "accuracy": accuracy}
    floors = {"dev.accuracy": {"most frequent label of train": 0.6}}
    given = {"learning_rate": rate, "batch_size": 32, "epochs": 3, "seed": seed}
    trial = Trial(f"lr{rate:g}_seed{seed}", f"lr{rate:g}", f"lr{rate:g}", given, new_recipe({}))
    return TrialOutcome(trial, dev, {}, floors=floors, **more)


SOUND = [
    *(outcome(1e-4, seed, value) for seed, value in enumerate((0.7, 0.71))),
    *(outcome(2e-4, seed, value) for seed, value in enumerate((0.9, 0.91))),
    *(outcome(4e-4, seed, value) for seed, value in enumerate((0.8, 0.81))),
]


def found(outcomes: list[TrialOutcome], num_trials: int | None = None) -> dict[str, str]:
    summary = summarise(outcomes, Metric("accuracy"), num_trials or len(outcomes))
    return {finding.name: finding.level for finding in check_search(summary)}


def test_a_sound_search() -> None:
    assert found(SOUND) == {"learned": "good"}


def test_the_best_at_an_edge_and_within_chance() -> None:
    low = [outcome(1e-4, 0, 0.75), outcome(1e-4, 1, 0.95), outcome(2e-4, 0, 0.7), outcome(2e-4, 1, 0.92)]
    assert found(low) == {"learned": "good", "best-at-edge-learning-rate": "note", "within-chance": "note"}
    once = [outcome(1e-4, 0, 0.7), outcome(2e-4, 0, 0.9), outcome(4e-4, 0, 0.8)]
    assert found(once) == {"learned": "good", "no-restarts": "note"}
    assert found(once[:1]) == {"learned": "good"}


def test_configurations_are_compared_seed_by_seed() -> None:
    """As `unmask compare` does: a spread over seeds that both share says nothing of their difference, nor does a large
    difference of two runs say much."""
    one = [outcome(1e-4, seed, value) for seed, value in enumerate((0.65, 0.75, 0.85))]
    steady = [*one, *(outcome(2e-4, seed, value) for seed, value in enumerate((0.63, 0.73, 0.83)))]
    assert "within-chance" not in found(steady)
    few = [outcome(1e-4, 0, 0.80), outcome(1e-4, 1, 0.90), outcome(2e-4, 0, 0.77), outcome(2e-4, 1, 0.71)]
    summary = summarise(few, Metric("accuracy"), 4)
    [note] = [each.message for each in check_search(summary) if each.name == "within-chance"]
    assert note == (
        "the two best configurations differ by 0.11 in their mean accuracy over 2 seeds (95 %: -0.91 to 1.1): which is "
        "better is not known"
    )
    others = [*few[:2], outcome(2e-4, 2, 0.77), outcome(2e-4, 3, 0.71)]
    assert "within-chance" not in found(others)


def test_a_configuration_of_which_one_run_is_left_has_no_spread() -> None:
    """Those that have one are compared all the same, and nobody is told to set restarts that were set."""
    failed = [outcome(4e-4, 0, 0.95), outcome(4e-4, 1, math.nan, error="the loss is not finite")]
    names = {"failed-runs", "learned", "best-at-edge-learning-rate"}
    assert found([*SOUND[:4], *failed]).keys() == names
    close = [outcome(1e-4, 0, 0.75), outcome(1e-4, 1, 0.95), outcome(2e-4, 0, 0.7), outcome(2e-4, 1, 0.92)]
    assert found([*close, *failed]).keys() == {*names, "within-chance"}
    assert found([*SOUND[:2], *failed]).keys() == names


@pytest.mark.parametrize(
    ("outcomes", "num_trials", "told"),
    [
        ([outcome(1e-4, 0, 0.6), outcome(2e-4, 0, 0.55)], 2, {"nothing-learned": "fault"}),
        ([outcome(1e-4, 0, 0.7, degenerate="all are 'no'")], 1, {"nothing-learned": "fault"}),
        ([outcome(1e-4, 0, 0.9), outcome(1e-4, 1, 0.5, degenerate="all")], 2, {"degenerate-runs": "warning"}),
        (
            [outcome(1e-4, 0, 0.9), outcome(1e-4, 1, math.nan, error="the loss is not finite")],
            5,
            {"unfinished-search": "warning", "failed-runs": "warning", "learned": "good"},
        ),
    ],
)
def test_what_went_wrong(outcomes: list[TrialOutcome], num_trials: int, told: dict[str, str]) -> None:
    assert found(outcomes, num_trials) == told


def test_of_test_no_figure_is_shown_that_its_answers_chose(tmp_path: Path) -> None:
    """But the one with the model's own threshold, as everywhere."""
    its = {"best_f1": 0.7, "f1": 0.6}
    trials = [Trial(f"s{seed}", "c", "c", {"seed": seed}, new_recipe({})) for seed in (0, 1)]
    runs = [TrialOutcome(trial, {"best_f1": 0.8}, its) for trial in trials]
    (tmp_path / "recipe.yaml").write_text("seed: 1\n")
    (tmp_path / "summary.json").write_text(json.dumps(summarise(runs, Metric("best_f1"), 2)))
    means, table = diagnose(tmp_path).tables
    assert (means.columns[2:4], means.rows[0][2:4]) == (("dev", "test (f1)"), ("0.8 ± 0", "0.6 ± 0"))
    assert (table.columns[1:3], table.rows[0][1:3]) == (("best_f1 on dev", "f1 on test"), ("0.8", "0.6"))


def test_a_search_is_examined_by_its_directory(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("seed: 1\n")
    (tmp_path / "summary.json").write_text(json.dumps(summarise(SOUND, Metric("accuracy"), 6)))
    diagnosis = diagnose(tmp_path)
    assert (diagnosis.kind, dict(diagnosis.headline)["Runs"]) == ("search", "6 of 6")
    means, runs = diagnosis.tables
    assert means.rows[1] == ("lr0.0002", "2", "0.905 ± 0.0071", "–", "", "")
    assert means.note == "To compare with: most frequent label of train 0.6."
    assert runs.rows[2] == ("lr0.0002_seed0", "0.9", "–", "")
    with pytest.raises(SettingsError, match="is a search, whose recipe is settled: leave out seed=2"):
        diagnose(tmp_path, ["seed=2"])
    (tmp_path / "summary.json").write_text('{"metric": 3}')
    with pytest.raises(InputError, match=r"summary\.json: cannot be read as the summary of a search"):
        diagnose(tmp_path)
