"""A run that starts from a model is measured before its first step, and says what continuing has changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.files import write
from support.runs import assert_same_run, pretrain_without_report, rows_of, stop_at
from unmask.errors import Interrupted
from unmask.pretraining.run import pretrain

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

PAIRS = "He home went.\nHe went home.\nIs it it.\nIt is.\n"


def evaluations(run: Path) -> list[dict[str, float]]:
    return [row for row in rows_of(run) if "tokens" not in row]


def test_the_figures_of_the_model_are_those_that_its_own_run_ended_with(
    tiny_recipe: Path, tiny_store: Path, tmp_path: Path
) -> None:
    """On the same held-out text and pairs; a stop and a resume change nothing of the run, nor measure it again."""
    recipe, pairs = str(tiny_recipe), write(tmp_path / "pairs.txt", PAIRS)
    words = [f"store={tiny_store}", f"eval.pairs={pairs}", "eval.pairs_sample=100"]
    first = pretrain_without_report(recipe, words, tmp_path / "first")
    results = json.loads((first / "results.json").read_text())
    words += [f"init_from={first}", "seed=9"]
    whole, run = pretrain_without_report(recipe, words, tmp_path / "whole"), tmp_path / "run"
    before, *_, after = evaluations(whole)
    assert before == {"step": 0, **{name: results[name.removeprefix("eval/")] for name in before if name != "step"}}
    assert [row["step"] for row in evaluations(whole)] == [0, 5, 10, 12]
    assert before.keys() == after.keys() >= {"eval/mlm_loss", "eval/nsp_accuracy", "eval/pairs_accuracy"}
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 3)
        with pytest.raises(Interrupted):
            pretrain(recipe, words, out=run)
    pretrain(recipe, words, out=run, resume=True)
    assert_same_run(run, whole)
    for each in (run, whole):
        log = (each / "log.txt").read_text()
        assert log.count("step 0: ") == 1
        assert log.count(f"before -> after, from {first}: mlm_loss {before['eval/mlm_loss']:.4g} -> ") == 1


def test_a_head_that_is_new_has_figures_too(recipe: str, bert: Path, tiny_store: Path, tmp_path: Path) -> None:
    """ELECTRA's in stages: what only the second one measures has no figure before."""
    words = [f"store={tiny_store}", f"init_from={bert}", "packing.format=single_segment", "train.save_every=1"]
    words += ["objective={name: replaced_token, schedule: two_stage, generator_size: 1}", "train.weight_averaging=.5"]
    run = pretrain_without_report(recipe, words, tmp_path / "run")
    before, after = evaluations(run)
    assert (before["step"], after["step"]) == (0, 2)
    assert "eval/generator_loss" in before
    assert before.keys() < after.keys()
    [line] = [line for line in (run / "log.txt").read_text().splitlines() if "before -> after" in line]
    assert "generator_loss" in line
    assert "discriminator" not in line


def test_random_weights_are_not_measured(recipe: str, tiny_store: Path, tmp_path: Path) -> None:
    words = [f"store={tiny_store}", "model.preset=tiny"]
    run = pretrain_without_report(recipe, words, tmp_path / "run")
    assert [row["step"] for row in evaluations(run)] == [2]
    assert "before -> after" not in (run / "log.txt").read_text()
