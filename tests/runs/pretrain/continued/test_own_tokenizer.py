"""Pre-training that goes on from a model on raw text: with the model's own tokenizer, and what is refused before any
work is done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.continued import run_two_steps
from support.runs import weight_bytes
from unmask.errors import SettingsError
from unmask.pretraining.own_store import find_tokenizer
from unmask.pretraining.run import pretrain
from unmask.pretraining.start import open_start
from unmask.recipe.loading import load_pretrain_recipe
from unmask.tokenization.learning.extension import extend_tokenizer
from unmask.tokenization.learning.from_files import train_tokenizer
from unmask.tokenization.opening import open_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

FOUR_STEPS = ["train.steps=4", "train.save_every=2"]


@pytest.fixture
def without_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a tokenizer nor a store may be made."""
    for name in ("train_tokenizer", "prepare"):
        monkeypatch.setattr(f"unmask.pretraining.own_store.{name}", lambda *_, **__: pytest.fail("works in vain"))


def test_raw_text_is_cut_by_the_models_own_tokenizer(
    recipe: str, bert: Path, tiny_text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On the model's own text too, of which a new tokenizer would begin with the same entries."""
    run, again = tmp_path / "run", tmp_path / "again"
    with caplog.at_level("INFO", "unmask"):
        model = pretrain(recipe, [f"corpus={tiny_text}", f"init_from={bert}", *FOUR_STEPS], out=run)
    told = f"tokenizer: that of init_from={bert}"
    assert caplog.messages.count(told) == 1
    assert not [line for line in caplog.messages if "are new to" in line]
    assert load_tokenizer(model).token_strings == load_tokenizer(bert).token_strings
    assert json.loads((model / "config.json").read_text())["vocab_size"] == 200
    assert not (run / "tokenizer").exists()
    finished = weight_bytes(run / "model")
    pretrain(run / "recipe.yaml", out=again)
    assert weight_bytes(again / "model") == finished
    for later in ("model", "checkpoints/step-00000004"):
        shutil.rmtree(run / later)
    caplog.clear()
    with caplog.at_level("INFO", "unmask"):
        pretrain(recipe, [f"corpus={tiny_text}", f"init_from={bert}", *FOUR_STEPS], out=run, resume=True)
    assert "resumed from step 2" in caplog.messages
    assert told not in caplog.messages
    assert weight_bytes(run / "model") == finished


@pytest.mark.usefixtures("without_work")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["tokenizer.vocab_size=200"], "tokenizer.vocab_size: it is"),
        (["tokenizer.lowercase=true", "tokenizer.kind=wordpiece"], "tokenizer.kind, tokenizer.lowercase: they are"),
    ],
)
def test_how_to_train_a_tokenizer_means_nothing_beside_a_model(
    words: list[str], told: str, recipe: str, bert: Path, tiny_text: Path, tmp_path: Path
) -> None:
    message = rf"^{told} for a new tokenizer, .*: give tokenizer={bert}, the model's own, or one that"
    with pytest.raises(SettingsError, match=message):
        pretrain(recipe, [f"corpus={tiny_text}", f"init_from={bert.parent}", *words], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["pretrain/afternoon_deeper", "pretrain/continued_night"])
def test_a_recipe_that_continues_leaves_out_how_its_base_trains_a_tokenizer(
    name: str, tiny_store: Path, tiny_text: Path, tmp_path: Path
) -> None:
    words = [f"store={tiny_store}", "device=cpu", "train.steps=1", "train.batch_size=4"]
    model = pretrain("pretrain/modern_mini", words, out=tmp_path / "first")
    words = [f"corpus={tiny_text}", f"init_from={model}"]
    assert find_tokenizer(open_start(load_pretrain_recipe(name, words)), tmp_path / "run") == model
    with pytest.raises(SettingsError, match=r"^tokenizer\.vocab_size: it is for a new tokenizer"):
        find_tokenizer(open_start(load_pretrain_recipe(name, [*words, "tokenizer.vocab_size=200"])), tmp_path / "run")


@pytest.mark.usefixtures("without_work")
def test_a_model_without_a_tokenizer_needs_one(recipe: str, bert: Path, tiny_text: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "bare").mkdir(exist_ok=True)
        shutil.copy(bert / name, tmp_path / "bare")
    words = [f"corpus={tiny_text}", f"init_from={tmp_path / 'bare'}"]
    with pytest.raises(SettingsError, match=r"bare has no tokenizer beside it: give tokenizer=DIR, the one that"):
        pretrain(recipe, words, out=tmp_path / "run")


def test_another_tokenizer_is_refused_before_the_store_is_made(
    recipe: str, bert: Path, samples_dir: Path, tiny_text: Path, tmp_path: Path, without_work: None
) -> None:
    korean = samples_dir / "text" / "ko-constitution.jsonl"
    train_tokenizer([korean], tmp_path / "tokenizer", TokenizerSettings(vocab_size=200, alphabet_size=60))
    words = [f"corpus={tiny_text}", f"init_from={bert}", f"tokenizer={tmp_path / 'tokenizer'}"]
    told = rf"has other vocabulary entries than the tokenizer of .*: take the model's own, tokenizer={bert}, or one"
    with pytest.raises(SettingsError, match=told):
        pretrain(recipe, words, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_extended_tokenizer_may_be_given_for_raw_text(
    recipe: str, bert: Path, tiny_text: Path, tmp_path: Path
) -> None:
    (tmp_path / "words.txt").write_text("gutenberg\n")
    extend_tokenizer(bert, tmp_path / "words.txt", tmp_path / "wider")
    words = [f"corpus={tiny_text}", f"init_from={bert}", f"tokenizer={tmp_path / 'wider'}"]
    model = run_two_steps(recipe, words, tmp_path / "run")
    assert load_tokenizer(model).token_strings[200:] == ("gutenberg",)


def test_an_elmo_reads_raw_text_by_its_own_words(tiny_text: Path, tmp_path: Path) -> None:
    """Though a tokenizer that a recipe says nothing about would be one of word pieces."""
    recipe = tmp_path / "elmo.yaml"
    recipe.write_text(
        "device: cpu\nprecision: fp32\nheld_out: 0\nobjective: {name: bilm, num_negatives: 50}\n"
        "packing: {format: stream, max_length: 10}\noptimizer: {weight_decay: 0}\n"
        "train: {steps: 2, batch_size: 4}\n"
    )
    sizes = ["model={architecture: elmo, preset: tiny, projection_size: 8, cell_size: 16}"]
    words = [f"corpus={tiny_text}", "tokenizer={kind: word, vocab_size: 200}"]
    first = pretrain(str(recipe), [*sizes, *words], out=tmp_path / "first")
    second = pretrain(str(recipe), [words[0], f"init_from={first}"], out=tmp_path / "second")
    assert open_tokenizer(second).token_strings == open_tokenizer(first).token_strings
    elmo_original = ["model.architecture=elmo", "model.preset=original"]
    third = pretrain(str(tmp_path / "second" / "recipe.yaml"), out=tmp_path / "third")
    assert (third / "config.json").read_bytes() == (second / "config.json").read_bytes()
    with pytest.raises(SettingsError, match=r"^model\.\* says other sizes than .*cell_size 4096 and not 16"):
        open_start(load_pretrain_recipe(str(recipe), [words[0], f"init_from={first}", *elmo_original]))
    with pytest.raises(SettingsError, match=r"^model\.\* says other sizes than .*: architecture bert and not elmo"):
        open_start(load_pretrain_recipe(str(recipe), [words[0], f"init_from={first}", "model.preset=base"]))
