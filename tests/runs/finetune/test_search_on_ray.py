"""A search on a Ray cluster of two machines, here two processes: the same bytes, also when one is lost half-way."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from support.files import write, write_rows
from support.ray_clusters import add_machine, lose, ray_cluster
from support.searches import read_json, results_of
from support.untrained import save_bert
from unmask.errors import Interrupted, OutputError, SettingsError, UserError
from unmask.finetuning.run import finetune, finetune_settings
from unmask.finetuning.search import on_ray
from unmask.finetuning.search.search import run_trials
from unmask.recipe.loading import load_finetune_recipe

pytestmark = [
    pytest.mark.usefixtures("one_thread", "without_report"),
    pytest.mark.filterwarnings("default"),  # Ray's own: of sockets, of its settings to come
    pytest.mark.timeout(300),
]

RUNS = """
import json, os, signal, sys, time
from pathlib import Path
from unmask.errors import InputError, UserError
from unmask.finetuning import run as finetuning
from unmask.training.session import Session

after_step = Session.__call__

def note(session):
    # Where a trial is: the process of Ray's daemon, two above its own.
    fields = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    place = session.context.directory / "is_at"
    place.with_name("half").write_text(fields[1])
    os.replace(place.with_name("half"), place)

def lost(session, state, result):
    directory = session.context.directory
    if state.step == 7 and directory.name.endswith("seed1") and not (directory / "is_at").exists():
        note(session)
        time.sleep(600)
    after_step(session, state, result)

def stopped(session, state, result):
    if state.step == 7:
        note(session)
        while session.context.interruption.signal_number is None:
            time.sleep(0.01)
    after_step(session, state, result)

def run(change, arguments, named):
    Session.__call__ = change
    finetuning.write_report = lambda *_, **__: None
    return finetuning.finetune_settings(*arguments, **named)

def losing(*arguments, **named):
    return run(lost, arguments, named)

def stopping(*arguments, **named):
    return run(stopped, arguments, named)

def killed(settings, directory, **named):
    if settings.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if settings.seed == 2:
        raise UserError("the loss is not finite at step 7")
    return run(after_step, (settings, directory), named)
