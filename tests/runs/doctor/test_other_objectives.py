"""What the doctor says of runs of other objectives than masked words and pairs of segments."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.commands import write_documents
from support.run_checks import MLM_FLOORS, faults_of, levels_of
from unmask.doctor.run.checks import check_run
from unmask.pretraining.run import pretrain
from unmask.store.preparation import prepare

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

OTHERS = {
    "causal_lm": ["objective.name=causal_lm", "model.causal=true", "packing.format=doc_sentences"],
    "electra": ["objective.name=replaced_token", "model.architecture=electra", "packing.format=full_sentences"],
    "two stages": [
        *("objective.name=replaced_token", "model.architecture=electra", "packing.format=single_segment"),
        *("objective.schedule=two_stage", "objective.generator_size=1"),
    ],
    "sop": ["objective.sentence_objective=sop"],
}
REPLACED = {
    *("generator-uniform-floor", "generator-unigram-floor", "generator-no-context-accuracy-floor"),
    *("discriminator-share-floor", "discriminator-majority-floor"),
}
FLOORS = {
    "causal_lm": {"lm-unigram-floor", "lm-uniform-floor"},
    "electra": REPLACED,
    "two stages": REPLACED,
    "sop": {*MLM_FLOORS, "sop-chance-floor", "sop-majority-floor"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_sound_run_of_another_objective(recipe: str, store: Path, tmp_path: Path, name: str) -> None:
    pretrain(recipe, [f"store={store}", *OTHERS[name], "train.steps=20", "train.save_every=10"], out=tmp_path / "run")
    found = check_run(tmp_path / "run")
    assert faults_of(found) == set()
    told = levels_of(found)
    assert {name for name in told if name.endswith("-floor")} == FLOORS[name]
    assert told["no-cause"] == "good"
    assert "inputs-unreadable" not in told
    shutil.rmtree(tmp_path / "run" / "model")
    assert levels_of(check_run(tmp_path / "run"))["unfinished-run"] == "warning"  # judged by its checkpoint


def test_faults_of_another_objective(recipe: str, texts: list[str], store: Path, tmp_path: Path) -> None:
    text = write_documents(tmp_path / "text.jsonl", texts[:20] * 10)
    prepare([text], store / "tokenizer", tmp_path / "store")
    words = [f"store={tmp_path / 'store'}", *OTHERS["causal_lm"], "train.steps=20"]
    pretrain(recipe, words, out=tmp_path / "run")
    assert faults_of(check_run(tmp_path / "run")) == {"repeated-corpus"}
    for path in (tmp_path / "run" / "checkpoints").glob("*/state.json"):
        path.write_text("{}")
    assert levels_of(check_run(tmp_path / "run"))["checkpoints-unusable"] == "warning"
    shutil.rmtree(tmp_path / "run" / "model")
    assert "checkpoints-unusable" in faults_of(check_run(tmp_path / "run"))


def test_a_run_that_masks_spans_is_judged_whole(recipe: str, store: Path, tmp_path: Path) -> None:
    words = ["objective.sentence_objective=none", "objective.masking=span", "packing.format=single_segment"]
    pretrain(recipe, [f"store={store}", *words, "objective.span_boundary=true", "train.steps=20"], out=tmp_path / "run")
    found = check_run(tmp_path / "run")
    assert faults_of(found) == set()
    told = {finding.name: finding.message for finding in found}
    assert {name for name in told if name.startswith("sbo")} == {
        *("sbo-uniform-floor", "sbo-unigram-floor", "sbo-no-context-accuracy-floor")
    }
    assert "(unigram entropy of the held-out targets)" in told["sbo-unigram-floor"]
