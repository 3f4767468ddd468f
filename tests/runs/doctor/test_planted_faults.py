"""What goes wrong in real runs: the doctor names it, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.commands import write_documents
from support.run_checks import copy_with_store, faults_of, levels_of
from unmask.doctor.run.checks import check_run
from unmask.finetuning.run import finetune
from unmask.pretraining.run import pretrain
from unmask.store.preparation import prepare

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_learning_rate_of_a_hundred_times(recipe: str, store: Path, tmp_path: Path, seed: int) -> None:
    words = [f"store={store}", "optimizer.learning_rate=0.3", f"seed={seed}"]
    pretrain(recipe, words, out=tmp_path / "run")
    found = check_run(tmp_path / "run")
    assert faults_of(found) == {"learning-rate-too-high"}
    findings = {finding.name: finding for finding in found}
    assert findings["mlm-unigram-floor"].level == "warning"
    assert "learning-rate-too-high" in findings["mlm-unigram-floor"].advice
    assert findings["collapsed-vectors"].level == "warning"
    assert "(mean cosine 1.0000)" in findings["collapsed-vectors"].message


def test_a_store_replaced_by_one_of_another_vocabulary(
    sound: Path, texts: list[str], other_tokenizer: Path, tmp_path: Path
) -> None:
    text = write_documents(tmp_path / "text.jsonl", texts)
    prepare([text], other_tokenizer, tmp_path / "store")
    run = tmp_path / "run"
    copy_with_store(sound, run, store=tmp_path / "store")
    assert faults_of(check_run(run)) == {"other-vocabulary"}


def test_a_store_replaced_by_one_of_other_text(sound: Path, store: Path, texts: list[str], tmp_path: Path) -> None:
    """A run is judged by what it has written, not by text that it has not seen."""
    prepare([write_documents(tmp_path / "text.jsonl", texts[:40])], store / "tokenizer", tmp_path / "store")
    copy_with_store(sound, tmp_path / "run", store=tmp_path / "store")
    findings = {finding.name: finding for finding in check_run(tmp_path / "run")}
    told = findings["inputs-unreadable"]
    assert told.level == "warning"
    assert f"store={tmp_path / 'store'} holds something else than when this run was begun" in told.message
    written = json.loads((sound / "results.json").read_text(encoding="utf-8"))["floors"]["loss/mlm"]
    assert f"{written['unigram entropy']:.3f}" in findings["mlm-unigram-floor"].message
    assert f"{written['no context']:.3f}" in findings["mlm-no-context-floor"].message


def test_weights_that_are_cut_short(sound: Path, store: Path, tmp_path: Path) -> None:
    copy_with_store(sound, tmp_path / "run", store=store)
    weights = tmp_path / "run" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert faults_of(check_run(tmp_path / "run")) == {"model-unreadable"}


def test_a_store_whose_tokenizer_was_swapped(sound: Path, store: Path, other_tokenizer: Path, tmp_path: Path) -> None:
    """Such a store does not open; why is told."""
    shutil.copytree(store, tmp_path / "store")
    shutil.copytree(other_tokenizer, tmp_path / "store" / "tokenizer", dirs_exist_ok=True)
    copy_with_store(sound, tmp_path / "run", store=tmp_path / "store")
    findings = {finding.name: finding for finding in check_run(tmp_path / "run")}
    assert "tokenizer" in findings["inputs-unreadable"].message


def test_a_few_copies_are_no_fault(recipe: str, texts: list[str], store: Path, tmp_path: Path) -> None:
    for name, num_copies in (("few", 2), ("some", 12)):
        text = write_documents(tmp_path / f"{name}.jsonl", [*texts, *texts[:num_copies]])
        prepare([text], store / "tokenizer", tmp_path / name)
        pretrain(recipe, [f"store={tmp_path / name}", "train.steps=20"], out=tmp_path / f"run-{name}")
    assert faults_of(check_run(tmp_path / "run-few")) == set()
    assert levels_of(check_run(tmp_path / "run-some"))["duplicates"] == "warning"


# Fine-tuning


def test_a_fine_tuning_run_that_tells_nothing_apart(sound: Path, samples_dir: Path, tmp_path: Path) -> None:
    data = samples_dir / "tasks" / "snli"
    words = [
        *(f"init_from={sound}", f"data.train={data / 'train.jsonl'}", f"data.dev={data / 'dev.jsonl'}"),
        *("device=cpu", "precision=fp32", "task.max_length=64", "train.log_every=5", "train.epochs=1"),
    ]
    finetune("finetune/snli", [*words, "optimizer.learning_rate=1e-7"], out=tmp_path / "run")
    told = levels_of(check_run(tmp_path / "run"))
    assert told["constant-predictions"] == "fault"
    assert "collapsed-vectors" not in told  # its head has not learnt; its encoder is as before
    assert "task-majority-floor" not in told  # by luck one label can be more frequent in dev than in training
    assert told["task-uniform-floor"] == "warning"
