"""`unmask evaluate --pairs`: of a model, of the checkpoints of a run, on a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.commands import Command
from support.files import write_rows

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = [
    {"sentence_good": "He went home.", "sentence_bad": "He home went.", "UID": "order", "linguistics_term": "<term>"},
    {"sentence_good": "She is old.", "sentence_bad": "She are old.", "UID": "agreement", "linguistics_term": "<term>"},
]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "pairs.jsonl", *ROWS * 3)


def test_checkpoints_end_with_the_model(whole: Path, pairs: Path, tmp_path: Path, unmask: Command) -> None:
    page = tmp_path / "pairs.html"
    every = unmask("evaluate", whole, "--pairs", pairs, "--checkpoints", "--json", "--out", page)
    model = unmask("evaluate", whole, "--pairs", pairs, "--json")
    assert (every.code, model.code) == (0, 0)
    checkpoints = json.loads(every.output)["checkpoints"]
    assert [each.pop("step") for each in checkpoints] == [8, 12]
    assert checkpoints[-1] == json.loads(model.output)
    shown = page.read_text(encoding="utf-8")
    assert "Over the run" in shown
    assert "&lt;term&gt;" in shown
    assert "<term>" not in shown


def test_a_page_of_one_model_has_no_curve(whole: Path, pairs: Path, tmp_path: Path, unmask: Command) -> None:
    finished = unmask("evaluate", whole, "--pairs", pairs, "--out", tmp_path / "pairs.html")
    assert finished.code == 0
    assert "6 pairs in 2 paradigms" in finished.output
    assert "Over the run" not in (tmp_path / "pairs.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pairs", "PAIRS", "--out", "pairs.txt"], "expected the name of a page, such as pairs.html"),
        (["--pairs", "PAIRS", "--data", "x.csv"], "--pairs measures a MODEL by itself"),
        (["--data", "x.csv", "--checkpoints"], "--out and --checkpoints are for --pairs"),
        (["--pairs", "none"], "none: there is no such file or folder"),
        (["--pairs", "PAIRS", "--discriminator"], "--discriminator is for ELECTRA"),
    ],
)
def test_bad_input(arguments: list[str], message: str, whole: Path, pairs: Path, unmask: Command) -> None:
    finished = unmask("evaluate", whole, *(str(pairs) if word == "PAIRS" else word for word in arguments))
    assert finished.code == 2
    assert message in finished.errors
