"""ELMo from text to answers: words, store, pre-training with the memory of its lanes, fine-tuning, features."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from support.corpora import learn_and_prepare
from support.elmo import write_elmo_recipe
from support.files import write, write_rows
from support.runs import assert_same_weights, pretrain_without_report
from support.tensors import same_batch
from unmask.errors import ModelError, SettingsError, UserError
from unmask.finetuning.run import finetune
from unmask.inference.averaging import average_models
from unmask.inference.ensemble import write_ensemble
from unmask.inference.evaluation import evaluate
from unmask.inference.features.extraction import extract_features
from unmask.inference.predictor import load_predictor, predict
from unmask.models.elmo.encoder import ElmoEncoder
from unmask.models.hub.directory import load_model
from unmask.models.hub.uses import FINE_TUNED
from unmask.objectives.table import new_objective
from unmask.pretraining.inputs import open_inputs, prepare_held_out
from unmask.pretraining.run import pretrain
from unmask.pretraining.start import open_start
from unmask.recipe.loading import load_pretrain_recipe
from unmask.store.store import TokenStore
from unmask.tokenization.kinds.word_characters import load_word_tokenizer
from unmask.training.run import checkpoint
from unmask.training.run.log import read_metrics

NUM_LANES, PROJECTION, CELL = 8, 8, 16

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tiny_text: Path) -> Path:
    return learn_and_prepare(tiny_text, tmp_path_factory.mktemp("words"), kind="word", vocab_size=300)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, store: Path) -> tuple[str, list[str]]:
    train = {"max_grad_norm": 0.5, "log_every": 3, "eval_every": 5, "eval_sequences": 64}
    recipe = write_elmo_recipe(tmp_path_factory.mktemp("recipe") / "elmo.yaml", held_out=0.3, train=train)
    return recipe, [f"store={store}"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, words: tuple[str, list[str]]) -> Path:
    """A run that was never interrupted."""
    return pretrain_without_report(*words, tmp_path_factory.mktemp("run") / "whole")


# Pre-training


def test_runs_of_other_seeds_are_measured_on_the_same_windows(words: tuple[str, list[str]], store: Path) -> None:
    recipe, given = words
    opened = TokenStore(store)
    tokenizer = load_word_tokenizer(opened.tokenizer_directory)
    batches = []
    for seed in (0, 7):
        settings = load_pretrain_recipe(recipe, [*given, f"seed={seed}"])
        objective = new_objective(settings.objective, tokenizer.vocabulary)
        batches.append(prepare_held_out(open_start(settings), opened, tokenizer, objective))
    assert batches[0]
    assert all(map(same_batch, *batches))


def test_a_run_leaves_a_model_and_says_how_it_learned(whole: Path, store: Path) -> None:
    rows = read_metrics(whole / "metrics.jsonl")
    losses = [row["loss/lm"] for row in rows if "loss" in row]
    assert losses[-1] < losses[0]
    evaluation = rows[-1]
    assert evaluation["eval/lm_perplexity"] == pytest.approx(np.exp(evaluation["eval/lm_loss"]))
    results = json.loads((whole / "results.json").read_text())
    assert 0 < results["floors"]["loss/lm"]["unigram entropy"] < np.log(300)
    loaded = load_model(whole / "model")
    assert isinstance(loaded.encoder, ElmoEncoder)
    assert loaded.softmax is not None
    tokenizer = load_word_tokenizer(whole / "model")
    assert tokenizer.fingerprint() == load_word_tokenizer(TokenStore(store).tokenizer_directory).fingerprint()


def test_a_checkpoint_holds_what_each_lane_remembers(whole: Path) -> None:
    weights = load_file(whole / "checkpoints" / "step-00000012" / checkpoint.WEIGHTS)
    assert weights["remembered_outputs"].shape == (2, 2, NUM_LANES, PROJECTION)
    assert weights["remembered_cells"].shape == (2, 2, NUM_LANES, CELL)
    assert (weights["remembered_cells"].abs().amax(-1) > 0).all()


def test_micro_batches_change_neither_gradient_nor_figures(words: tuple[str, list[str]], tmp_path: Path) -> None:
    recipe, overrides = words
    weights, figures = [], []
    for size in (3, 8):
        run = tmp_path / str(size)
        changes = ["model.hidden_dropout_prob=0", f"train.micro_batch_size={size}", "train.steps=4"]
        pretrain(recipe, [*overrides, *changes], out=run)
        weights.append(load_file(run / "checkpoints" / "step-00000004" / checkpoint.WEIGHTS))
        figures.append(json.loads((run / "results.json").read_text())["lm_loss"])
    for name, weight in weights[0].items():
        # Float32 sums in another order; Adagrad divides by the root of small sums of squares, so that differences
        # grow to about 1e-5 in four steps.
        torch.testing.assert_close(weight, weights[1][name], atol=1e-4, rtol=1e-3)
    assert figures[0] == pytest.approx(figures[1], rel=1e-4)


def test_it_goes_on_from_a_model_with_its_softmax(words: tuple[str, list[str]], whole: Path, tmp_path: Path) -> None:
    refused = load_pretrain_recipe(words[0], [*words[1], f"init_from={whole}", "model.cell_size=20"])
    with pytest.raises(SettingsError, match=r"model\.\* says other sizes"):
        open_inputs(refused, tmp_path, 1, None)
    continued = load_pretrain_recipe(words[0], [*words[1], f"init_from={whole}"])
    module: Any = open_inputs(continued, tmp_path, 1, None).module
    kept = load_model(whole / "model")
    assert kept.softmax is not None
    assert torch.equal(module.softmax.weight, kept.softmax.weight)
    assert torch.equal(module.encoder.blocks[1].layers[0].bias, kept.encoder.blocks[1].layers[0].bias)


def test_a_recipe_continues_it_on_a_task_s_own_text(whole: Path, tiny_text: Path, tmp_path: Path) -> None:
    words = [f"init_from={whole}", f"corpus={tiny_text}", "train.batch_size=8", "held_out=0.3"]
    model = pretrain("pretrain/continued_elmo", [*words, "device=cpu", "precision=fp32"], out=tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    before = json.loads((whole / "results.json").read_text())
    assert results["lm_loss"] < before["lm_loss"]
    assert load_model(model).softmax is not None


def test_a_checkpoint_of_a_continued_run_holds_its_model(
    words: tuple[str, list[str]], whole: Path, tmp_path: Path, unmask: Callable[..., Any]
) -> None:
    recipe, overrides = words
    pretrain(recipe, [*overrides, f"init_from={whole}", "train.steps=4"], out=tmp_path / "run")
    assert unmask("checkpoint", tmp_path / "run", "--step", 4, "--out", tmp_path / "model").code == 0
    assert_same_weights(tmp_path / "model", tmp_path / "run" / "model")


def test_text_is_enough(tiny_text: Path, words: tuple[str, list[str]], tmp_path: Path) -> None:
    pretrain(words[0], [f"corpus={tiny_text}", "train.steps=1"], out=tmp_path / "run")
    assert TokenStore(tmp_path / "run" / "store").has_words
    assert load_model(tmp_path / "run" / "model").encoder.settings.vocab_size == 300


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["tokenizer.kind=wordpiece"], "objective.name=bilm and tokenizer.kind=wordpiece do not go together"),
        (["model.architecture=bert", "model.filters=null"], "filters"),
        (["objective.name=masked_lm", "objective.num_negatives=null"], "num_negatives"),
        (["packing.format=single_segment"], "`stream` is for bilm"),
        (["packing.copies=2"], "packing.format=stream reads the documents as they are"),
        (["phases=[{until: .5}, {until: 1}]"], "packing.format=stream and phases do not go together"),
        (["model.preset=large"], "preset"),
        (["train.batch_size=100000"], "fewer than train.batch_size 100000 x packing.max_length 10"),
    ],
)
def test_what_does_not_fit_is_refused(
    tiny_text: Path, words: tuple[str, list[str]], tmp_path: Path, changes: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        pretrain(words[0], [f"corpus={tiny_text}", *changes], out=tmp_path / "run")


def test_a_store_of_the_other_kind_is_refused(
    words: tuple[str, list[str]], store: Path, tiny_store: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=r"objective.name=bilm and tokenizer.kind=wordpiece of .*; make another"):
        pretrain(words[0], [f"store={tiny_store}"], out=tmp_path / "run")
    with pytest.raises(SettingsError, match=r"objective.name=masked_lm and tokenizer.kind=word of .* do not"):
        pretrain(str(tiny_recipe), [f"store={store}"], out=tmp_path / "run")


# Fine-tuning


PEOPLE = ("Ada Lovelace", "Grace Hopper", "Mary Zylverberg")
"""The last name is in no vocabulary."""


def finetuned(place: Path, recipe: str, model: Path, rows: list[dict[str, Any]], words: list[str]) -> Path:
    """Fine-tunes a model on rows, which it is measured on too; `place` then holds `train.jsonl` and `run`."""
    examples = write_rows(place / "train.jsonl", *rows)
    overrides = [
        *(f"init_from={model}", f"data.train={examples}", f"data.dev={examples}", *words),
        *("train.steps=60", "train.batch_size=6", "optimizer.learning_rate=3e-2"),
        *("device=cpu", "precision=fp32"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.finetuning.run.write_report", lambda *_, **__: None)
        finetune(recipe, overrides, out=place / "run")
    return place


@pytest.fixture(scope="module")
def tagging(tmp_path_factory: pytest.TempPathFactory, whole: Path) -> Path:
    place = tmp_path_factory.mktemp("tagging")
    rows = [
        {"tokens": [*PEOPLE[number % 3].split(), "wrote", "it"], "tags": ["B-PER", "I-PER", "O", "O"]}
        for number in range(12)
    ]
    words = ["freeze_layers=all", "task.tagging_head=bilstm", "task.feature_layers=weighted-all-and-embeddings"]
    return finetuned(place, "finetune/tagging", whole, rows, [*words, "task.bilstm_size=8"])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory, whole: Path) -> Path:
    place = tmp_path_factory.mktemp("pairs")
    rows = [
        {"text_a": f"{who} wrote", "text_b": f"It was {sort} .", "label": "ny"[sort == "qwarm"]}
        for who in PEOPLE
        for sort in ("dull", "grey", "qwarm", "qwarm")
    ]
    words = ["data.columns.text_a=text_a", "data.columns.text_b=text_b", "task.encoder_top=bilstm"]
    words += ["task.bilstm_size=8", "task.classifier_dropout=0"]
    return finetuned(place, "finetune/classification", whole, rows, words)


def test_tags_are_learned_from_frozen_layers_and_their_mixture(tagging: Path, whole: Path) -> None:
    results = json.loads((tagging / "run" / "results.json").read_text())
    assert results["dev"]["overall_f1"] == 1
    loaded = load_model(tagging / "run" / "model", FINE_TUNED)
    assert loaded.head_weights is not None
    assert loaded.head_weights["mixture.scores"].shape == (3,)  # the token layer and both LSTMs
    assert loaded.head_weights["mixture.gamma"] != 1
    assert sum(results["mixture"]["weights"]) == pytest.approx(1)
    assert results["mixture"]["gamma"] == float(loaded.head_weights["mixture.gamma"])
    before = load_model(whole / "model").encoder.state_dict()
    assert all(torch.equal(weight, before[name]) for name, weight in loaded.encoder.state_dict().items())
    (told,) = predict(tagging / "run", [{"text": "Mary Zylverberg wrote it"}], device="cpu")
    assert told["entities"][0]["text"] == "Mary Zylverberg"


def test_a_pair_is_classified_by_words_that_no_vocabulary_has(pairs: Path) -> None:
    results = json.loads((pairs / "run" / "results.json").read_text())
    assert results["dev"]["accuracy"] == 1
    again = evaluate(pairs / "run", pairs / "train.jsonl", device="cpu")
    assert again["metrics"]["accuracy"] == 1
    (told,) = predict(pairs / "run", [{"text_a": "Mary Zylverberg wrote", "text_b": "It was qwarm ."}], device="cpu")
    assert told["label"] == "y"


def test_texts_may_be_classified_from_one_layer(whole: Path, pairs: Path, tmp_path: Path) -> None:
    rows = [json.loads(row) for row in (pairs / "train.jsonl").read_text().splitlines()]
    words, runs = ["data.columns.text_a=text_a", "data.columns.text_b=text_b"], []
    for layers in ("last", "second-to-last"):
        place = tmp_path / layers
        place.mkdir()
        more = [*words, f"task.feature_layers={layers}"]
        runs.append(finetuned(place, "finetune/classification", whole, rows, more) / "run")
    head = load_model(runs[0] / "model", FINE_TUNED).head_weights
    assert head is not None
    assert not [name for name in head if name.startswith("mixture.")]
    for run in runs:
        results = json.loads((run / "results.json").read_text())
        assert "mixture" not in results
        again = evaluate(run, pairs / "train.jsonl", device="cpu")
        assert again["metrics"]["accuracy"] == results["dev"]["accuracy"] == 1
    with pytest.raises(ModelError, match=r"differ in task\.feature_layers"):
        average_models(runs, tmp_path / "mean")
    kept = [f"init_from={runs[0]}", "keep_head=true", f"data.train={pairs / 'train.jsonl'}", "device=cpu", *words]
    with pytest.raises(
        ModelError, match=r"with task\.feature_layers=last, .* has task\.feature_layers=weighted-all-and-emb"
    ):
        finetune("finetune/classification", kept, out=tmp_path / "kept")


def test_what_each_layer_knows_is_measured_by_a_linear_classifier(whole: Path, tagging: Path, tmp_path: Path) -> None:
    rows = [json.loads(row) for row in (tagging / "train.jsonl").read_text().splitlines()]
    words = ["freeze_layers=all", "task.feature_layers=second-to-last"]
    run = finetuned(tmp_path, "finetune/tagging", whole, rows, words) / "run"
    head = load_model(run / "model", FINE_TUNED).head_weights
    assert head is not None
    assert head.keys() == {"dense.weight", "dense.bias"}
    again = evaluate(run, tagging / "train.jsonl", device="cpu")
    results = json.loads((run / "results.json").read_text())
    assert again["metrics"]["overall_f1"] == results["dev"]["overall_f1"]


def test_an_ensemble_shares_its_words(pairs: Path) -> None:
    copytree(pairs / "run" / "model", pairs / "copy")
    write_ensemble([pairs / "run" / "model", pairs / "copy"], pairs / "both")
    row = {"text_a": "Mary Zylverberg wrote", "text_b": "Grace Qwrty wrote"}
    (alone,), (both,) = (list(predict(pairs / name, [row], device="cpu")) for name in ("run", "both"))
    assert both["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-6)  # log and exp of float32


def test_all_of_it_may_be_trained(whole: Path, pairs: Path, tmp_path: Path) -> None:
    overrides = [
        f"init_from={whole}",
        f"data.train={pairs / 'train.jsonl'}",
        *("data.columns.text_a=text_a", "data.columns.text_b=text_b", "train.epochs=null", "train.steps=2"),
        *("freeze_layers=1", "optimizer.layer_decay=.5", "device=cpu", "precision=fp32"),
    ]
    finetune("finetune/classification", overrides, out=tmp_path / "run")
    before, after = (load_model(path / "model").encoder.state_dict() for path in (whole, tmp_path / "run"))
    changed = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    assert changed == {name for name in after if name.startswith(("blocks.0.layers.1", "blocks.1.layers.1"))}


@pytest.mark.parametrize("kind", ["qa", "choice"])
def test_questions_are_refused(whole: Path, task_models: Any, tmp_path: Path, kind: str) -> None:
    train = write(tmp_path / "train.jsonl", task_models.examples[kind])
    words = task_models.words(kind, train, f"init_from={whole}")
    with pytest.raises(SettingsError, match=f"task.name={kind} and init_from=.*, which is an ELMo, do not go together"):
        finetune(f"finetune/{kind}", words, out=tmp_path / "run")


def test_features_are_of_words_as_they_are_written(whole: Path, tmp_path: Path) -> None:
    texts = write(tmp_path / "texts.txt", "Qwrty wrote it\nQwrtz wrote it\n")
    out = extract_features(whole, texts, tmp_path / "out", layers="embeddings", device="cpu")
    features = np.load(out / "features.npy", allow_pickle=False)
    assert features.shape == (6, 2 * PROJECTION)
    assert (features[0] != features[3]).any()  # two words that no vocabulary has
    np.testing.assert_array_equal(features[1], features[4])
    index = [json.loads(line) for line in (out / "index.jsonl").read_text().splitlines()]
    assert index[1]["offsets"] == [[0, 5], [6, 11], [12, 14]]


def test_a_tokenizer_of_another_kind_beside_a_model_is_told(pairs: Path, tiny_store: Path, tmp_path: Path) -> None:
    copytree(pairs / "run" / "model", tmp_path / "model")
    for name in ("words.txt", "word_tokenizer.json"):
        (tmp_path / "model" / name).unlink()
    for path in (tiny_store / "tokenizer").iterdir():
        copy(path, tmp_path / "model")
    with pytest.raises(UserError, match="the model reads words and the tokenizer is not one of words"):
        load_predictor(tmp_path / "model")


# Commands


def test_the_commands_know_words(unmask: Callable[..., Any], tiny_text: Path, whole: Path, place: Path) -> None:
    trained = unmask("tokenizer", "train", tiny_text, "--kind", "word", "--vocab-size", 100, "--out", "words")
    assert trained.code == 0, trained.errors
    assert "100 entries" in trained.output
    again = unmask("tokenizer", "train", tiny_text, "--kind", "word", "--out", "words", "--overwrite")
    assert again.code == 0, again.errors
    told = unmask("info", "words", "--json")
    assert json.loads(told.output)["kind_of_tokenizer"] == "word"
    model = json.loads(unmask("info", whole / "model", "--json").output)
    assert (model["model_type"], model["cell_size"], model["tokenizer"]["vocab_size"]) == ("elmo", CELL, 300)
    report = unmask("tokenizer", "report", "words", "--text", tiny_text)
    assert (report.code, "a tokenizer of words cuts none into pieces" in report.errors) == (2, True)
    alike = unmask("similarity", whole, "Qwrty wrote", "Qwrty wrote")
    assert alike.code == 0, alike.errors
    assert json.loads(alike.output)["similarity"] == 1
