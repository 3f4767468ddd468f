"""What a run's page says of its figures: which they are, what is wrong, and what there is not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.files import write
from support.run_pages import run_directory, training_row
from unmask.reports.run_page import write_report


def page_of(run: Path, *, has_ended: bool = True) -> str:
    return write_report(run, has_ended=has_ended).read_text(encoding="utf-8")


def test_figures_of_dev_stand_once_and_after_those_of_test(tmp_path: Path) -> None:
    """Those of the last step are of other weights, or from before something was chosen on dev."""
    rows = [training_row(1), {"step": 1, "eval/loss": 0.36112, "eval/f1_micro": 0.4, "eval/other": 0.3}]
    results = {"dev": {"loss": 0.36113, "f1_micro": 0.5}, "test": {"loss": 0.37, "f1_micro": 0.45}}
    text = page_of(run_directory(tmp_path / "run", rows, results=results))
    assert re.findall("<dt>((?:Held-out|Dev|Test) .*?)</dt><dd>(.*?)</dd>", text) == [
        ("Held-out other", "0.3"), ("Test loss", "0.37"), ("Test f1 micro", "0.45"), ("Dev loss", "0.3611"),
        ("Dev f1 micro", "0.5"),
    ]  # fmt: skip
    assert "<td>Held-out f1 micro</td>" not in text


@pytest.mark.parametrize(
    ("figures", "titles"),
    [
        ({"f1": 18.0, "exact_match": 3.0, "loss": 4.0}, ["Dev f1 (%)", "Dev exact match (%)", "Dev loss"]),
        ({"best_f1": 9.0, "HasAns_exact": 3.0, "exact": 2.0, "total": 4, "best_f1_thresh": 0.1},
         ["Dev best f1 (%)", "Dev HasAns exact (%)", "Dev exact (%)", "Dev total", "Dev best f1 thresh"]),
        ({"f1": 0.5, "accuracy": 0.5}, ["Dev f1", "Dev accuracy"]),
    ],
)  # fmt: skip
def test_figures_of_100_say_so(tmp_path: Path, figures: dict[str, float], titles: list[str]) -> None:
    rows = [training_row(step) | {f"eval/{key}": value for key, value in figures.items()} for step in (1, 2)]
    text = page_of(run_directory(tmp_path / "run", rows, results={"dev": figures}))
    assert re.findall("<dt>(Dev .*?)</dt>", text) == titles
    assert text.count("<b>Held-out exact match (%)</b>") == ("exact_match" in figures)


def test_what_is_wrong_stands_first(tmp_path: Path) -> None:
    results = {"dev": {"f1": 0.0}, "degenerate": "all 9 words are O"}
    run = run_directory(tmp_path / "run", [training_row(1), training_row(2, loss=None)], results=results)
    between = "</header>\n(.*?)<section>"
    [wrong] = re.findall(between, page_of(run), re.DOTALL)
    lost = "The loss is not finite at step 2: the run has diverged."
    assert re.findall('<p class="verdict">(.*)</p>', wrong) == [
        lost, "On dev <bdi>all 9 words are O</bdi>: the model gives every example the same answer."
    ]  # fmt: skip
    [wrong] = re.findall(between, page_of(run, has_ended=False), re.DOTALL)
    assert re.findall('<p class="verdict">(.*)</p>', wrong) == [lost], "the results are of an earlier end"
    back = run_directory(tmp_path / "back", [training_row(1, loss=None), training_row(2)])
    assert "not finite at step" not in page_of(back)


def test_a_run_of_one_step_and_one_without_held_out_figures(tmp_path: Path) -> None:
    text = page_of(run_directory(tmp_path / "run", [training_row(1)], results={"num_parameters": 3}))
    assert ("train.log_every" in text, "No held-out figures: nothing was held out." in text) == (False, True)
    text = page_of(run_directory(tmp_path / "stopped", [training_row(2)]))
    assert ("train.log_every" in text, "nothing was held out" in text) == (True, False)


def test_a_budget_that_was_changed_is_marked(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", [training_row(step) for step in (100, 200, 300)])
    change = {"step": 200, "was": "train.steps=200", "now": "train.steps=300"}
    write(run / "environment.json", json.dumps({"sessions": [{}, {"budget_change": change}]}))
    assert '<span class="key part">budget train.steps=300 from step 201</span>' in page_of(run)


def test_what_figures_are_of_and_that_they_were_chosen_by_is_told(tmp_path: Path) -> None:
    its = {"n": 1872, "truncated": 3, "unlabelled": 0, "accuracy_interval": {"low": 0.861, "high": 0.892}}
    results = {"dev": {"accuracy": 0.88}, "dev_examples": its, "early_stopping": {"step": 1200, "evaluations": 5}}
    text = page_of(run_directory(tmp_path / "run", [training_row(1)], results=results))
    assert '<p class="note">Dev: 1,872 examples, 3 of them truncated; accuracy 0.861 to 0.892 (95 %).</p>' in text
    assert "The model is that of step 1,200, the best of 5 evaluations on dev: its figures there are flattered" in text
    assert "arly stopping" not in text  # among the figures


@pytest.mark.parametrize("several", [False, True])
def test_the_probabilities_of_several_labels_are_of_labels(tmp_path: Path, several: bool) -> None:
    bins = [{"from": 0.4, "to": 0.6, "count": 3, "certainty": 0.5, "accuracy": 0.3}]
    samples = [{"title": "1", "input": {"text": "t"}, "label": "a", "prediction": "a", "probability": 0.5}]
    calibration = {"expected_calibration_error": 0.2, "bins": bins}
    run = run_directory(tmp_path / "run", [training_row(1)], results={"calibration": calibration}, samples=samples)
    write(run / "recipe.yaml", f"task: {{name: classification, multi_label: {str(several).lower()}}}\n")
    text = page_of(run)
    assert ("How often a label is there on dev, by its probability" in text) == several
    assert ("Accuracy on dev, by how sure the model is" in text) != several
    assert ("0.5 is at that label&#39;s threshold" in text.replace("'", "&#39;")) == several
    assert '<td class="probability">0.50</td>' in text
