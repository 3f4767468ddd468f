"""`unmask compare`: two runs, one command."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.cells import cell_len

from support.commands import Command
from support.files import write_rows
from support.untrained import save_bert
from unmask.cli.evaluating import _compare_runs


def test_two_runs_and_what_differs(tmp_path: Path, unmask: Command) -> None:
    rows = [
        {"text": text, "label": label}
        for text, label in (("a man", "a"), ("the dog", "부정"), ("an old house", "부정"))
    ]
    data = write_rows(tmp_path / "data.jsonl", *rows)
    words = [
        f"init_from={save_bert(tmp_path / 'base', [row['text'] for row in rows])}",
        f"data.train={data}",
        f"data.dev={data}",
        "train.epochs=1",
        "task.max_length=32",
    ]
    runs = [tmp_path / name for name in ("one", "other")]
    for seed, run in enumerate(runs):
        unmask("finetune", "finetune/classification", *words, f"seed={seed}", "--out", run)
    printed = unmask("compare", *runs, "--data", data).output
    assert "classification: 3 examples, 0 answered differently" in printed
    assert "too few examples differently for an interval" in printed
    assert "  f1 of 부정  " in printed
    columns = {cell_len(line.partition("(")[0]) for line in printed.splitlines() if " to " in line}
    assert len(columns) == 1, "a Korean letter takes two places"
    assert "within chance" in printed
    assert "  seed: 0 and 1\n" in printed
    found = json.loads(unmask("compare", *runs, "--data", data, "--json").output)
    assert set(found) == {"task", "n", "answered_differently", "metrics", "positive_label", "settings"}
    printed = unmask("compare", *runs).output  # two seeds of one recipe
    assert f"a: {runs[0]} (seed 0), {runs[1]} (seed 1)" in printed
    assert "dev.accuracy" in printed
    assert " ± " in printed
    assert json.loads(unmask("compare", *runs, "--json").output)["differences"]["dev.accuracy"] == []
    refused = unmask("compare", *runs, "--column", "text=x", "--device", "cpu")
    assert refused.code == 2
    assert "--column has no effect without --data: leave it out" in refused.errors
    refused = unmask("compare", *runs, "task.max_length=16")
    assert refused.code == 2
    assert "task.max_length=16 is for two models on --data FILE" in refused.errors


def test_names_of_two_places_a_letter_stand_in_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = {"pairs.조사": [0.5], "pairs.agreement": [0.25]}
    arm = SimpleNamespace(settings={}, runs={0: "runs/a"}, figures=figures)
    found = SimpleNamespace(arms=[arm], differences=dict.fromkeys(figures, ()), notes=[])
    monkeypatch.setattr("unmask.experiments.compare_runs.compare_runs", lambda runs: found)
    _compare_runs(["runs/a"], as_json=False)
    _, header, *lines, _ = capsys.readouterr().out.splitlines()
    assert {cell_len(line) for line in (header, *lines)} == {2 + len("pairs.agreement") + 1 + 19}
