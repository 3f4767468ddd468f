"""The procedures of fine-tuning from end to end: searches, ensembles, early stopping, partial transfer and freezing."""

from __future__ import annotations

import importlib
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from support.files import write, write_rows
from support.runs import assert_same_weights, rows_of
from support.searches import read_json, results_of
from support.untrained import save_bert
from unmask.errors import CheckpointError, Interrupted, OutputError, SettingsError
from unmask.finetuning.run import finetune
from unmask.finetuning.search.search import run_trials
from unmask.inference.ensemble import write_ensemble
from unmask.inference.evaluation import evaluate
from unmask.inference.predictor import predict_file
from unmask.recipe.loading import load_finetune_recipe

pytestmark = [
    pytest.mark.usefixtures("one_thread", "without_report"),
    pytest.mark.filterwarnings("ignore:.*no current event loop.*:DeprecationWarning"),
]


def rows(count: int) -> list[dict[str, Any]]:
    """Examples whose label one word decides, but for every ninth."""
    words, things = [("dull", "clumsy", "empty"), ("lovely", "clever", "warm")], ["film", "story", "cast", "plot"]
    said = [words[(n + (n % 9 == 0)) % 2][n % 3] for n in range(count)]
    reviews = [f"a {word} {things[n % 4]} " + "so " * (n % 5) for n, word in enumerate(said)]
    return [{"review": review, "label": ["bad", "good"][n % 2]} for n, review in enumerate(reviews)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained model's directory: random weights."""
    texts, model = [row["review"] for row in rows(60)] * 3, tmp_path_factory.mktemp("base") / "model"
    return save_bert(model, texts, max_position_embeddings=32, initializer_range=0.1)


@pytest.fixture
def words(base: Path, tmp_path: Path) -> list[str]:
    """The overrides that every run here has."""
    for name, part in (("train", rows(60)[:40]), ("dev", rows(60)[40:])):
        write_rows(tmp_path / f"{name}.jsonl", *part)
    return [
        *(f"init_from={base}", f"data.train={tmp_path / 'train.jsonl'}", f"data.dev={tmp_path / 'dev.jsonl'}"),
        *("data.columns.text=review", "task.max_length=16", "train.epochs=3", "train.batch_size=8"),
        "optimizer.learning_rate=3e-3",
    ]


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """A recipe that says nothing but the kind of task."""
    return str(write(tmp_path / "recipe.yaml", "device: cpu\nprecision: fp32\ninit_from: x\ndata: {train: x}\n"))


SEARCH = ["search.learning_rates=[3e-3, 1e-4]", "search.restarts=2", "search.ensemble=true"]


def test_a_search_gives_the_best_model_and_an_ensemble(tmp_path: Path, recipe: str, words: list[str]) -> None:
    dev = tmp_path / "dev.jsonl"
    model = finetune(recipe, [*words, *SEARCH, f"data.test={dev}"], out=tmp_path / "out")
    summary = read_json(tmp_path / "out" / "summary.json")
    trials = {row["trial"]: tmp_path / "out" / "trials" / row["trial"] for row in summary["trials"]}
    assert len(trials) == 4
    for row in summary["trials"]:
        results = read_json(trials[row["trial"]] / "results.json")
        assert (row["dev"], row["test"]) == (results["dev"], results["test"])
        assert (trials[row["trial"]] / "recipe.yaml").is_file()
    best = summary["best_on_dev"]
    assert best["dev"]["accuracy"] == max(row["dev"]["accuracy"] for row in summary["trials"])
    assert evaluate(model, dev)["metrics"]["accuracy"] == pytest.approx(best["dev"]["accuracy"])
    assert_same_weights(trials[best["trial"]] / "model", model)

    members = [trials[name] for name in summary["ensemble"]["members"]]
    assert len(members) == 2
    together = tmp_path / "out" / "ensemble"
    said = [list(predict_file(member, dev)) for member in members]
    for first, second, both in zip(*said, predict_file(together, dev), strict=True):
        for label, probability in both["probabilities"].items():
            mean = (first["probabilities"][label] + second["probabilities"][label]) / 2
            assert probability == pytest.approx(mean, abs=1e-6)  # float32 logs and exponentials of numbers below 1
    assert evaluate(together, dev)["metrics"] == summary["ensemble"]["dev"]
    other = write_ensemble([trials[name] for name in trials], tmp_path / "all")
    assert evaluate(other, dev)["n"] == 20


def test_an_interrupted_search_ends_as_one_that_never_stopped(
    tmp_path: Path, recipe: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from unmask.training.session import Session

    given = [*words, "search.restarts=2", "train.save_every=2"]
    finetune(recipe, given, out=tmp_path / "whole")
    after_step, seen = Session.__call__, 0

    def stopping(session: Session, *arguments: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == 22:  # the seventh step of the second trial
            signal.raise_signal(signal.SIGTERM)
        after_step(session, *arguments)

    monkeypatch.setattr(Session, "__call__", stopping)
    with pytest.raises(Interrupted, match=r"out: stopped in trial 2 of 2, .* --resume continues the search"):
        finetune(recipe, given, out=tmp_path / "out")
    finetune(recipe, given, out=tmp_path / "out", resume=True)
    assert seen == 30  # fifteen steps a trial, none of them twice
    assert read_json(tmp_path / "out" / "summary.json") == read_json(tmp_path / "whole" / "summary.json")
    for trial in sorted((tmp_path / "whole" / "trials").iterdir()):
        assert_same_weights(tmp_path / "out" / "trials" / trial.name / "model", trial / "model")


STOPPED = """
import os, signal, time
from pathlib import Path
from unmask.finetuning import run as finetuning
from unmask.training.session import Session

after_step = Session.__call__

def stopping(session, state, result):
    if state.step == 7 and os.environ.get("STOP"):
        run = session.context.directory
        (run / "there").touch()
        others = [run.with_name(run.name[:-1] + seed) / "there" for seed in "01"]
        while not all(other.exists() for other in others):
            time.sleep(0.01)
        if run.name.endswith("seed1"):
            os.kill(os.getppid(), signal.SIGTERM)
        while session.context.interruption.signal_number is None:
            time.sleep(0.01)
    after_step(session, state, result)

def run(*arguments, **named):
    Session.__call__ = stopping
    finetuning.write_report = lambda *_, **__: None
    return finetuning.finetune_settings(*arguments, **named)
"""
"""Runs that workers import. Those of seeds 0 and 1 wait for each other in their seventh step; then the second tells the
parent to stop, and both wait for what it does."""


def test_a_finished_search_takes_more_restarts_and_rates(recipe: str, words: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    finetune(recipe, [*words, "search.restarts=2"], out=out)
    before = {path: path.stat().st_mtime_ns for path in (out / "trials").rglob("*") if path.is_file()}
    more = [*words, "search.restarts=3", "search.learning_rates=[3e-3, 1e-3]"]
    finetune(recipe, more, out=out, resume=True)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(list((out / "trials").iterdir())) == 6
    finetune(recipe, more, out=tmp_path / "whole")
    assert read_json(out / "summary.json") == read_json(tmp_path / "whole" / "summary.json")
    with pytest.raises(SettingsError, match="begun with other settings: search"):
        finetune(recipe, words, out=out, resume=True)  # one run is no search


def test_trials_that_were_run_one_by_one_become_a_search(recipe: str, words: list[str], tmp_path: Path) -> None:
    """As an array of a batch system makes them."""
    finetune(recipe, [*words, "search.restarts=2"], out=tmp_path / "whole")
    names = [f"lr0.003_batch8_epochs3_seed{seed}" for seed in range(2)]
    for seed in (1, 0):
        finetune(recipe, [*words, f"seed={seed}"], out=tmp_path / "out" / "trials" / names[seed], resume=True)
    made = {path: path.stat().st_ino for path in tmp_path.glob("out/trials/*/model/*")}
    finetune(recipe, [*words, "search.restarts=2"], out=tmp_path / "out", resume=True)
    assert {path: path.stat().st_ino for path in made} == made
    for file in ("summary.json", "model/model.safetensors", *(f"trials/{name}/recipe.yaml" for name in names)):
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    (tmp_path / "other" / "trials").mkdir(parents=True)
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(OutputError, match="other exists already"):
        finetune(recipe, [*words, "search.restarts=2"], out=tmp_path / "other", resume=True)


def test_a_search_is_not_resumed_from_another_model(recipe: str, words: list[str], base: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    shutil.copytree(base, begun)
    out = begun / "out"  # as some keep them
    given = [f"init_from={begun}", *words[1:]]
    finetune(recipe, [*given, "search.restarts=2"], out=out)
    (begun / "README.md").write_text("a card\n")
    finetune(recipe, [*given, "search.restarts=3"], out=out, resume=True)
    weights = load_file(begun / "model.safetensors")
    save_file({name: 2 * weight for name, weight in weights.items()}, begun / "model.safetensors")
    told = rf"init_from={begun} holds something else than when this run was begun"
    with pytest.raises(CheckpointError, match=told):
        finetune(recipe, [*given, "search.restarts=4"], out=out, resume=True)
    assert len(list((out / "trials").iterdir())) == 3


def test_a_run_of_other_settings_is_no_trial(recipe: str, words: list[str], tmp_path: Path) -> None:
    place = tmp_path / "out" / "trials" / "lr0.003_batch8_epochs3_seed1"
    finetune(recipe, [*words, "seed=1", "optimizer.weight_decay=0.5", "train.log_every=7"], out=place)
    told = r"seed1 was made with other settings than those of this search: optimizer\.weight_decay=0\.5 \(here it is"
    with pytest.raises(SettingsError, match=told):
        finetune(recipe, [*words, "search.restarts=2"], out=tmp_path / "out", resume=True)


def test_a_search_is_not_resumed_on_other_examples(
    recipe: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, out, reported = [*words, "search.restarts=2"], tmp_path / "out", list[Path]()
    monkeypatch.setattr("unmask.finetuning.search.search.write_report", reported.append)
    finetune(recipe, given, out=out)
    done, other = sorted((out / "trials").iterdir())
    shutil.rmtree(other)
    (done / "checkpoints").mkdir()  # as if it had been killed before they were deleted
    finetune(recipe, given, out=out, resume=True)
    assert not (done / "checkpoints").exists()
    assert done in reported, "it had been killed before its report, too"
    shutil.rmtree(other)
    dev = tmp_path / "dev.jsonl"
    dev.write_text(dev.read_text().replace("good", "bad", 1))
    with pytest.raises(CheckpointError, match=r"data\.dev=.*dev\.jsonl holds something else than when this run was"):
        finetune(recipe, given, out=out, resume=True)
    assert not other.exists()
    assert (done / "model" / "config.json").is_file()
    assert (out / "summary.json").is_file()


@pytest.mark.slow
def test_side_by_side_stopped_and_resumed_is_as_one_after_another(
    tmp_path: Path, recipe: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given, out = [*words, "search.restarts=3"], tmp_path / "out"
    finetune(recipe, given, out=tmp_path / "whole")
    write(tmp_path / "stopped_runs.py", STOPPED)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = importlib.import_module("stopped_runs").run

    def search_side_by_side() -> Path:
        settings = load_finetune_recipe(recipe, [*given, "search.parallel=2"])
        return run_trials(settings, out, recipe=recipe, resume=True, overwrite=False, run=run, check=lambda _: None)

    monkeypatch.setenv("STOP", "1")
    told = f"{out}: stopped; what is finished is kept, and the trials under way have saved .* --resume continues"
    with pytest.raises(Interrupted, match=told) as stopped:
        search_side_by_side()
    assert stopped.value.exit_code == 143
    seeds = [out / "trials" / f"lr0.003_batch8_epochs3_seed{seed}" for seed in range(3)]
    saved = [place / "checkpoints" / "step-00000007" for place in seeds[:2]]
    assert sorted(out.glob("trials/*/checkpoints/step-*")) == saved
    assert not seeds[2].exists()
    monkeypatch.delenv("STOP")
    assert search_side_by_side() == out / "model"
    assert ["resumed from step 7" in (place / "log.txt").read_text() for place in seeds] == [True, True, False]

    assert len(results_of(out)) > 20
    assert results_of(out) == results_of(tmp_path / "whole")


def test_early_stopping_leaves_the_best_model(tmp_path: Path, recipe: str, words: list[str]) -> None:
    given = ["train.epochs=20", "train.eval_every=2", "train.patience=8", "train.metric=accuracy"]
    chosen = [word for word in words if not word.startswith("train.epochs")]
    model = finetune(recipe, [*chosen, *given], out=tmp_path / "out")
    measured = {row["step"]: row for row in rows_of(tmp_path / "out") if "eval/accuracy" in row}
    best = max(measured, key=lambda step: measured[step]["eval/accuracy"])  # the first of equal ones
    assert max(measured) == best + 16 < 100
    results = read_json(tmp_path / "out" / "results.json")
    assert results["early_stopping"] == {"step": best, "evaluations": len(measured)}
    assert results["step"] == max(measured)
    found = results["dev"]
    assert {f"eval/{name}": value for name, value in found.items()} | {"step": best} == measured[best]
    assert evaluate(model, tmp_path / "dev.jsonl")["metrics"] == {k: v for k, v in found.items() if k != "loss"}
