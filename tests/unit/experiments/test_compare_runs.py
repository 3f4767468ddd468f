"""Runs side by side: means and spread over seeds, and differences of recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy import stats

from unmask.errors import InputError
from unmask.experiments.compare_runs import compare_runs
from unmask.finetuning.search.seeds import Difference
from unmask.recipe.loading import load_finetune_recipe, load_pretrain_recipe


def run(
    place: Path, figures: dict[str, Any], store: str = "one", recipe: str = "pretrain/bert_tiny", **given: Any
) -> Path:
    """A finished pre-training run with some figures."""
    settings = load_pretrain_recipe(recipe, {"store": str(place / "store"), **given})
    return _written(place, settings.as_written(), {**figures, "num_parameters": 5, "floors": {}}, {"store": store})


def tuned(place: Path, accuracy: float, dev: str = "dev", degenerate: str | None = None, **settings: Any) -> Path:
    given = {"init_from": "model", "data.train": "train.csv", "data.dev": "dev.csv", **settings}
    recipe = load_finetune_recipe("finetune/classification", given)
    dev_results = {"dev": {"loss": 1.0, "accuracy": accuracy}, "dev_examples": {"n": 9}}
    results = {"step": 3, **dev_results, **({"degenerate": degenerate} if degenerate else {})}
    return _written(place, recipe.as_written(), results, {"data.train": str(given["data.train"]), "data.dev": dev})


def _written(place: Path, recipe: dict[str, Any], results: dict[str, Any], text: dict[str, str]) -> Path:
    place.mkdir()
    (place / "recipe.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    (place / "results.json").write_text(json.dumps(results), "utf-8")
    (place / "data.json").write_text(json.dumps(text), "utf-8")
    return place


def arms(tmp_path: Path, one: list[float], other: list[float], **settings: Any) -> list[Path]:
    """Runs of two recipes, whose seeds begin with 1."""
    return [
        run(tmp_path / f"{name}{seed}", {"mlm_loss": loss}, seed=seed, **its)
        for name, losses, its in (("one", one, {}), ("other", other, settings))
        for seed, loss in enumerate(losses, start=1)
    ]


def test_recipes_are_compared_over_their_seeds(tmp_path: Path) -> None:
    one, other = [5.0, 5.2, 5.1, 5.4], [4.8, 5.1, 4.8, 5.3]
    found = compare_runs(iter(arms(tmp_path, one, other, **{"optimizer.learning_rate": 7e-3})))
    assert [each.settings for each in found.arms] == [
        {"optimizer.learning_rate": found.arms[0].settings["optimizer.learning_rate"]},
        {"optimizer.learning_rate": 7e-3},
    ]
    assert [list(each.runs) for each in found.arms] == [[1, 2, 3, 4]] * 2
    assert [each.figures for each in found.arms] == [{"mlm_loss": one}, {"mlm_loss": other}]
    [difference] = found.differences["mlm_loss"]
    assert difference is not None
    interval = stats.ttest_rel(other, one).confidence_interval(0.95)
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high), rel=1e-3)
    assert (difference.mean, difference.pairs) == (pytest.approx(-0.175), 4)
    assert found.notes == []


def test_only_seeds_that_both_have_are_compared(tmp_path: Path) -> None:
    runs = arms(tmp_path, [5.0, 6.0], [4.0], **{"train.batch_size": 4})
    found = compare_runs(runs)
    assert found.differences == {"mlm_loss": [Difference(-1.0, None, None, 1)]}
    alone = run(tmp_path / "alone", {"mlm_loss": 3.0}, seed=9, **{"train.batch_size": 2})
    assert compare_runs([runs[0], alone]).differences == {"mlm_loss": [None]}
    assert compare_runs(runs[:2]).differences == {"mlm_loss": []}  # two seeds of one recipe: a mean and its spread


def test_what_changes_the_question_is_said(tmp_path: Path) -> None:
    [note] = compare_runs(arms(tmp_path, [5.0], [4.0], **{"objective.masking": "whole_word"})).notes
    assert note.startswith("objective.masking decides what is hidden or drawn of the held-out text")


def test_a_budget_that_was_changed_at_a_resume_is_said(tmp_path: Path) -> None:
    """Of fine-tuning as of pre-training."""
    pretrained = arms(tmp_path, [5.0, 5.2], [4.0, 4.2], **{"optimizer.learning_rate": 7e-3})
    for runs in (pretrained, [tuned(tmp_path / "a", 0.7), tuned(tmp_path / "b", 0.8, seed=1)]):
        change = {"step": 300, "was": "train.steps=300", "now": "train.steps=400"}
        (runs[1] / "environment.json").write_text(json.dumps({"sessions": [{}, {"budget_change": change}]}))
        [note] = compare_runs(runs).notes
        assert note == (
            f"The budget of {runs[1]} was changed at step 300, from train.steps=300 to train.steps=400: a run with "
            "this budget from the start would have ended differently."
        )


def test_of_other_text_only_pairs_are_compared(tmp_path: Path) -> None:
    figures = {"mlm_loss": 5.0, "pairs_accuracy": 0.6}
    one, other = run(tmp_path / "one", figures), run(tmp_path / "other", figures, store="another", seed=1)
    found = compare_runs([one, other])
    assert list(found.differences) == ["pairs_accuracy"]
    assert "give all the same store=" in found.notes[0]
    bare = run(tmp_path / "bare", {"mlm_loss": 5.0}, store="another", seed=2)
    with pytest.raises(InputError, match=r"only pairs.*no figure in common"):
        compare_runs([one, bare])


def test_fine_tuned_runs_are_compared_on_one_dev_file(tmp_path: Path) -> None:
    one, other = tuned(tmp_path / "one", 0.7), tuned(tmp_path / "other", 0.8, **{"data.train": "more.csv"})
    found = compare_runs([one, other])
    assert [each.settings for each in found.arms] == [{"data.train": "train.csv"}, {"data.train": "more.csv"}]
    assert found.differences["dev.accuracy"] == [Difference(pytest.approx(0.1), None, None, 1)]  # type: ignore[arg-type]
    with pytest.raises(InputError, match="were measured on other files"):
        compare_runs([one, tuned(tmp_path / "elsewhere", 0.7, dev="another", seed=1)])


def test_runs_that_learned_nothing_are_named(tmp_path: Path) -> None:
    runs = [
        tuned(tmp_path / str(seed), 0.5, degenerate="all 9 predictions are 'a'" if seed else None, seed=seed)
        for seed in range(3)
    ]
    [note] = compare_runs(runs).notes
    assert note.startswith(f"{runs[1]}, {runs[2]}: every example of dev gets the same answer")


def test_a_run_that_was_not_measured_is_named(tmp_path: Path) -> None:
    bare = tuned(tmp_path / "bare", 0.7, **{"data.dev": None})
    (bare / "data.json").write_text('{"data.train": "train.csv"}', "utf-8")
    with pytest.raises(InputError, match=r"bare has no data\.dev or data\.test"):
        compare_runs([tuned(tmp_path / "one", 0.7, seed=1), bare])


def test_other_columns_of_the_same_files_are_another_arm(tmp_path: Path) -> None:
    one = tuned(tmp_path / "one", 0.7, **{"data.columns.text": "title"})
    other = tuned(tmp_path / "other", 0.9, seed=1, **{"data.columns.text": "body"})
    found = compare_runs([one, other])
    assert [each.settings for each in found.arms] == [{"data.columns.text": "title"}, {"data.columns.text": "body"}]
    assert found.notes == ["data.columns.text: what is read of the files differs."]


def test_what_a_run_lacks_is_left_out_and_named(tmp_path: Path) -> None:
    """As of a run that diverged."""
    one = run(tmp_path / "one", {"mlm_loss": 5.0, "mlm_accuracy": 0.2})
    diverged = run(tmp_path / "diverged", {"mlm_loss": float("nan"), "mlm_accuracy": 0.1}, seed=1)
    found = compare_runs([one, diverged])
    assert list(found.differences) == ["mlm_accuracy"]
    assert found.notes == [f"mlm_loss is left out: {diverged} has no finite value of it."]


def test_numbers_that_are_no_quality_are_left_out(tmp_path: Path) -> None:
    figures = {"mlm_loss": 5.0, "mlm_perplexity": 148.4, "best_f1_thresh": 0.3, "HasAns_total": 7}
    found = compare_runs([run(tmp_path / "one", figures), run(tmp_path / "other", figures, seed=1)])
    assert list(found.differences) == ["mlm_loss"]
    damaged = tuned(tmp_path / "damaged", 0.5)
    (damaged / "results.json").write_text('{"dev": [1]}', "utf-8")
    with pytest.raises(InputError, match="no figure in common"):
        compare_runs([damaged, tuned(tmp_path / "sound", 0.5, seed=1)])


@pytest.mark.parametrize(
    ("key", "one", "other", "recipe"),
    [
        ("objective.sentence_objective", "nsp", "sop", "bert_tiny"),
        ("objective.num_negatives", 1024, 100, "elmo_tiny"),
        ("train.batch_size", 32, 4, "elmo_tiny"),
        ("objective.generator_size", 0.25, 0.5, "electra_tiny"),
        ("packing.max_length", 64, 128, "bert_tiny"),
    ],
)
def test_what_else_changes_the_question(key: str, one: Any, other: Any, recipe: str, tmp_path: Path) -> None:
    runs = [
        run(tmp_path / name, {"loss": 5.0}, recipe=f"pretrain/{recipe}", **{key: value})
        for name, value in (("one", one), ("other", other))
    ]
    [note] = compare_runs(runs).notes
    assert note.startswith(key)


def test_pairs_of_other_files_are_left_out(tmp_path: Path) -> None:
    figures = {"mlm_loss": 5.0, "pairs_accuracy": 0.6}
    runs = [run(tmp_path / name, figures, **{"eval.pairs": name}) for name in ("blimp", "zorro")]
    found = compare_runs(runs)
    assert list(found.differences) == ["mlm_loss"]
    assert "other minimal pairs" in found.notes[0]


def test_runs_without_a_record_of_their_text_are_not_taken_for_alike(tmp_path: Path) -> None:
    runs = [run(tmp_path / name, {"mlm_loss": 5.0, "pairs_accuracy": 0.5}) for name in ("one", "other")]
    for each in runs:
        (each / "data.json").unlink()
    assert list(compare_runs(runs).differences) == ["pairs_accuracy"]


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    one = run(tmp_path / "one", {"mlm_loss": 5.0})
    same = run(tmp_path / "same", {"mlm_loss": 5.0})
    with pytest.raises(InputError, match="one recipe and the seed 0"):
        compare_runs([one, same])
    with pytest.raises(InputError, match="runs of pretrain and of finetune"):
        compare_runs([one, tuned(tmp_path / "tuned", 0.5)])
    for given in ([one], one, str(one)):
        with pytest.raises(InputError, match=r"^expected a list of two runs or more"):
            compare_runs(given)  # type: ignore[arg-type]
    (same / "results.json").unlink()
    with pytest.raises(InputError, match=r"has no results\.json"):
        compare_runs([one, same])
