"""The report of a run: complete, self-contained, escaped, and made from whatever a run directory holds."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from support.run_pages import Page, run_directory, training_row
from unmask.io.progress import human_number
from unmask.objectives.floors import by_figure, discriminator_floors
from unmask.reports.run_page import flatten, last_evaluation, panels, parts_of, write_report
from unmask.training.run.environment import write_environment


def without_loss(step: int) -> dict[str, Any]:
    """A row of steps that had no target."""
    return {name: value for name, value in training_row(step).items() if not name.startswith("loss")}


def report_of(path: Path) -> tuple[str, Page]:
    written = write_report(path)
    assert written == path / "report.html"
    text = written.read_text(encoding="utf-8")
    return text, Page(text)


def test_a_whole_run(tmp_path: Path) -> None:
    rows = [training_row(step) for step in range(1, 201)]
    rows += [{"step": 200, "eval/loss": 0.05, "eval/mlm_loss": 0.04, "eval/nsp_accuracy": 0.625}]
    samples = [
        {
            "title": "사전 학습",
            "text": [
                {"token": "[CLS]", "kind": "special"},
                {"token": "말", "kind": "plain"},
                {"token": "##뭉치", "kind": "plain", "joined": True},
                {"token": "[MASK]", "kind": "masked", "label": "에서", "prediction": "에서", "probability": 0.9}
                | {"correct": True},
                {"token": "[MASK]", "kind": "masked", "label": "north", "prediction": "south", "probability": 0.25}
                | {"correct": False},
            ],
        },
        {"title": "review", "input": {"text": "fine <b>"}, "label": "1", "prediction": "0", "probability": 0.5},
    ]
    floors = {"loss/mlm": {"no context": 6.5, "unigram entropy": 7.125}, "eval/nsp_accuracy": {"chance": 0.5}}
    results = {"num_parameters": 4_400_000, "dev": {"f1": 0.875}, "floors": floors}
    directory = run_directory(tmp_path / "run", rows, samples=samples, results=results)
    (directory / "recipe.yaml").write_text("seed: 12345\nmodel:\n  hidden_size: 128\n", encoding="utf-8")
    for extra in ([], ["--resume"]):
        command = ["unmask", "pretrain", "bert_tiny", "corpus=my text", *extra]
        write_environment(directory, recipe="bert_tiny", command=command, seed=1, device="cpu", num_threads=2)

    text, page = report_of(directory)
    headings = ["Curves, by step", "Results", "Sample predictions", "Settings", "Environment"]
    assert re.findall("<h2>(.*?)</h2>", text) == headings
    tiles = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", text))
    # 200 thousand tokens at 500 a second are 400 seconds; the losses are the means of the last four of 200 rows.
    mlm, nsp = (human_number(sum(first / step for step in range(197, 201)) / 4) for first in (8.5, 0.5))
    assert tiles == {
        "Parameters": "4.4M", "Steps": "200", "Tokens": "200k", "Time training": "6 min 40 s", "Training MLM loss": mlm,
        "Training NSP loss": nsp,
        "Held-out loss": "0.05", "Held-out MLM loss": "0.04", "Held-out NSP accuracy": "0.625", "Dev F1": "0.875",
    }  # fmt: skip
    assert "unmask pretrain bert_tiny &#39;corpus=my text&#39; --resume" in text
    assert text.count("<bdi>unigram entropy</bdi>: 7.125") == 2  # the legend of the curve, and beside the held-out loss
    assert text.count("<bdi>no context</bdi>: 6.5, <bdi>unigram entropy</bdi>: 7.125") == 1
    assert "<td>12345</td>" in text
    assert "<td>hidden_size</td><td>128</td>" in text
    assert "말뭉치" in text
    assert '<mark class="right"' in text
    assert "<del>south</del> <ins>north</ins>" in text
    assert page.titles[1] == "input [MASK] · original north · predicted south with probability 0.25"
    assert "fine &lt;b&gt;" in text
    assert page.tags.count("figure") == page.tags.count("svg") - 1 == 6, "the first is drawn for a telephone too"
    assert (
        "<td>Held-out NSP accuracy</td><td>0.625</td><td><bdi>chance</bdi>: 0.5</td>" in text
    )  # measured once: no curve


def test_nothing_comes_from_outside_and_no_id_stands_twice(tmp_path: Path) -> None:
    rows = [training_row(step) for step in range(1, 150)] + [{"step": 10, "eval/mlm_accuracy": 0.1}]
    text, page = report_of(run_directory(tmp_path / "run", rows))
    assert page.outside == []
    assert not re.search(r"https?:|//|url\((?!#)|@import|@font-face|<script|<link", text)
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("svg") > 3


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    directory = run_directory(tmp_path / "run", [training_row(1), training_row(2)])
    assert report_of(directory)[0] == report_of(directory)[0]


NASTY = "<script>alert('1')</script> & \"$x$\""


def test_everything_is_escaped(tmp_path: Path) -> None:
    masked = {"token": NASTY, "kind": "masked", "label": NASTY, "prediction": NASTY, "probability": 0.5}
    samples = [
        {"title": NASTY, "text": [{"token": NASTY, "kind": kind} for kind in ("plain", "special")]},
        {"title": NASTY, "text": [masked | {"correct": True}, masked | {"correct": False}]},
        {"title": NASTY, "input": {NASTY: NASTY}, "label": NASTY, "prediction": NASTY, "probability": 0.5},
    ]
    rows = [training_row(1, **{f"loss/{NASTY}": 1.0}), {"step": 1, f"eval/{NASTY}": 1.0}]
    results = {NASTY: NASTY, "floors": {f"loss/{NASTY}": {NASTY: 1.0}, f"eval/{NASTY}": {NASTY: 2.0}}}
    directory = run_directory(tmp_path / NASTY.replace("/", ""), rows, samples=samples, results=results)
    (directory / "recipe.yaml").write_text(json.dumps({NASTY: NASTY, "model": {NASTY: [NASTY]}}), encoding="utf-8")
    write_environment(directory, recipe=NASTY, command=[NASTY, "\udc80"], seed=1, device=NASTY, num_threads=1)
    text, page = report_of(directory)
    assert "script" not in page.tags
    assert "<script" not in text
    assert text.count("&lt;script&gt;") > 15


ROWS: dict[str, tuple[list[dict[str, Any]], int]] = {
    "none": ([], 0),
    "only evaluation": ([{"step": step, "eval/accuracy": step / 8} for step in (3, 6)], 1),
    "one": ([training_row(1)], 0),
    "two": ([training_row(1), training_row(2)], 6),
    "never finite": ([training_row(step, loss=None, gradient_norm=None) for step in (1, 2)], 4),
    "at times not finite": ([training_row(step, loss=None if step % 2 else 1.0) for step in range(1, 300)], 6),
    "evaluation not finite": ([{"step": 0, "eval/loss": None}], 0),
    "no targets": ([without_loss(1), without_loss(2)], 3),
    "at times none": ([without_loss(1), training_row(2), without_loss(3), training_row(4)], 6),
}
"""Rows, and the number of their figures."""


@pytest.mark.parametrize(("rows", "num_figures"), ROWS.values(), ids=ROWS)
def test_rows_of_every_kind(tmp_path: Path, rows: list[dict[str, Any]], num_figures: int) -> None:
    text, page = report_of(run_directory(tmp_path / "run", rows))
    assert page.tags.count("figure") == num_figures
    assert "nan" not in text.lower()


def test_what_was_logged_once_is_a_table(tmp_path: Path) -> None:
    rows = [training_row(2, loss=0.5), {"step": 2, "eval/loss": 0.75, "eval/accuracy": 0.25}]
    results = {"floors": {"eval/accuracy": {"most frequent label of train": 0.5}}}
    text, _ = report_of(run_directory(tmp_path / "run", rows, results=results))
    assert "Logged once, so that there is no curve to draw" in text
    assert "<td>Tokens per second</td><td>500</td><td></td>" in text
    assert "<td>Loss in training</td>" not in text
    # What is held out stands among the results, and nowhere else than in the headline.
    [held_out] = re.findall("<td>Held-out accuracy</td>.*?</tr>", text)
    assert (
        held_out == "<td>Held-out accuracy</td><td>0.25</td><td><bdi>most frequent label of train</bdi>: 0.5</td></tr>"
    )
    two = [training_row(2), training_row(4), *({"step": step, "eval/accuracy": 0.25} for step in (2, 4))]
    assert "Logged once" not in report_of(run_directory(tmp_path / "two", two))[0]


def test_a_run_without_metrics_yet(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("seed: 1\n")
    assert "<td>seed</td><td>1</td>" in report_of(tmp_path)[0]


def test_a_run_that_has_not_ended_shows_no_earlier_results(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", [training_row(1), training_row(2)], results={"accuracy": 0.123})
    assert "0.123" in write_report(run).read_text("utf-8")
    page = write_report(run, has_ended=False).read_text("utf-8")
    assert ("The run has not ended" in page, "0.123" in page, "<svg" in page) == (True, False, True)


def test_a_loss_of_one_term_is_one_figure() -> None:
    rows = [{"step": 1, "loss": 1.0, "loss/task": 1.0}, {"step": 1, "eval/loss": 2.0, "eval/accuracy": 0.5}]
    found = panels(rows, {"loss/task": {"majority": 0.7}})
    assert [panel.title for panel in found] == ["Task loss", "Held-out accuracy"]
    assert found[0].held_out.values.tolist() == [2.0]
    assert found[0].floors == {"majority": 0.7}


def stage_row(step: int, term: str) -> dict[str, Any]:
    return {"step": step, "tokens": step * 100, "loss": 1.0, f"loss/{term}": 1.0}


def test_the_stages_of_a_run_have_no_common_loss() -> None:
    rows = [stage_row(2, "generator"), stage_row(4, "generator"), stage_row(6, "discriminator")]
    rows.append({"step": 6, "eval/generator_loss": 1.5, "eval/replaced_share": 0.25})
    found = panels(rows, {}, parts_of({}, rows))
    titles = ["Generator loss", "Discriminator loss in training", "Held-out replaced share"]
    assert [panel.title for panel in found] == titles
    assert all(panel.parts == {"second stage": 4} for panel in found)
    assert all(panel.last_step == 6 for panel in found)
    rows = [stage_row(step, "generator") | stage_row(step, "lm" if step < 5 else "discriminator") for step in (2, 4, 6)]
    parts = parts_of({}, rows)
    assert parts == {"second stage": 4}, "the stages may share a loss"
    titles = [f"{name} loss in training" for name in ("Generator", "LM", "Discriminator")]
    assert [panel.title for panel in panels(rows, {}, parts)] == titles, "and have two sums, which are not drawn"
    rare = [stage_row(2, "lm"), stage_row(4, "lm") | stage_row(4, "nsp"), stage_row(6, "lm")]
    assert parts_of({}, [*rare, stage_row(8, "lm") | stage_row(8, "nsp")]) == {}, "a loss that is rare is no stage"
    together = stage_row(2, "generator") | stage_row(2, "discriminator")
    assert panels([together], {})[0].title == "Loss in training: weighted sum of generator, discriminator"
    assert parts_of({}, [together]) == {}


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        # 100 tokens a step: 90 % of 50 steps are 45, and of 4,500 tokens 4,050, which are reached in step 41.
        ({"steps": 50}, {"phase 2": 45}),
        ({"steps": 60}, {}),
        ({"tokens": 4500}, {"phase 2": 41}),
        ({"tokens": 5000, "steps": None}, {"phase 2": 45}),
        ({"tokens": 6000}, {}),
        ({"epochs": 1}, {}),
    ],
    ids=["steps", "not yet by steps", "tokens", "tokens of a resolved recipe", "not yet by tokens", "epochs"],
)
def test_where_a_phase_begins(budget: dict[str, Any], expected: dict[str, int]) -> None:
    recipe = {"train": budget, "phases": [{"until": 0.9, "max_length": 128}, {"until": 1, "max_length": 512}]}
    rows = [{"step": step, "tokens": step * 100} for step in range(10, 51, 10)]
    assert parts_of(recipe, rows) == expected


def test_the_loss_of_a_last_part_with_one_term_is_one_figure(tmp_path: Path) -> None:
    rows = [stage_row(2, "lm") | stage_row(2, "mlm"), stage_row(4, "mlm")]
    text, _ = report_of(run_directory(tmp_path / "run", [row | {"tokens_per_s": 5.0} for row in rows]))
    assert re.findall("<dt>(Training .*?)</dt>", text) == ["Training loss"]


def test_a_part_of_the_run_is_a_line_in_every_figure(tmp_path: Path) -> None:
    rows = [stage_row(step, "generator" if step < 1500 else "discriminator") for step in range(500, 3001, 500)]
    text, page = report_of(run_directory(tmp_path / "run", rows))
    assert page.tags.count("figure") == text.count('<span class="key part">second stage from step 1,001</span>') == 2
    assert text.count("stroke: var(--muted)") == 3


def test_what_a_discriminator_reaches_by_guessing(tmp_path: Path) -> None:
    measured = {"discriminator_loss": 0.5, "discriminator_accuracy": 0.75, "replaced_share": 0.125}
    row = {"step": 1, **{f"eval/{name}": value for name, value in measured.items()}}
    floors = by_figure(discriminator_floors(0.15, row["eval/replaced_share"]))
    text, _ = report_of(run_directory(tmp_path / "run", [row], results={"floors": floors}))
    # -1/8 ln 1/8 - 7/8 ln 7/8 = .37677
    assert "<td>Held-out discriminator loss</td><td>0.5</td><td><bdi>share entropy</bdi>: 0.3768</td>" in text
    assert "<td>Held-out discriminator accuracy</td><td>0.75</td><td><bdi>always original</bdi>: 0.875</td>" in text


def test_a_label_from_right_to_left_stands_before_its_figure(tmp_path: Path) -> None:
    results = {"dev": {"f1": 0.5}, "floors": {"dev.f1": {"always سلبي": 0.25}}, "degenerate": "always سلبي"}
    text, _ = report_of(run_directory(tmp_path / "run", [training_row(1)], results=results))
    assert "<td><bdi>always سلبي</bdi>: 0.25</td>" in text
    assert "On dev <bdi>always سلبي</bdi>: the model" in text


def test_a_legend_says_what_the_title_does_not(tmp_path: Path) -> None:
    rows = [training_row(1), training_row(2), {"step": 1, "eval/loss": 1.0, "eval/f1": 0.5}, {"step": 2, "eval/f1": 1}]
    results = {"floors": {"loss/nsp": {"chance": math.log(2)}}}
    text, _ = report_of(run_directory(tmp_path / "run", rows, results=results))
    legends = dict(re.findall("<figcaption><b>(.*?)</b>(.*?)</figcaption>", text))
    both = '<span class="key training">training</span><span class="key held-out">held-out</span>'
    assert legends.pop("Loss: weighted sum of MLM, NSP") == both
    nsp = '<span class="key training">training</span><span class="key floor"><bdi>chance</bdi>: 0.6931</span>'
    assert legends.pop("NSP loss in training") == nsp
    assert set(legends.values()) == {""}
    assert "Held-out F1" in legends


@pytest.mark.parametrize(
    ("value", "told"),
    [(1234.5678, "1,235"), (999.96, "1000"), (0.12345, "0.1235"), (12345, "12,345"), (2.5e12, "2.5e+12"), (None, "–")],
)
def test_numbers_for_people(value: float | None, told: str) -> None:
    assert human_number(value) == told


def test_the_last_evaluation_has_every_metric_once() -> None:
    rows = [{"step": 1, "eval/a": 1, "eval/b": 2}, {"step": 2, "loss": 0.5}, {"step": 3, "eval/a": 3}]
    assert last_evaluation(rows) == {"eval/a": 3, "eval/b": 2}


def test_a_final_figure_takes_the_place_of_the_held_out_one_of_its_name(tmp_path: Path) -> None:
    rows = [training_row(1), {"step": 1, "eval/mlm_loss": 3.0}]
    text, _ = report_of(run_directory(tmp_path / "run", rows, results={"mlm_loss": 2.5}))
    tiles = re.findall("<dt>(Held-out MLM loss)</dt><dd>(.*?)</dd>", text.replace("<div>", "\n"))
    assert tiles == [("Held-out MLM loss", "2.5")]


def test_flatten() -> None:
    flat = {"a": 1, "b.c": [2], "b.d.e": None, "b.f": {}}
    assert flatten({"a": 1, "b": {"c": [2], "d": {"e": None}, "f": {}}}) == flat


def test_f1_of_two_labels_names_the_positive_one(tmp_path: Path) -> None:
    results = {"dev": {"f1": 0.5, "accuracy": 0.25}, "positive_label": "spam"}
    page = write_report(run_directory(tmp_path / "run", [training_row(1)], results=results)).read_text("utf-8")
    assert "Dev F1 of label spam" in page
    assert "accuracy of label" not in page
