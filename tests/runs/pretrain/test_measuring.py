"""What a run is measured on beside held-out losses: minimal pairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.files import write
from support.runs import weight_bytes
from unmask.errors import InputError
from unmask.inference.pairs import evaluate_pairs
from unmask.pretraining.run import pretrain
from unmask.training.run.log import read_metrics

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

PAIRS = "".join(f"{bad}\n{good}\n" for good, bad in [("He went home.", "He home went."), ("It is.", "Is it it.")] * 5)

SYSTEMS: dict[str, list[str]] = {
    "masked": ["train.weight_averaging=.5"],
    "causal": ["objective={name: causal_lm}", "model.architecture=gpt1", "packing.format=single_segment"],
    "electra": ["objective={name: replaced_token}", "model.architecture=electra", "packing.format=single_segment"],
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_pairs_are_compared_at_each_evaluation(
    system: str, tiny_recipe: Path, tiny_store: Path, tmp_path: Path
) -> None:
    pairs = write(tmp_path / "pairs.txt", PAIRS)
    words = [f"store={tiny_store}", f"eval.pairs={pairs}", "eval.pairs_sample=100", *SYSTEMS[system]]
    pretrain(str(tiny_recipe), words, out=tmp_path / "run")
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    figures = [row["eval/pairs_accuracy"] for row in rows if "eval/pairs_accuracy" in row]
    assert len(figures) == 3  # after steps 5, 10 and 12
    last = evaluate_pairs(tmp_path / "run", pairs, device="cpu")
    assert figures[-1] == last["metrics"]["accuracy"] / 100
    assert json.loads((tmp_path / "run" / "results.json").read_text())["num_pairs"] == last["n"]


def test_pairs_that_are_alike_to_the_model_are_told_once(
    tiny_recipe: Path, tiny_store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = write(tmp_path / "pairs.txt", PAIRS + "ㄱ ㄴ\nㄷ ㄹ\n")
    words = [f"store={tiny_store}", f"eval.pairs={pairs}", "eval.pairs_sample=100"]
    pretrain(str(tiny_recipe), words, out=tmp_path / "run")
    told = "which count as wrong: 1 of 11; its vocabulary lacks words of 1"
    assert caplog.text.count(told) == 1


def test_nothing_else_changes(tiny_recipe: Path, tiny_store: Path, tmp_path: Path, whole: Path) -> None:
    words = [f"store={tiny_store}", f"eval.pairs={write(tmp_path / 'pairs.txt', PAIRS)}"]
    pretrain(str(tiny_recipe), words, out=tmp_path / "run")
    assert weight_bytes(tmp_path / "run" / "model") == weight_bytes(whole / "model")


def test_a_sentence_that_is_too_short_is_refused_first(tiny_recipe: Path, tiny_store: Path, tmp_path: Path) -> None:
    """A left-to-right model that reads bare text predicts nothing of a sentence of one token."""
    pairs = write(tmp_path / "pairs.txt", f"{PAIRS}a\nb\n")
    words = [f"store={tiny_store}", f"eval.pairs={pairs}", "eval.pairs_sample=100", *SYSTEMS["causal"]]
    with pytest.raises(InputError, match="too few tokens to score"):
        pretrain(str(tiny_recipe), words, out=tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("one line\n", "1 lines: expected pairs"),
        ("a\nb\n" + "word " * 60 + "\nother words\n", "and at most 32 are read: expected a sentence"),
    ],
)
def test_pairs_that_cannot_be_compared_are_refused_first(
    text: str, message: str, tiny_recipe: Path, tiny_store: Path, tmp_path: Path
) -> None:
    words = [f"store={tiny_store}", f"eval.pairs={write(tmp_path / 'pairs.txt', text)}"]
    with pytest.raises(InputError, match=message):
        pretrain(str(tiny_recipe), words, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
