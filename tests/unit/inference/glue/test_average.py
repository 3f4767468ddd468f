"""Averages of finished runs: which figures are read from them, and what is said where some are missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.files import write
from unmask.errors import InputError, ModelError, SettingsError
from unmask.inference.glue.average import average_runs

FIGURES: dict[str, dict[str, float]] = {
    "cola": {"matthews_correlation": 0.521, "accuracy": 0.8},
    "sst2": {"accuracy": 0.935},
    "mrpc": {"accuracy": 0.84, "f1": 0.889},
    "stsb": {"pearson": 0.87, "spearmanr": 0.858},
    "qqp": {"accuracy": 0.9, "f1": 0.712},
    "qnli": {"accuracy": 0.905},
    "rte": {"accuracy": 0.664},
}
MNLI = {"dev": {"accuracy": 0.846}, "test": {"accuracy": 0.834}}


def write_run(parent: Path, task: str, results: dict[str, Any], dev: str = "dev.tsv", test: str = "null") -> Path:
    """What `unmask finetune` leaves, without the weights."""
    run, data = parent / f"run-{task}", f"{{train: t.tsv, dev: {dev}, test: {test}}}"
    write(run / "model" / "config.json", json.dumps({"unmask_task": {"name": task}}))
    write(run / "recipe.yaml", f"init_from: bert\ntask: {{name: {task}}}\ndata: {data}\n")
    write(run / "results.json", json.dumps(results))
    return run


def write_runs(parent: Path) -> list[Path]:
    """Of all tasks but WNLI; with MNLI's two files the other way round."""
    runs = [write_run(parent, task, {"dev": figures}) for task, figures in FIGURES.items()]
    swapped = {"dev": MNLI["test"], "test": MNLI["dev"]}
    return [*runs, write_run(parent, "mnli", swapped, "dev_mismatched.tsv", "dev_matched.tsv")]


def test_every_average_is_named_by_its_rule(tmp_path: Path) -> None:
    told = average_runs(write_runs(tmp_path))
    assert told.figures["mnli"] == (0.846, 0.834)
    assert told.averages["bert"] == pytest.approx(0.796, abs=0.0005)  # BERT-Base of the paper: 79.6
    eight = (0.521 + 0.935 + 0.889 + 0.87 + 0.712 + 0.84 + 0.905 + 0.664) / 8
    assert told.averages["gpt1"] == pytest.approx(eight)
    assert dict(told.missing) == {"glue": ["wnli accuracy"]}
    lines = told.describe().splitlines()
    assert "mnli   accuracy, matched 84.6, accuracy, mismatched 83.4" in lines
    (bert,), (glue,) = ([line for line in lines if line.startswith(name)] for name in ("bert ", "glue "))
    assert bert.startswith("bert         79.6   BERT's nine columns: MNLI matched and mismatched")
    assert glue.startswith("glue            -   ")
    assert glue.endswith("; missing: wnli accuracy")
    assert told.as_dict()["figures"]["stsb"] == {"pearson": 0.87, "spearmanr": 0.858}


def test_a_search_counts_with_its_best_run(tmp_path: Path) -> None:
    runs = write_runs(tmp_path)
    (runs[0] / "results.json").unlink()
    best = {"trial": "lr3e-05", "dev": {"matthews_correlation": 0.6}, "test": {}, "all_runs_of_it": all_runs(1, 0.6)}
    summary = {"best_on_dev": best, "num_finished": 5, "chosen_on_dev": []}
    (runs[0] / "summary.json").write_text(json.dumps(summary), "utf-8")
    averages = average_runs(runs)
    assert averages.figures["cola"] == (0.6,)
    assert (averages.runs["cola"], averages.runs["sst2"]) == (5, 1)
    cola, sst2, *_ = averages.describe().splitlines()
    assert cola == "cola   matthews_correlation 60.0   (the best of 5 runs on these examples)"
    assert sst2 == "sst2   accuracy 93.5"
    assert (averages.means, averages.averages_of_means) == ({}, {})


def all_runs(number: int, mean: float) -> dict[str, Any]:
    return {"n": number, "dev": {"matthews_correlation": {"mean": mean, "median": mean + 0.01, "sd": None}}, "test": {}}


