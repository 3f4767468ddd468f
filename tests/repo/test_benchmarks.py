"""Every benchmark names its claim, answers `--help`, and stands in the list with its command."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import inspect
import multiprocessing
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from unmask.errors import SettingsError
from unmask.pretraining import run
from unmask.recipe.loading import load_pretrain_recipe

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path for path in BENCHMARKS.rglob("*.py") if '__name__ == "__main__"' in path.read_text("utf-8"))


def name_of(script: Path) -> str:
    return script.relative_to(BENCHMARKS).as_posix()


def test_there_are_scripts() -> None:
    assert SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_names_its_claim_and_answers_help(script: Path) -> None:
    claim = ast.get_docstring(ast.parse(script.read_text("utf-8"))) or ""
    assert claim.startswith("Claim: ")
    finished = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert claim.splitlines()[0] in finished.stdout
    assert "--json" in finished.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_is_in_the_list(script: Path) -> None:
    assert f"`python benchmarks/{name_of(script)}" in (BENCHMARKS / "README.md").read_text("utf-8")


@pytest.mark.parametrize("script", sorted(BENCHMARKS.rglob("*.py")), ids=name_of)
def test_what_a_script_takes_from_the_package_is_there(script: Path) -> None:
    """Scripts import inside their functions, where `--help` does not come."""
    for node in ast.walk(ast.parse(script.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "unmask":
            module = importlib.import_module(node.module or "")
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            missing = [name for name in missing if importlib.util.find_spec(f"{node.module}.{name}") is None]
            assert not missing, f"line {node.lineno}: {node.module} has no {', '.join(missing)}"


def test_the_speedrun_trains_what_its_recipes_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And leaves out no phases of its own accord: they are refused beside minutes."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    speedrun = importlib.import_module("speedrun")
    loaded = {}

    def load(command: str, recipe: str, *words: str) -> str:
        if command == "pretrain":
            run = Path(words[words.index("--out") + 1])
            run.mkdir(parents=True)
            loaded[run.name] = load_pretrain_recipe(recipe, words[: words.index("--out")])
        return "{}"

    monkeypatch.setattr(speedrun, "unmask", load)
    given = Namespace(out=tmp_path, store="S", minutes=2, seeds=1, eval_every=9, pairs=None, pairs_sample=3, change=[])
    given.recipes = [*speedrun.RECIPES, "pretrain/modern_mini optimizer.name=adamw"]
    with pytest.raises(SystemExit, match="--recipes names one twice"):
        speedrun.pretrain(given, tmp_path)
    given.recipes = speedrun.RECIPES
    speedrun.pretrain(given, tmp_path)
    assert {run: recipe.train.budget for run, recipe in loaded.items()} == dict.fromkeys(
        ("modern_mini-0", "bert_mini-0"), ("minutes", 2)
    )
    given.recipes = ["pretrain/night"]
    with pytest.raises(SettingsError, match=r"train\.minutes and phases do not go together"):
        speedrun.pretrain(given, tmp_path)


def test_a_refused_connection_counts_as_a_lost_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    load = importlib.import_module("load")
    found = asyncio.run(load.open_loop(load.free_port(), [load.get("/health")], per_second=1000, seconds=0.05))
    assert found.lost > 0
    assert not found.statuses


def test_a_process_that_failed_before_its_first_request_gives_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    measure = importlib.import_module("measure")
    with measure.in_own_process(int, "ten") as call:
        [process] = multiprocessing.active_children()
        process.join()
        with pytest.raises(RuntimeError, match=r"Traceback(.|\n)*'ten'"):
            call(1)


def test_what_the_server_of_faults_puts_in_place_of_a_report_takes_what_a_report_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    [line] = [line for line in importlib.import_module("fault_server").SERVER.splitlines() if "write_report" in line]
    monkeypatch.setattr(run, "write_report", run.write_report)  # to be put back
    parameters = inspect.signature(run.write_report).parameters
    exec(line, {"run": run})
    in_its_place = inspect.signature(run.write_report)
    assert in_its_place.bind(Path(), **dict.fromkeys(list(parameters)[1:])), "else it raises TypeError"
    assert run.write_report(Path()) is None, "and writes nothing"
