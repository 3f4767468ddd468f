"""The doctor on fine-tuning recipes: what it opens and measures, and what it says of what is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.commands import Command, check_refused
from support.files import write_rows
from support.run_checks import levels_of
from unmask.doctor.diagnosis import diagnose
from unmask.doctor.findings import Diagnosis
from unmask.errors import OutputError, SettingsError

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS = ("classification", "regression", "qa", "choice", "tagging")


def tables(diagnosis: Diagnosis) -> dict[str, tuple[tuple[str, ...], ...]]:
    return {table.title: table.rows for table in diagnosis.tables}


@pytest.mark.parametrize("kind", KINDS)
def test_model_and_files_are_opened(task_models: Any, place: Path, kind: str) -> None:
    for name in ("train", "dev"):
        Path(f"{name}.jsonl").write_text(task_models.examples[kind] * (1 + (name == "dev")))
    changes = ("data.dev=dev.jsonl", "train.epochs=2", "optimizer.learning_rate=1e-3")
    found = diagnose(f"finetune/{kind}", task_models.words(kind, "train.jsonl", *changes), probe_s=0.01)
    notes = {"few-dev-examples": "note", "few-steps": "note"}
    assert levels_of(found.findings) == {"inputs": "good", "files-shared": "warning", **notes}
    assert {name for name, _ in found.headline} >= {"Examples", "Time on this machine"}
    assert "What figures on dev have to be better than" in tables(found)
    assert found.figures["step_s"] > 0  # type: ignore[operator]
    assert json.dumps(found.figures)


def test_labels_steps_and_lengths_are_told(task_models: Any, place: Path) -> None:
    rows = [{"text": "Ada wrote a dull paper in Oslo", "label": "ny"[number == 0]} for number in range(22)]
    write_rows(Path("t.jsonl"), *rows)
    words = ["data.dev=t.jsonl", "train.epochs=3", "task.max_length=8", "optimizer.learning_rate=0.1"]
    found = diagnose("finetune/classification", task_models.words("classification", "t.jsonl", *words), probe_s=0)
    warnings = ("files-shared", "learning-rate-high", "many-cut", "one-sided-labels")
    notes = {"few-dev-examples": "note", "few-steps": "note"}
    assert levels_of(found.findings) == {**dict.fromkeys(warnings, "warning"), **notes, "inputs": "good"}
    assert tables(found)["Labels of the training file"] == (("n", "21", "95.5%"), ("y", "1", "4.5%"))
    assert tables(found)["Examples"][0] == ("train", "22", "8.0", "8", "8")
    assert (found.figures["steps"], found.figures["epochs"]) == (18, 3)  # six steps of four for 22 examples
    assert found.figures["seconds"] is None
    words += ["task.long_text=windows"]
    found = diagnose("finetune/classification", task_models.words("classification", "t.jsonl", *words), probe_s=0)
    assert "many-cut" not in levels_of(found.findings)


def test_a_search_counts_all_its_runs(task_models: Any, place: Path) -> None:
    Path("t.jsonl").write_text(task_models.examples["classification"])
    changes = ("data.dev=t.jsonl", "search.learning_rates=[1e-4,1e-3]", "search.restarts=3")
    words = task_models.words("classification", "t.jsonl", *changes)
    found = diagnose("finetune/classification", words, probe_s=0.01)
    assert dict(found.headline)["Runs"] == "6"
    assert found.figures["seconds"] == pytest.approx(6 * found.figures["step_s"])  # type: ignore[operator]
    wide = ("search.learning_rates=[1e-5,1e-3,0.1]", "search.epochs=[1,10]", "search.batch_sizes=[1,2]")
    words = task_models.words("classification", "t.jsonl", "data.dev=t.jsonl", "train.epochs=1", *wide)
    found = diagnose("finetune/classification", words, probe_s=0.01)
    # Of sixteen examples, read eleven times for each of three rates and two sizes of a batch; a step shows one.
    assert found.figures["seconds"] == pytest.approx(16 * 11 * 6 * found.figures["step_s"])  # type: ignore[operator]
    judged = [each for each in found.findings if each.name.startswith("learning-rate")]
    assert [(each.name, each.message.partition(" is ")[0]) for each in judged] == [
        ("learning-rate-low", "search.learning_rates 1e-05"),
        ("learning-rate-high", "search.learning_rates 0.1"),
    ]
    assert ("optimizer.learning_rate", "1e-05, 0.001, 0.1") in tables(found)["Settings"]
    assert dict(found.headline)["Steps of a run"] == "8 to 160"
    assert ("a run", "8 to 160 steps, 1.00 to 10.00 epochs") in tables(found)["The run"]
    [note] = [table.note for table in found.tables if table.title == "The run"]
    assert "one after another" in note
    without = [word for word in words if not word.startswith("data.dev")]
    found = diagnose("finetune/classification", without, probe_s=0)
    assert levels_of(found.findings)["search-without-dev"] == "fault"


def test_what_is_not_there_is_named(place: Path) -> None:
    found = diagnose("finetune/sst2")
    assert levels_of(found.findings) == {"no-model": "note", "no-train-file": "note"}
    Path("empty.yaml").write_text("base: finetune/sst2\nsearch:\n")
    with pytest.raises(SettingsError, match=r"search"):
        diagnose("empty.yaml")
    assert ("task.name", "sst2") in tables(found)["Settings"]
    with pytest.raises(SettingsError, match=r"unknown key task\.max_lenght; did you mean task\.max_length"):
        diagnose("finetune/sst2", ["task.max_lenght=3"])


def test_what_is_wrong_with_a_file_is_a_fault(task_models: Any, place: Path) -> None:
    Path("t.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": "x "}\n')
    found = diagnose("finetune/classification", task_models.words("classification", "t.jsonl"))
    assert levels_of(found.findings) == {"inputs-unusable": "fault"}
    assert found.findings[0].message.startswith("t.jsonl:2: the label x is written 'x ' here and 'x' in t.jsonl:1")
    assert found.has_fault


def test_a_recipe_with_a_base_is_known_by_it(place: Path) -> None:
    Path("mine.yaml").write_text("base: finetune/sst2\ntrain: {batch_size: 8}\n")
    assert ("train.batch_size", "8") in tables(diagnose("mine.yaml"))["Settings"]


def test_a_page_that_cannot_be_written_loses_no_diagnosis(
    unmask: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, text: str, overwrite: bool) -> None:
        raise OutputError(f"the disk is full while writing {path}")

    monkeypatch.setattr("unmask.reports.layout.write_text", fail)
    finished = unmask("doctor", "finetune/sst2", "--out", "page.html")
    assert finished.code == 2
    assert "task.name" in finished.output
    assert "the disk is full while writing page.html" in finished.errors


@pytest.mark.parametrize("page", ["missing/page.html", "page.txt"])
def test_a_page_without_a_place_is_refused_before_the_work(unmask: Command, place: Path, page: str) -> None:
    finished = unmask("doctor", "finetune/sst2", "--out", page)
    check_refused(finished, f"--out {page}: expected the name of a page, such as page.html, in a folder that exists")
