"""What the command line states is read, or refused: nothing that a user gives is without effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from support.commands import Command, Finished, check_refused, write_files
from unmask.experiments import compare, compare_runs
from unmask.inference import evaluation, pairs, prediction_scoring
from unmask.inference.left_to_right import text_scores, zero_shot
from unmask.tasks.minimal_pairs import reading

STATED = {
    "--pll": "word-left-to-right", "--out": "pairs.html", "--data": "other.tsv", "--task": "boolq",
    "--dev": "other.tsv", "--na-probs": "probs.json", "--na-threshold": "0.3",
    "--encoding": "cp949", "--separator": ";", "--header": "none", "--device": "cpu", "--precision": "bf16",
    "--pairs": "other.tsv", "--predictions": "probs.json", "--method": "referent",
    "--template": "{text} {label}", "--words": "1=good", "--threshold": "-3",
}  # fmt: skip
"""A value, other than the default, of each option that has one."""

COLUMNS = ("text=words", "label=gold", "choices=ends")

PROGRAMS = (
    (evaluation, "evaluate"), (prediction_scoring, "evaluate_predictions"), (pairs, "open_scorer"),
    (pairs, "evaluate_checkpoints"), (compare, "compare"), (compare_runs, "compare_runs"),
    (text_scores, "refusing_header"), (zero_shot, "open_zero_shot"),
)  # fmt: skip

OF_OUTPUT = ("--help", "--json", "--out")
"""Options that are read when the program has ended."""

MODES = {
    "a model": ["evaluate", "model", "--data", "d.tsv"],
    "predictions": ["evaluate", "--predictions", "p.json", "--data", "d.tsv"],
    "probabilities": ["evaluate", "--predictions", "p.json", "--data", "d.tsv", "--na-probs", "p.json"],
    "pairs": ["evaluate", "model", "--pairs", "d.tsv"],
    "two models": ["compare", "model", "other", "--data", "d.tsv"],
    "runs": ["compare", "model", "other"],
    "labels": ["score", "model", "d.tsv"],
    "texts": ["score", "model", "d.tsv", "--method", "acceptability"],
}


@pytest.mark.parametrize("words", MODES.values(), ids=MODES)
def test_every_option_has_an_effect_or_is_refused(
    words: list[str], unmask: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unmask.cli.main import app

    monkeypatch.chdir(tmp_path)
    write_files(
        dict.fromkeys(("d.tsv", "other.tsv"), "sentence_good\tsentence_bad\na b\tb a\n")
        | {"p.json": "{}", "probs.json": "{}"}
    )
    received: list[object] = []
    for module, name in PROGRAMS:
        monkeypatch.setattr(module, name, recorder(received, name, ends=True))
    for name in ("read_inputs", "load_language_model", "Coverage"):
        monkeypatch.setattr(text_scores, name, recorder(received, name))
    monkeypatch.setattr(reading, "read_paradigms", received.append)

    def run(*more: str) -> tuple[Finished, str]:
        received.clear()
        return unmask(*words, *more), repr(received)

    command: Any = typer.main.get_command(app)
    usual = run()
    assert usual[1] != "[]", usual[0].errors
    options = [each for each in command.commands[words[0]].params if each.param_type_name == "option"]
    for option in options:
        for name in (*option.opts, *option.secondary_opts):
            if name in words or name in OF_OUTPUT:
                continue
            for value in COLUMNS if name == "--column" else ("",) if option.is_flag else (STATED[name],):
                finished = run(name, *filter(None, [value]))
                refused = finished[0].code == 2 and name in finished[0].errors
                assert refused or finished[1] not in ("[]", usual[1]), f"{name} {value}: {finished[0].errors}"


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "m", "d.tsv"],
        ["score", "m", "d.tsv"],
        ["doctor", "run"],
        ["tokenizer", "report", "t", "--text", "d"],
    ],
    ids=lambda words: words[0],
)
def test_an_overwrite_of_nothing_is_refused(words: list[str], unmask: Command) -> None:
    check_refused(unmask(*words, "--overwrite"), "--overwrite has no effect without --out: leave it out")


def recorder(received: list[object], name: str, ends: bool = False) -> Callable[..., Any]:
    """Keeps what it is given, and ends the command there if it `ends` it."""

    def record(*given: object, **named: object) -> Any:
        received.append((name, given, named))
        if ends:
            raise typer.Exit(0)
        return SimpleNamespace(tokenizer=None)

    return record


@pytest.mark.parametrize(
    ("command", "out", "message"),
    [
        ("evaluate gone --pairs p.jsonl", "d.html", "d.html is a directory, and a file is to be made"),
        ("doctor gone", "d.html", "d.html is a directory, and a file is to be made"),
        ("tokenizer report gone --text p.jsonl", "d.html", "d.html is a directory, and a file is to be made"),
        ("score gone p.jsonl", "none/p.jsonl", "cannot write none/p.jsonl: there is no folder none: make it first"),
        ("predict gone p.jsonl", "none/p.csv", "cannot write none/p.csv: there is no folder none: make it first"),
        ("features gone p.jsonl", "p.jsonl/out", "cannot write p.jsonl/out: Not a directory"),
        ("tokenizer train gone.txt", "p.jsonl/out", "cannot write p.jsonl/out: Not a directory"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    place: Path, unmask: Command, command: str, out: str, message: str
) -> None:
    write_files({"p.jsonl": "{}\n"})
    (place / "d.html").mkdir()
    check_refused(unmask(*command.split(), "--out", out), message)
