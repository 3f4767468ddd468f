"""What the runs of a search come to: means and spread, the best, and those that have learned nothing."""

from __future__ import annotations

import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from support.searches import Pretended, new_recipe, of_accuracy, read_json, run_search
from unmask.config import build_settings, read_settings_file
from unmask.errors import SettingsError
from unmask.finetuning.search.summary import TrialOutcome, describe, runs_of_best_point, summarise
from unmask.finetuning.search.trial import Trial
from unmask.io.paths import RECIPE
from unmask.recipe.tree import FinetuneRecipe
from unmask.training.run.best import Metric

ACCURACY, MSE = Metric("accuracy"), Metric("mse", lower_is_better=True)


def test_means_and_spread_over_restarts_and_the_best_apart(tmp_path: Path) -> None:
    dev = {1e-5: [0.70, 0.80, 0.75], 2e-5: [0.90, 0.60, 0.60]}
    test = {1e-5: [0.61, 0.62, 0.69], 2e-5: [0.50, 0.52, 0.99]}

    def figures(settings: FinetuneRecipe) -> dict[str, Any]:
        rate, seed = settings.optimizer.learning_rate, settings.seed
        return of_accuracy(dev[rate][seed], test={"accuracy": test[rate][seed]})

    run = Pretended(figures)
    summary = run_search(tmp_path / "out", new_recipe({"learning_rates": [1e-5, 2e-5], "restarts": 3}), run)
    low, high = summary["combinations"]
    assert low["name"] == "lr1e-05_batch16_epochs3"
    assert (low["n"], high["n"]) == (3, 3)
    # .75 + (-.05, .05, 0): the sample variance is (.0025 + .0025) / 2; of (.2, -.1, -.1) it is .06 / 2
    assert low["dev"]["accuracy"] == {"mean": pytest.approx(0.75), "median": 0.75, "sd": pytest.approx(0.05)}
    expected = {"mean": pytest.approx(0.7), "median": 0.6, "sd": pytest.approx(math.sqrt(0.03))}
    assert high["dev"]["accuracy"] == expected
    assert low["test"]["accuracy"]["sd"] == pytest.approx(statistics.stdev(test[1e-5]))
    assert low["dev"]["loss"]["mean"] == pytest.approx(0.25)
    best = summary["best_on_dev"]
    assert (best["trial"], best["dev"]["accuracy"]) == ("lr2e-05_batch16_epochs3_seed0", 0.9)
    assert best["test"] == {"accuracy": 0.5}  # its own, however bad
    assert best["all_runs_of_it"]["test"]["accuracy"]["mean"] == pytest.approx(statistics.fmean(test[2e-5]))
    assert low["best_on_dev"]["trial"] == "lr1e-05_batch16_epochs3_seed1"
    model = tmp_path / "out" / "model" / "config.json"
    assert read_json(model) == {"made_by": "lr2e-05_batch16_epochs3_seed0"}
    assert build_settings(FinetuneRecipe, read_settings_file(tmp_path / "out" / RECIPE), "it").search.restarts == 3
    page = (tmp_path / "out" / "report.html").read_text()
    assert "0.75 ± 0.05" in page
    assert "<td>0.7 ± 0.17, 0.6 (3)</td>" in page
    assert page.count("<circle") == 6
    assert re.search("leftmost 0[.0-9]*, rightmost 0[.0-9]*<", page)
    assert "<h2>Accuracy of every run on dev</h2>" in page
    assert "<tr><th></th><th>lr1e-05_batch16_epochs3</th><th>lr2e-05_batch16_epochs3</th></tr>" in page
    assert "<tr><td>dev accuracy</td><td>0.75 ± 0.05</td><td>0.7 ± 0.17</td></tr>" in page
    assert not list((tmp_path / "out").glob("trials/*/checkpoints"))


