"""`model.*` beside `init_from`: what is given decides, not what is so by default; and what a run writes down of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from support.continued import hidden_states, largest_difference, module_of, run_two_steps
from support.runs import weight_bytes
from unmask.errors import SettingsError
from unmask.models.hub.directory import load_model
from unmask.pretraining.checkpoint_model import save_checkpoint_model
from unmask.pretraining.run import pretrain
from unmask.pretraining.start import open_start
from unmask.recipe.loading import load_pretrain_recipe

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

SINGLE = "packing.format=single_segment"
RTD = ["objective={name: replaced_token}", SINGLE]


@pytest.mark.parametrize("name", ["bert_base", "bert_large"])
def test_a_recipe_of_another_size_is_refused(name: str, bert: Path, tiny_store: Path, tmp_path: Path) -> None:
    """Of the default size as of any other."""
    words = [f"store={tiny_store}", f"init_from={bert}", "phases=[]", "packing.max_length=32", "train.steps=1"]
    told = r"^model\.\* says other sizes than init_from=.*: .*num_hidden_layers (12|24) and not 2"
    with pytest.raises(SettingsError, match=told):
        pretrain(f"pretrain/{name}", words, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_family_that_is_so_by_default_is_refused_where_it_is_given(
    recipe: str, tiny_recipe: Path, tiny_store: Path, tmp_path: Path
) -> None:
    """And the recipe that a run without it writes down does not give it."""
    full = ["objective.sentence_objective=none", "packing.format=full_sentences", f"store={tiny_store}"]
    changes = ["model.architecture=roberta", "model.max_position_embeddings=40", "train.steps=1"]
    roberta = pretrain(str(tiny_recipe), [*full, *changes, "schedule.warmup_steps=0"], out=tmp_path / "roberta")
    words = [*full, f"init_from={roberta}"]
    pretrain(recipe, words, out=tmp_path / "run")
    open_start(load_pretrain_recipe(str(tmp_path / "run" / "recipe.yaml")))
    with pytest.raises(SettingsError, match="architecture bert and not roberta"):
        open_start(load_pretrain_recipe(recipe, [*words, "model.architecture=bert"]))


@pytest.mark.parametrize("word", ["objective.output_bias=log_frequency", "model.zero_output_projections=true"])
def test_what_is_said_of_random_weights_is_refused(
    word: str, recipe: str, bert: Path, tiny_store: Path, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=r"^init_from=.* has weights, and objective\.output_bias and model\.zero_"):
        pretrain(recipe, [f"store={tiny_store}", f"init_from={bert}", word], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_said_of_random_weights_can_be_taken_back(
    bert: Path, recipe: str, tiny_store: Path, tmp_path: Path
) -> None:
    """So the recipe that made a model continues it."""
    words = [f"store={tiny_store}", f"init_from={bert}", "objective.output_bias=zero"]
    assert pretrain(recipe, [*words, "model.zero_output_projections=false"], out=tmp_path / "run").is_dir()


def test_what_a_run_writes_down_is_a_recipe(recipe: str, bert: Path, tiny_store: Path, tmp_path: Path) -> None:
    words = [f"store={tiny_store}", f"init_from={bert}", "model.hidden_size=32"]
    model = pretrain(recipe, words, out=tmp_path / "run")
    written = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert written["model"] == {"hidden_size": 32}
    assert "tokenizer" not in written
    again = pretrain(str(tmp_path / "run" / "recipe.yaml"), out=tmp_path / "again")
    assert weight_bytes(again) == weight_bytes(model)


@pytest.mark.parametrize("goes_on_by", ["the command", "its recipe"])
def test_a_run_of_before_goes_on(goes_on_by: str, recipe: str, bert: Path, tiny_store: Path, tmp_path: Path) -> None:
    """Its recipe says `preset: base`, which nobody had given, and every other key."""
    words = [f"store={tiny_store}", f"init_from={bert}", "model.hidden_size=32", "train.save_every=1"]
    run = tmp_path / "run"
    finished = pretrain(recipe, words, out=run)
    kept = weight_bytes(finished)
    written = load_pretrain_recipe(recipe, words).model_dump(mode="json")
    assert (written["model"]["preset"], written["tokenizer"]["vocab_size"]) == ("base", 30522)
    (run / "recipe.yaml").write_text(yaml.safe_dump(written))
    save_checkpoint_model(run, tmp_path / "model")
    assert weight_bytes(tmp_path / "model") == kept
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "checkpoints" / "step-00000002")
    given = (recipe, words) if goes_on_by == "the command" else (str(run / "recipe.yaml"), [])
    pretrain(*given, out=run, resume=True)
    assert weight_bytes(run / "model") == kept


# Dropout


def test_dropout_is_no_size(recipe: str, bert: Path, tiny_store: Path, tmp_path: Path) -> None:
    words = [f"store={tiny_store}", f"init_from={bert}"]
    other = [*words, "model.hidden_dropout_prob=.3", "model.attention_probs_dropout_prob=0"]
    before, module = module_of(recipe, words), module_of(recipe, other)
    sizes = module.encoder.settings
    assert (sizes.hidden_dropout_prob, sizes.attention_probs_dropout_prob) == (0.3, 0)
    weights = before.state_dict()
    assert weights.keys() == module.state_dict().keys()
    assert all(torch.equal(weight, weights[name]) for name, weight in module.state_dict().items())
    states = [each.train().encoder.embeddings for each in (before, module)]
    assert [embeddings.dropout_prob for embeddings in states] == [0.1, 0.3]
    model = run_two_steps(recipe, [*other, "train.save_every=1"], tmp_path / "run")
    config = json.loads((model / "config.json").read_text())
    assert (config["hidden_dropout_prob"], config["attention_probs_dropout_prob"]) == (0.3, 0)
    assert load_model(save_checkpoint_model(tmp_path / "run", tmp_path / "model")).encoder.settings == sizes


@pytest.mark.parametrize("tied", ["all", "none"])
def test_a_generator_gets_the_same_dropout(
    tied: str, recipe: str, bert: Path, tiny_store: Path, tmp_path: Path
) -> None:
    words = [f"store={tiny_store}", *RTD, f"objective.tie_embeddings={tied}"]
    first = run_two_steps(recipe, [*words, f"init_from={bert}"], tmp_path / "first")
    other = [*words, f"init_from={first}", "model.hidden_dropout_prob=.3"]
    before, module = module_of(recipe, [*words, f"init_from={first}"]), module_of(recipe, other)
    for encoder in (module.encoder, module.generator):
        assert encoder.settings.hidden_dropout_prob == encoder.embeddings.narrow.dropout_prob == 0.3
    assert (module.generator.embeddings.narrow is module.encoder.embeddings.narrow) == (tied == "all")
    weights = before.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in module.state_dict().items())
    run_two_steps(recipe, other, tmp_path / "second")


def test_a_deeper_model_begins_with_the_loss_of_the_one_it_is_made_of(
    recipe: str, tiny_recipe: Path, tiny_store: Path, tmp_path: Path
) -> None:
    full = ["objective.sentence_objective=none", "packing.format=full_sentences", f"store={tiny_store}"]
    sizes = ["model.architecture=modernbert", "train.steps=1", "schedule.warmup_steps=0"]
    modern = pretrain(str(tiny_recipe), [*full, *sizes], out=tmp_path / "modern")
    words = [*full, f"init_from={modern}", "model.num_hidden_layers=5"]
    before = module_of(recipe, [*full, f"init_from={modern}"])
    deeper = module_of(recipe, words)
    assert len(deeper.encoder.blocks) == 5
    assert largest_difference(hidden_states(deeper.encoder), hidden_states(before.encoder)) < 1e-6
    model = run_two_steps(recipe, words, tmp_path / "run")
    assert json.loads((model / "config.json").read_text("utf-8"))["num_hidden_layers"] == 5
    with pytest.raises(SettingsError, match="num_hidden_layers 1 and not 3"):
        open_start(load_pretrain_recipe(recipe, [*words[:-1], "model.num_hidden_layers=1"]))
