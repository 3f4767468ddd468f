"""Trials side by side: what becomes of the others when one fails. The runs are pretended, in real worker processes."""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.forked import forks
from support.searches import new_recipe, run_search
from unmask.errors import InputError, UserError
from unmask.finetuning.search.search import run_trials
from unmask.finetuning.search.trial import RunOne, Runs, Trial, attempt
from unmask.recipe.tree import FinetuneRecipe

RUNS = """
import json, logging, os, signal, sys, time, warnings
from unmask.errors import InputError, UserError

logger = logging.getLogger("unmask")

def finish(directory, accuracy):
    import torch
    (directory / "model").mkdir(parents=True)
    (directory / "model" / "config.json").write_text("{}")
    figures = {"dev": {"loss": 1.0, "accuracy": accuracy}, "num_threads": torch.get_num_threads()}
    (directory / "results.json").write_text(json.dumps(figures))

def some_fail(settings, directory, *, recipe, resume, overwrite):
    if settings.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if settings.seed == 2:
        raise UserError("the loss is not finite at step 7")
    print("a bar", file=sys.stderr)
    logger.info("a message")
    if settings.seed > 2:
        logger.warning("a warning")
        warnings.warn("another one")
    finish(directory, settings.seed / 10)

def examples_are_odd(settings, directory, *, recipe, resume, overwrite):
    logger.warning("the examples are odd")
    finish(directory, 0.5)

def examples_are_bad(settings, directory, *, recipe, resume, overwrite):
    if settings.seed == 0:
        raise InputError("train.tsv:3: no label")
    assert settings.seed == 1, "no other trial begins"
    log = directory.parents[1] / "log.txt"
    while "has failed" not in log.read_text():
        time.sleep(0.01)
    finish(directory, 0.5)
"""
"""Runs that a worker can import; what they do depends on the seed."""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    context = forks()  # a process that is spawned imports PyTorch first
    monkeypatch.setattr("multiprocessing.get_context", lambda _: context)
    (tmp_path / "pretended_runs.py").write_text(RUNS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("pretended_runs")
    del sys.modules["pretended_runs"]


def search(directory: Path, settings: FinetuneRecipe, run: RunOne) -> dict[str, Any]:
    try:
        run_trials(settings, directory, recipe="a test", resume=False, overwrite=False, run=run, check=lambda _: None)
    finally:
        summary: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return summary


NAME = "lr5e-05_batch16_epochs3_seed"
KILLED = "its process was killed by SIGKILL (out of memory?): lower search.parallel"


def test_one_that_fails_or_is_killed_leaves_the_others_alone(
    tmp_path: Path, runs: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        summary = search(tmp_path / "out", new_recipe({"restarts": 5, "parallel": 2}), runs.some_fail)
    finally:
        torch.set_num_threads(threads)
    errors = [None, KILLED, "the loss is not finite at step 7", None, None]
    assert [row["trial"] for row in summary["trials"]] == [f"{NAME}{seed}" for seed in range(5)]
    assert [row["error"] for row in summary["trials"]] == errors
    assert summary["best_on_dev"]["trial"] == f"{NAME}4"
    assert json.loads((tmp_path / "out" / "trials" / f"{NAME}0" / "results.json").read_text())["num_threads"] == 2
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "5 trials, 2 at a time; each has a log.txt of its own"
    assert f"{NAME}0: accuracy 0 on dev" in lines
    assert f"{NAME}1 has failed, the others continue: {KILLED}" in lines
    assert len([line for line in lines if re.fullmatch(rf"warning: {NAME}[34]: a warning", line)]) == 1
    assert len([line for line in lines if re.fullmatch(rf"warning: {NAME}[34]: .*UserWarning: another one", line)]) == 1
    assert not {"a bar", "a message"}.intersection(lines)


@pytest.mark.slow
def test_the_signal_that_killed_a_process_is_reported_whichever_thread_has_waited_for_it(
    tmp_path: Path, runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for = os.waitpid

    def slowly(pid: int, options: int) -> tuple[int, int]:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:  # the pool's thread is first
            time.sleep(0.05)
        ended = wait_for(pid, options)
        if not is_main:  # but has not noted how the process has ended yet
            time.sleep(0.2)
        return ended

    monkeypatch.setattr(os, "waitpid", slowly)
    summary = search(tmp_path / "out", new_recipe({"restarts": 2, "parallel": 2}), runs.some_fail)
    assert [row["error"] for row in summary["trials"]] == [None, KILLED]


def test_what_was_told_of_the_inputs_is_not_told_again(
    tmp_path: Path, runs: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    def check(settings: FinetuneRecipe) -> None:
        logging.getLogger("unmask").warning("the examples are odd")

    run_search(tmp_path / "out", new_recipe({"restarts": 2, "parallel": 2}), runs.examples_are_odd, check=check)
    assert [line for line in capfd.readouterr().err.splitlines() if "odd" in line] == ["warning: the examples are odd"]
    assert (tmp_path / "out" / "log.txt").read_text().count("the examples are odd") == 1


def test_what_is_wrong_with_every_trial_lets_those_under_way_end(tmp_path: Path, runs: Any) -> None:
    with pytest.raises(InputError, match=rf"{NAME}0: train\.tsv:3: no label"):
        search(tmp_path / "out", new_recipe({"restarts": 3, "parallel": 2}), runs.examples_are_bad)
    assert [path.name for path in (tmp_path / "out" / "trials").iterdir()] == [f"{NAME}1"]
    (row,) = json.loads((tmp_path / "out" / "summary.json").read_text())["trials"]
    assert row["dev"]["accuracy"] == 0.5


OUT = "CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (torch.OutOfMemoryError(f"{OUT}. GPU 0 has a total capacity of ..."), f"{OUT}: lower train.micro_batch_size, or"
         " search.parallel where"),
        (MemoryError(), "out of memory: lower train.micro_batch_size"),
        (UserError("it diverged"), "it diverged"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_one_trial_alone_is_told(error: Exception, told: str) -> None:
    def run(*_: object, **__: object) -> Path:
        raise error

    failure = attempt(Trial("a", "a", "a", {}, new_recipe({})), Runs(Path(), "a test", run, 1))
    assert failure is not None
    assert failure.startswith(told)