def test_beside_the_best_run_of_a_search_is_the_mean_over_restarts(tmp_path: Path) -> None:
    runs = write_runs(tmp_path)
    best = {"trial": "lr3e-05", "dev": {"matthews_correlation": 0.6}, "test": {}, "all_runs_of_it": all_runs(2, 0.515)}
    summary = {"best_on_dev": best, "num_finished": 6, "chosen_on_dev": ["step"]}
    (runs[0] / "summary.json").write_text(json.dumps(summary), "utf-8")
    early = {"dev": FIGURES["sst2"], "early_stopping": {"step": 4, "evaluations": 3}}
    (runs[1] / "results.json").write_text(json.dumps(early), "utf-8")
    averages = average_runs(runs)
    as_dict = averages.as_dict()
    assert as_dict["means"] == {"cola": {"matthews_correlation": 0.515}}
    assert as_dict["averages_of_means"]["gpt1"] == pytest.approx(averages.averages["gpt1"] - 0.085 / 8)
    assert as_dict["medians"] == {"cola": {"matthews_correlation": pytest.approx(0.525)}}
    assert as_dict["averages_of_medians"]["gpt1"] == pytest.approx(averages.averages["gpt1"] - 0.075 / 8)
    cola, sst2, *_ = lines = averages.describe().splitlines()
    notes = "the best of 6 runs on these examples; at the best evaluation on these examples; mean over restarts"
    over_restarts = "matthews_correlation 51.5; their median: matthews_correlation 52.5"
    assert cola == f"cola   matthews_correlation 60.0   ({notes}: {over_restarts})"
    assert sst2 == "sst2   accuracy 93.5   (at the best evaluation on these examples)"
    (bert,) = (line for line in lines if line.startswith("bert "))
    assert bert.startswith("bert         80.5   ")
    assert bert.endswith("   (with the means over restarts: 79.5; with the medians: 79.6)")
    del best["all_runs_of_it"]["dev"]["matthews_correlation"]["median"]  # as an earlier version wrote it
    (runs[0] / "summary.json").write_text(json.dumps(summary), "utf-8")
    earlier = average_runs(runs)
    assert (earlier.means, earlier.medians) == (averages.means, {})


def test_runs_of_different_models_are_averaged_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that began from the run of another task of GLUE is of that run's model, in whatever folder that is."""
    monkeypatch.chdir(tmp_path)
    rte, *_, mnli = runs = write_runs(Path())[::-1][1:] + write_runs(Path())[-1:]
    (rte / "recipe.yaml").write_text((rte / "recipe.yaml").read_text().replace(": bert", ": run-mnli"), "utf-8")
    average_runs(runs)
    assert not caplog.messages
    (mnli / "recipe.yaml").write_text((mnli / "recipe.yaml").read_text().replace(": bert", ": other"), "utf-8")
    average_runs(runs)
    assert caplog.messages == ["run-rte is of run-mnli, and run-qnli is of bert: an average is of one model"]
    for run in (rte, mnli):  # trained anew, each from the other
        (run / "recipe.yaml").write_text((run / "recipe.yaml").read_text().replace(": other", ": run-rte"), "utf-8")
    average_runs([rte, mnli])
    assert len(caplog.messages) == 1


def test_missing_columns_are_named(tmp_path: Path) -> None:
    runs = write_runs(tmp_path)[:-1]
    matched = write_run(tmp_path / "b", "mnli", {"dev": MNLI["dev"]})
    assert list(average_runs([*runs, matched]).averages) == ["electra_dev"]
    incomplete = average_runs([runs[0], matched])
    assert not incomplete.averages
    cola, mnli, bert, *_ = incomplete.describe().splitlines()
    assert cola.startswith("cola ")  # the figures on dev are told all the same
    assert mnli.startswith("mnli ")
    missing = "sst2 accuracy; mrpc f1; stsb spearmanr; qqp f1; mnli accuracy, mismatched; qnli accuracy; rte accuracy"
    assert bert.endswith(f"missing: {missing}")


def test_a_figure_that_is_none_is_missing(tmp_path: Path) -> None:
    runs = write_runs(tmp_path)
    (runs[0] / "results.json").write_text('{"dev": {"matthews_correlation": null}}', "utf-8")
    averages = average_runs(runs)
    assert not averages.averages
    assert "cola matthews_correlation" in averages.missing["gpt1"]


def test_what_is_no_finished_run_of_glue_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, "sst2", {})
    with pytest.raises(InputError, match=r"run-sst2: it was measured on no dev file"):
        average_runs([run])
    (run / "results.json").unlink()
    with pytest.raises(InputError, match=r"run-sst2: no figures there \(results\.json of a run, or summary\.json"):
        average_runs([run])
    with pytest.raises(
        SettingsError, match=r"run-snli: its config\.json says .* for 'snli' .*; expected a run of cola, sst2"
    ):
        average_runs([write_run(tmp_path, "snli", {})])
    write(run / "model" / "config.json", "{}")
    with pytest.raises(
        SettingsError, match=r"run-sst2: its config\.json names no task .*; expected a run of cola, sst2"
    ):
        average_runs([run])
    with pytest.raises(ModelError, match="no such directory"):
        average_runs([tmp_path / "absent"])
    twice = write_runs(tmp_path / "c")
    with pytest.raises(SettingsError, match=r"run-cola and .*run-cola are both for cola"):
        average_runs([*twice, twice[0]])


def test_the_command_prints_them(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from unmask.cli.main import app

    words = ["glue", "average", *map(str, write_runs(tmp_path))]
    told, as_json = (CliRunner().invoke(app, [*words, *more]).output for more in ([], ["--json"]))
    assert told.startswith("cola   matthews_correlation 52.1\n")
    assert json.loads(as_json)["missing"] == {"glue": ["wnli accuracy"]}