def test_of_test_the_figure_with_the_models_own_threshold_is_shown(tmp_path: Path) -> None:
    figures = {"loss": 1.0, "best_f1": 61.0, "f1": 60.0}
    run = Pretended(lambda _: {"dev": figures, "test": {"loss": 1.0, "f1": 52.0, "best_f1": 55.0}})
    summary = run_search(tmp_path / "out", new_recipe({"restarts": 2}, task={"name": "squad2"}), run)
    assert next(iter(describe(summary))).endswith("best_f1 61 ± 0 on dev; f1 52 ± 0 on test (mean ± sd of 2 runs)")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<th>mean F1 ± sd on test</th>" in page


@pytest.mark.parametrize(
    ("results", "told"),
    [
        ({}, []),
        ({"calibration": {"expected_calibration_error": 0.1}}, []),
        ({"thresholds_chosen_on": "dev"}, ["Thresholds were chosen on dev"]),
        ({"calibration": {"temperature": 1.4}}, ["A temperature was chosen on dev"]),
        ({"early_stopping": {"step": 4, "evaluations": 3}}, ["Models are those of their best evaluations on dev"]),
    ],
)
def test_what_was_chosen_on_dev_is_told(tmp_path: Path, results: dict[str, Any], told: list[str]) -> None:
    run_search(tmp_path / "out", new_recipe({"restarts": 2}), Pretended(lambda _: of_accuracy(0.8, **results)))
    page = (tmp_path / "out" / "report.html").read_text()
    assert re.findall(r"(?:Thresholds were|A temperature was) chosen on dev|Models are .* on dev", page) == told


def test_lower_is_better_where_it_is(tmp_path: Path) -> None:
    run = Pretended(lambda settings: {"dev": {"loss": 1.0, "mse": [0.3, 0.1, 0.2][settings.seed]}})
    summary = run_search(tmp_path / "out", new_recipe({"restarts": 3}, task={"name": "regression"}), run)
    assert (summary["metric"], summary["best_on_dev"]["trial"][-5:]) == ("mse", "seed1")


def test_the_metric_can_be_named(tmp_path: Path) -> None:
    settings = new_recipe({"restarts": 2}, train={"epochs": 1, "metric": "loss"})
    run = Pretended(lambda settings: {"dev": {"loss": [0.3, 0.4][settings.seed], "accuracy": 0.1 * settings.seed}})
    assert run_search(tmp_path / "out", settings, run)["best_on_dev"]["dev"] == {"loss": 0.3, "accuracy": 0.0}
    unknown = new_recipe({"restarts": 2}, train={"epochs": 1, "metric": "f1"})
    with pytest.raises(SettingsError, match=r"train\.metric=f1: the task measures loss, accuracy"):
        run_search(tmp_path / "other", unknown, run)


def test_degenerate_runs_are_named_and_both_means_told(tmp_path: Path) -> None:
    values = [0.8, 0.5, 0.9, 0.5]

    def figures(settings: FinetuneRecipe) -> dict[str, Any]:
        value = values[settings.seed]
        return of_accuracy(value, degenerate="all 400 predictions are 'yes'" if value == 0.5 else None)

    summary = run_search(tmp_path / "out", new_recipe({"restarts": 4}), Pretended(figures))
    (row,) = summary["combinations"]
    assert [name[-5:] for name in row["degenerate"]] == ["seed1", "seed3"]
    assert (row["n"], row["without_degenerate"]["n"]) == (4, 2)
    assert row["dev"]["accuracy"]["mean"] == pytest.approx(0.675)
    assert row["without_degenerate"]["dev"]["accuracy"]["mean"] == pytest.approx(0.85)
    assert "all 400 predictions are &#39;yes&#39;" in (tmp_path / "out" / "report.html").read_text()
    line = next(iter(describe(summary)))
    assert "accuracy 0.675 ± 0.21 on dev (mean ± sd of 4 runs); degenerate: lr5e-05_batch16_epochs3_seed1, " in line
    assert line.endswith("(without: 0.85 ± 0.071)")