"""
"""Runs that the machines import. The one of seed 1 says where it is in its seventh step, or all do, and waits there for
the loss of its machine, or for a signal."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The module of these runs, which the machines find as they find `unmask`."""
    place = tmp_path_factory.mktemp("modules")
    write(place / "runs_on_ray.py", RUNS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        patch.setenv("PYTHONPATH", str(place), prepend=os.pathsep)
        yield importlib.import_module("runs_on_ray")
    del sys.modules["runs_on_ray"]


@pytest.fixture(scope="module")
def cluster(runs: Any) -> Iterator[Cluster]:
    """Of one machine."""
    with ray_cluster(head_cpus=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all machines share: examples, a model of random weights, a recipe that names them from there."""
    folder = tmp_path_factory.mktemp("shared")
    texts = [f"a {word} film" for word in ("dull", "lovely", "empty", "clever") * 15]
    rows = [{"text": text, "label": ["bad", "good"][n % 2]} for n, text in enumerate(texts)]
    save_bert(folder / "model", texts, max_position_embeddings=32, initializer_range=0.1)
    write_rows(folder / "train.jsonl", *rows[:40])
    write_rows(folder / "dev.jsonl", *rows[40:])
    recipe = {
        "device": "cpu",
        "precision": "fp32",
        "init_from": "model",
        "task": {"max_length": 16},
        "data": {"train": "train.jsonl", "dev": "dev.jsonl"},
        "optimizer": {"learning_rate": 3e-3},
        "train": {"epochs": 3, "batch_size": 8, "save_every": 2},
        "search": {"restarts": 3},
    }
    write(folder / "recipe.yaml", json.dumps(recipe))
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, bytes]:
    """The results of one trial after another, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for module in ("run", "search.search"):
            patch.setattr(f"unmask.finetuning.{module}.write_report", lambda *_, **__: None)
        finetune("recipe.yaml", out="whole")
    return results_of(folder / "whole")


def search(out: str, run: Any, address: str | None) -> Path:
    settings = load_finetune_recipe("recipe.yaml", [f"search.ray={address or 'null'}"])
    return run_trials(
        settings, Path(out), recipe="recipe.yaml", resume=True, overwrite=False, run=run, check=lambda _: None
    )


def when_there(places: list[Path], what: Callable[[list[str]], object]) -> threading.Thread:
    """Waits in a thread until trials have said where they are."""

    def wait() -> None:
        while not all(place.exists() for place in places):
            ended.wait(0.05)
        what([place.read_text() for place in places])

    ended = threading.Event()
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def trial(out: str, seed: int) -> Path:
    return Path(out, "trials", f"lr0.003_batch8_epochs3_seed{seed}")


@pytest.mark.slow
def test_a_lost_machine_costs_no_trial_and_no_byte(
    folder: Path, whole: dict[str, bytes], runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with ray_cluster() as cluster:
        nodes = [add_machine(cluster) for _ in range(2)]

        def lose_it(pids: list[str]) -> None:
            (node,) = [node for node in nodes if node.all_processes["raylet"][0].process.pid == int(pids[0])]
            lose(cluster, node)

        waiting = when_there([trial("lost", 1) / "is_at"], lose_it)
        search("lost", runs.losing, cluster.address)
        waiting.join()
    assert len(whole) > 20
    assert results_of(folder / "lost") == whole
    told = (folder / "lost" / "log.txt").read_text()
    assert "3 trials, 2 at a time; each has a log.txt of its own" in told
    assert "seed1 begins again from its last checkpoint: its machine is lost" in told
    assert "resumed from step 6" in (trial("lost", 1) / "log.txt").read_text()


@pytest.mark.slow
def test_stopped_there_and_resumed_here(
    cluster: Cluster, folder: Path, whole: dict[str, bytes], runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one machine, so the other trials have not begun."""
    monkeypatch.chdir(folder)
    waiting = when_there([trial("stopped", 0) / "is_at"], lambda _: os.kill(os.getpid(), signal.SIGTERM))
    told = "stopped: stopped; what is finished is kept, and the trials under way have saved .* --resume continues"
    with pytest.raises(Interrupted, match=told) as stopped:
        search("stopped", runs.stopping, cluster.address)
    waiting.join()
    assert stopped.value.exit_code == 143
    assert sorted(Path("stopped").glob("trials/*/checkpoints/step-*"))[-1].name == "step-00000007"
    search("stopped", finetune_settings, None)
    assert results_of(folder / "stopped") == whole
    assert "resumed from step 7" in (trial("stopped", 0) / "log.txt").read_text()
    assert "resumed with search.ray=None, where it was" in Path("stopped", "log.txt").read_text()


@pytest.mark.slow
def test_one_that_fails_or_is_killed_leaves_the_others_alone(
    cluster: Cluster, folder: Path, runs: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    search("killed", runs.killed, cluster.address)
    errors = [row["error"] for row in read_json(folder / "killed" / "summary.json")["trials"]]
    killed = "its process was killed by SIGKILL (out of memory?): lower search.parallel"
    assert errors == [None, killed, "the loss is not finite at step 7"]
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "stands_in", "told"),
    [
        pytest.param(
            "sha256",
            lambda path: "of another file",
            "does not see what was just written in odd: give every machine the",
            marks=pytest.mark.slow,
        ),
        ("installed_versions", lambda: {"unmask": "0.0"}, r"runs python 3\.\S+, and this one None: install the same"),
    ],
)
def test_a_machine_that_is_not_like_this_one_ends_the_search(
    cluster: Cluster, folder: Path, runs: Any, monkeypatch: pytest.MonkeyPatch, name: str, stands_in: Any, told: str
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(on_ray, name, stands_in)
    with pytest.raises((OutputError, SettingsError), match=rf"search\.ray: the machine \S+ {told}"):
        search("odd", runs.losing, cluster.address)


@pytest.mark.parametrize(
    ("address", "told"),
    [("127.0.0.1:1", "search.ray=127.0.0.1:1: no Ray cluster answers there"), ("auto", "search.ray needs the library")],
)
def test_nothing_is_written_without_a_cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch, address: str, told: str
) -> None:
    monkeypatch.chdir(folder)
    if address == "auto":
        monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingsError, match=told):
        finetune("recipe.yaml", [f"search.ray={address}", "data.train=read-later.jsonl"], out="nowhere")
    assert not Path("nowhere").exists()


def test_a_cluster_is_for_a_search(folder: Path) -> None:
    given = ["search.restarts=1", "search.ray=auto"]
    with pytest.raises(UserError, match="ray=auto is for a search, and here is one run: set restarts, or leave it out"):
        load_finetune_recipe(str(folder / "recipe.yaml"), given)
