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
        ("Held-out other", "0.3"), ("Test loss", "0.37"), ("Test F1 micro", "0.45"), ("Dev loss", "0.3611"),
        ("Dev F1 micro", "0.5"),
    ]  # fmt: skip
    assert "<td>Held-out F1 micro</td>" not in text


@pytest.mark.parametrize(
    ("figures", "titles"),
    [
        ({"f1": 18.0, "exact_match": 3.0, "loss": 4.0}, ["Dev F1 (%)", "Dev exact match (%)", "Dev loss"]),
        ({"best_f1": 9.0, "HasAns_exact": 3.0, "exact": 2.0, "total": 4, "best_f1_thresh": 0.1},
         ["Dev best F1 (%)", "Dev HasAns exact (%)", "Dev exact (%)", "Dev total", "Dev best F1 thresh"]),
        ({"f1": 0.5, "accuracy": 0.5}, ["Dev F1", "Dev accuracy"]),
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


def test_a_run_that_diverged_says_nothing_else_of_why_it_ended(tmp_path: Path) -> None:
    lost = {"loss": None, "loss/mlm": None, "loss/nsp": None, "gradient_norm": None}
    run = run_directory(tmp_path / "run", [training_row(1), training_row(2, **lost), training_row(3, **lost)])
    text = page_of(run, has_ended=False)
    assert ("The run has not ended" in text, "train.log_every" in text) == (False, False)
    assert "One value alone is finite, so that there is no curve to draw." in text
    assert 'class="wide"' not in text, "the learning rate is not what the page is about"


def test_a_fine_tuned_run_calls_dev_dev(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 1.0, "eval/loss": 1.0, "eval/f1_macro": 0.5} for step in (1, 2)]
    run = run_directory(tmp_path / "run", rows, results={"dev": {"f1_macro": 0.5}})
    write(run / "recipe.yaml", "task: {name: classification}\n")
    write(run / "environment.json", json.dumps({"sessions": [{"num_cpus": 2}]}))
    text = page_of(run)
    assert re.findall("<figcaption><b>(.*?)</b>", text) == ["Loss", "Dev F1 macro"]
    assert '<span class="key held-out">dev</span>' in text
    assert "held-out" not in re.sub("<style>.*?</style>|<svg.*?</svg>|key held-out", "", text, flags=re.DOTALL).lower()
    assert "<td>Number of CPUs</td><td>2</td>" in text


def test_a_curve_that_is_smoothed_says_so(tmp_path: Path) -> None:
    text = page_of(run_directory(tmp_path / "run", [training_row(step) for step in range(1, 101)]))
    assert text.count('<span class="key training">training, smoothed (faint: as logged)</span>') == 5  # not of the rate
    assert "smoothed" not in page_of(run_directory(tmp_path / "short", [training_row(step) for step in range(1, 9)]))


@pytest.mark.parametrize(("before", "told"), [(0.1, True), (0.3, False)])
def test_an_error_that_the_temperature_made_larger_is_told(tmp_path: Path, before: float, told: bool) -> None:
    calibration = {"expected_calibration_error": 0.2, "error_before": before, "temperature": 0.8, "bins": []}
    text = page_of(run_directory(tmp_path / "run", [training_row(1)], results={"calibration": calibration}))
    assert (f"it was {before}, less than now: the number is chosen for the loss" in text) == told


def test_what_may_be_wider_than_a_telephone_is_scrolled_by_keyboard(tmp_path: Path) -> None:
    text = page_of(run_directory(tmp_path / "run", [training_row(step) for step in (1, 2)], results={"loss": 1.0}))
    scrolled = re.findall('<[^>]* class="scroll"[^>]*>', text)
    assert scrolled
    assert all('tabindex="0"' in each and "aria-label=" in each for each in scrolled)
    assert text.count("<main>") == 1


def test_a_budget_that_was_changed_is_marked(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", [training_row(step) for step in (100, 200, 300)])
    change = {"step": 200, "was": "train.steps=200", "now": "train.steps=300"}
    write(run / "environment.json", json.dumps({"sessions": [{}, {"budget_change": change}]}))
    text = page_of(run)
    assert '<span class="key part">budget train.steps=300 from step 201</span>' in text
    assert "<code>from Python</code>" in text


def test_what_figures_are_of_and_that_they_were_chosen_by_is_told(tmp_path: Path) -> None:
    its = {"n": 1872, "truncated": 3, "unlabelled": 0, "accuracy_interval": {"low": 0.861, "high": 0.892}}
    results = {"dev": {"accuracy": 0.88}, "dev_examples": its, "early_stopping": {"step": 1200, "evaluations": 5}}
    text = page_of(run_directory(tmp_path / "run", [training_row(1)], results=results))
    assert '<p class="note">Dev: 1,872 examples, 3 of them truncated; accuracy 0.861 to 0.892 (95 %).</p>' in text
    assert "The model is that of step 1,200, the best of 5 evaluations on dev: its figures there are flattered" in text
    assert "arly stopping" not in text  # among the figures
    results["early_stopping"] = {"step": 1200, "evaluations": 1}
    text = page_of(run_directory(tmp_path / "one", [training_row(1)], results=results))
    assert "The model is that of step" not in text, "nothing was chosen"


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