def test_the_page_escapes_what_a_run_says(tmp_path: Path) -> None:
    run = Pretended(lambda settings: of_accuracy(0.5, degenerate="all are '<script>alert(1)</script>'"))
    run_search(tmp_path / "<b>out", new_recipe({"restarts": 2}), run)
    page = (tmp_path / "<b>out" / "report.html").read_text()
    assert "<script" not in page
    assert "<b>out" not in page
    assert page.count("&lt;script&gt;") == 3  # the verdict and two runs


@pytest.mark.parametrize(
    ("value", "more", "told"),
    [
        (0.5, {},
         "The best run's accuracy on dev, 0.5, is no better than most frequent label of train 0.5. Nothing was "),
        (0.9, {"degenerate": "all 9 predictions are 'no'"},
         "Not even the best run on dev has learned anything: all 9 "),
        (0.51, {}, None),
    ],
)  # fmt: skip
def test_a_search_that_has_learned_nothing_says_so(
    tmp_path: Path, value: float, more: dict[str, Any], told: str | None
) -> None:
    floors = {"dev.accuracy": {"most frequent label of train": 0.5}}
    run = Pretended(lambda settings: of_accuracy(value, floors=floors, **more))
    summary = run_search(tmp_path / "out", new_recipe({"restarts": 2}), run)
    *_, last = describe(summary)
    page = (tmp_path / "out" / "report.html").read_text()
    assert ('class="verdict"' in page) == (told is not None)
    assert last.startswith("best run on dev" if told is None else told)


def test_a_figure_that_is_not_a_number_is_null(tmp_path: Path) -> None:
    run = Pretended(lambda settings: {"dev": {"loss": 1.0, "pearson": [math.nan, 0.2][settings.seed]}})
    summary = run_search(tmp_path / "out", new_recipe({"restarts": 2}), run)
    assert summary["best_on_dev"]["dev"]["pearson"] == 0.2
    assert summary["combinations"][0]["dev"]["pearson"] == {"mean": None, "median": None, "sd": None}
    assert summary["trials"][0]["dev"]["pearson"] is None


def trial(name: str, configuration: str, point: str) -> Trial:
    return Trial(name, configuration, point, {}, new_recipe({}))


def test_a_figure_that_not_all_runs_have_has_no_mean() -> None:
    """Of a search that was resumed by a version with another metric."""
    figures = [{"accuracy": 0.5}, {"accuracy": 0.6, "f1": 0.7}]
    outcomes = [TrialOutcome(trial(f"a_seed{n}", "a", "a"), dev=dev, test={}) for n, dev in enumerate(figures)]
    for order in (outcomes, outcomes[::-1]):
        assert summarise(order, ACCURACY, 2)["combinations"][0]["dev"].keys() == {"accuracy"}


def of_mse(configuration: str, point: str, value: float, **more: Any) -> TrialOutcome:
    return TrialOutcome(trial(f"{configuration}_seed0", configuration, point), {"mse": value}, {}, **more)


def test_the_best_point_is_that_of_the_lowest_mean_error() -> None:
    bad, good = of_mse("b", "high", 0.9), of_mse("a", "low", 0.1)
    assert runs_of_best_point([bad, good], MSE) == [good]


def test_runs_of_another_checkpoint_and_those_that_failed_are_no_restarts() -> None:
    failed = of_mse("a_lr1", "lr1", 0.1, error="it diverged")
    summary = summarise([of_mse("a_lr1", "lr1", 0.1), of_mse("b_lr1", "lr1", 0.9), failed], MSE, 5)
    assert (summary["best_on_dev"]["all_runs_of_it"]["n"], summary["num_failed"]) == (1, 1)


def test_one_run_has_no_spread() -> None:
    outcome = TrialOutcome(trial("a_seed0", "a", "a"), dev={"accuracy": 0.5}, test={})
    its = summarise([outcome], ACCURACY, 1)["combinations"][0]["dev"]["accuracy"]
    assert its == {"mean": 0.5, "median": 0.5, "sd": None}
