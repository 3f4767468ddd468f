"""What the doctor says of sound runs, and of runs that are not whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from support.commands import write_documents
from support.run_checks import MLM_FLOORS, copy_with_store, faults_of, levels_of
from unmask.doctor.run.causes import gather_evidence, read_record
from unmask.doctor.run.checks import check_run
from unmask.errors import InputError
from unmask.objectives.floors import by_figure
from unmask.pretraining.inputs import open_inputs
from unmask.pretraining.run import pretrain
from unmask.pretraining.steps import count_targets
from unmask.recipe.loading import read_recipe
from unmask.recipe.tree import PretrainRecipe

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


def test_a_sound_run_has_no_cause_of_failure(sound: Path) -> None:
    found = check_run(sound)
    assert faults_of(found) == set()
    told = levels_of(found)
    assert told["no-cause"] == "good"
    assert told["mlm-uniform-floor"] == "good"
    assert told["more-tokens"] == "note"  # 120 steps end on the plateau of what is had without context
    assert told["mlm-no-context-floor"] == "warning"
    assert {*MLM_FLOORS, "nsp-chance-floor", "nsp-majority-floor"} <= set(told)
    assert not {"unfinished-run", "collapsed-vectors"} & set(told)


@pytest.mark.parametrize(
    "words",
    [
        ["seed=5", "objective.sentence_objective=none", "train.steps=30", "model.hidden_dropout_prob=0"],
        ["seed=6", "held_out=0", "objective.masking=whole_word", "optimizer.learning_rate=1e-3", "train.steps=30"],
        # A fresh model whose weights are large is worse than guessing evenly at first.
        ["seed=7", "model.initializer_range=0.2", "train.steps=30", "schedule.warmup_steps=0"],
        ["seed=8", "train.steps=3", "train.log_every=1"],
        # Rows of two sequences jump by more than a nat.
        ["seed=1", "train.batch_size=2", "train.log_every=1"],
    ],
)
def test_other_sound_runs_have_none_either(recipe: str, store: Path, tmp_path: Path, words: list[str]) -> None:
    pretrain(recipe, [f"store={store}", *words], out=tmp_path / "run")
    assert faults_of(check_run(tmp_path / "run")) == set()


def test_a_run_made_from_a_corpus_finds_its_own_store(recipe: str, texts: list[str], tmp_path: Path) -> None:
    corpus = write_documents(tmp_path / "text.jsonl", texts[:12])
    words = [f"corpus={corpus}", "tokenizer.vocab_size=300", "train.steps=20", "train.eval_every=null"]
    pretrain(recipe, words, out=tmp_path / "run")
    told = levels_of(check_run(tmp_path / "run"))
    assert "inputs-unreadable" not in told
    assert told["no-cause"] == "good"


@pytest.mark.parametrize("words", [["objective.masking=whole_word"], ["held_out=0"]], ids=["held out", "nothing"])
def test_a_run_is_compared_with_the_same_floors_everywhere(
    recipe: str, store: Path, tmp_path: Path, words: list[str]
) -> None:
    """In its results and by its doctor: those of the held-out targets, or without any those of the whole store."""
    run = tmp_path / "run"
    pretrain(recipe, [f"store={store}", "train.steps=2", *words], out=run)
    settings = read_recipe(run / "recipe.yaml")
    assert isinstance(settings, PretrainRecipe)
    written = json.loads((run / "results.json").read_text(encoding="utf-8"))["floors"]
    floors = gather_evidence(read_record(run), settings).floors
    assert written == by_figure(floors)
    opened = open_inputs(settings, run, 1, None)
    counts = count_targets(opened.store, opened.tokenizer)
    of_store = by_figure(opened.objective.floors(counts))
    assert (written["loss/mlm"] == of_store["loss/mlm"]) == (not opened.held_out)
    of_targets = [floor.what for floor in floors if "of the held-out targets" in floor.what]
    assert bool(of_targets) == bool(opened.held_out)


def test_checking_leaves_the_generator_and_the_run_as_they_were(sound: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in sound.rglob("*")}
    torch.manual_seed(1)
    check_run(sound)
    drawn = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(3))
    assert {path: path.stat().st_mtime_ns for path in sound.rglob("*")} == before


# Runs that are not whole


def test_an_unfinished_run_is_judged_by_its_checkpoint(sound: Path, store: Path, tmp_path: Path) -> None:
    copy_with_store(sound, tmp_path / "run", store)
    shutil.rmtree(tmp_path / "run" / "model")
    told = levels_of(check_run(tmp_path / "run"))
    assert told["unfinished-run"] == "warning"
    assert told["no-cause"] == "good"


def test_a_run_whose_store_is_gone_is_judged_by_its_figures(sound: Path, tmp_path: Path) -> None:
    copy_with_store(sound, tmp_path / "run", tmp_path / "nowhere")
    findings = {finding.name: finding for finding in check_run(tmp_path / "run")}
    assert "nowhere" in findings["inputs-unreadable"].message
    told = levels_of(list(findings.values()))
    assert {name for name in told if name.endswith("-floor")} == {"mlm-unigram-floor", "mlm-no-context-floor"}
    assert told["no-cause"] == "good"


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not a run \(recipe.yaml is missing\)"):
        check_run(tmp_path)
