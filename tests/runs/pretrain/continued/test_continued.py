"""Pre-training that goes on from a model under another masking or objective, and what does not fit the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.continued import hidden_states, largest_difference, module_of, run_two_steps
from support.corpora import learn_and_prepare
from unmask.errors import SettingsError
from unmask.io.paths import SPAN_BOUNDARY
from unmask.models.electra import ElectraEncoder
from unmask.models.hub.directory import load_model
from unmask.pretraining.run import pretrain

pytestmark = pytest.mark.usefixtures("one_thread", "without_report")

SINGLE = "packing.format=single_segment"
RTD = ["objective={name: replaced_token}", SINGLE]

TOLERANCE = 1e-6
"""Hidden states of order 1 from the same operations on the same numbers in fp32: some ten roundings."""


def test_another_masking_goes_on_with_encoder_and_head(
    recipe: str, bert: Path, tiny_store: Path, tmp_path: Path
) -> None:
    words = [
        *(f"store={tiny_store}", f"init_from={bert}", "objective.masking=span", "objective.span_boundary=true"),
        *("objective.sentence_objective=none", SINGLE),
    ]
    module, before = module_of(recipe, words), load_model(bert)
    assert largest_difference(hidden_states(module.encoder), hidden_states(before.encoder)) < TOLERANCE
    assert before.masked_lm_head is not None
    for name, weight in before.masked_lm_head.state_dict().items():
        assert torch.equal(module.masked_lm_head.state_dict()[name], weight), name
    model = run_two_steps(recipe, words, tmp_path / "run")
    assert json.loads((model / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    store, _, *others = words
    boundary = module_of(recipe, [store, f"init_from={model}", *others]).span_boundary_head.state_dict()
    saved = load_file(model / SPAN_BOUNDARY)
    assert all(any(torch.equal(weight, kept) for kept in boundary.values()) for weight in saved.values())


@pytest.mark.parametrize("stages", [[], ["objective.schedule=two_stage", "objective.generator_size=1"]], ids=str)
def test_a_bert_begins_an_electra_with_the_same_hidden_states(
    stages: list[str], recipe: str, bert: Path, tiny_store: Path, tmp_path: Path
) -> None:
    words = [f"store={tiny_store}", f"init_from={bert}", *RTD, *stages]
    module = module_of(recipe, words)
    before = load_model(bert).encoder
    assert isinstance(module.encoder, ElectraEncoder)
    assert largest_difference(hidden_states(module.encoder), hidden_states(before)) < TOLERANCE
    shared = module.generator.word_embeddings is module.encoder.word_embeddings
    assert shared == (not stages)
    if stages:  # the one that is trained first is that masked LM
        masked_lm = load_model(bert).masked_lm_head
        assert masked_lm is not None
        states = hidden_states(before)
        assert largest_difference(hidden_states(module.generator), states) < TOLERANCE
        logits = module.generator_head(states, module.generator.word_embeddings)
        assert largest_difference(logits, masked_lm(states, before.word_embeddings)) < TOLERANCE
    model = run_two_steps(recipe, words, tmp_path / "run")
    assert json.loads((model / "config.json").read_text())["architectures"] == ["ElectraForPreTraining"]


@pytest.mark.parametrize("tied", ["all", "none"])
def test_a_generator_of_the_same_size_is_that_masked_lm(tied: str, recipe: str, bert: Path, tiny_store: Path) -> None:
    """Trained together too; from a generator as from a BERT. Of another size it is fresh."""
    words = [f"store={tiny_store}", *RTD, f"objective.tie_embeddings={tied}", f"init_from={bert}"]
    before = load_model(bert)
    assert before.masked_lm_head is not None
    same, other = module_of(recipe, [*words, "objective.generator_size=1"]), module_of(recipe, words)
    assert largest_difference(hidden_states(same.generator), hidden_states(before.encoder)) < TOLERANCE
    assert torch.equal(same.generator_head.dense.weight, before.masked_lm_head.dense.weight)
    assert torch.equal(same.generator_head.bias, before.masked_lm_head.bias)
    assert (same.generator.word_embeddings is same.encoder.word_embeddings) == (tied == "all")
    assert not other.generator_head.bias.any()


def test_an_electra_goes_on_under_masked_words(recipe: str, bert: Path, tiny_store: Path, tmp_path: Path) -> None:
    electra = run_two_steps(recipe, [f"store={tiny_store}", f"init_from={bert}", *RTD], tmp_path / "first")
    words = [f"store={tiny_store}", f"init_from={electra}", "objective.sentence_objective=none", SINGLE]
    module = module_of(recipe, words)
    assert largest_difference(hidden_states(module.encoder), hidden_states(load_model(electra).encoder)) < TOLERANCE
    model = run_two_steps(recipe, words, tmp_path / "second")
    assert json.loads((model / "config.json").read_text())["architectures"] == ["ElectraForMaskedLM"]
    again = module_of(recipe, [f"store={tiny_store}", f"init_from={model}", *RTD, "objective.generator_size=1"])
    assert largest_difference(hidden_states(again.generator), hidden_states(load_model(model).encoder)) < TOLERANCE


def test_an_electra_goes_on_with_its_generator(recipe: str, bert: Path, tiny_store: Path, tmp_path: Path) -> None:
    first = run_two_steps(recipe, [f"store={tiny_store}", f"init_from={bert}", *RTD], tmp_path / "first")
    words = [f"store={tiny_store}", f"init_from={first}", *RTD]
    module = module_of(recipe, words)
    generator = load_model(first / "generator")
    assert largest_difference(hidden_states(module.generator), hidden_states(generator.encoder)) < TOLERANCE
    assert largest_difference(hidden_states(module.encoder), hidden_states(load_model(first).encoder)) < TOLERANCE
    with pytest.raises(SettingsError, match=r"hidden_size 8, expected 16.*objective\.generator_size=0\.5"):
        module_of(recipe, [*words, "objective.generator_size=.5"])


def test_a_generator_of_other_words_is_refused(recipe: str, bert: Path, tiny_store: Path, tmp_path: Path) -> None:
    """As many of them: sizes do not tell."""
    first = run_two_steps(recipe, [f"store={tiny_store}", f"init_from={bert}", *RTD], tmp_path / "first")
    definition = json.loads((first / "generator" / "tokenizer.json").read_text("utf-8"))
    entries = sorted(definition["model"]["vocab"], key=definition["model"]["vocab"].get)
    swapped = [*entries[:-2], entries[-1], entries[-2]]
    definition["model"]["vocab"] = {entry: index for index, entry in enumerate(swapped)}
    (first / "generator" / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    with pytest.raises(SettingsError, match=r"generator has other vocabulary entries than .*: put"):
        pretrain(recipe, [f"store={tiny_store}", f"init_from={first}", *RTD], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_sizes_that_are_the_models_may_be_given(recipe: str, bert: Path, tiny_store: Path) -> None:
    module = module_of(recipe, [f"store={tiny_store}", f"init_from={bert}", "model.hidden_size=32"])
    assert module.encoder.settings.hidden_size == 32


# Refused


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["objective={name: causal_lm}"],
            "objective.name=causal_lm does not train the bidirectional bert of init_from=",
        ),
        (
            ["model.preset=mini"],
            r"model\.\* says other sizes than init_from=.* by its config.json: .*hidden_size 256 and not 32.*leave",
        ),
        (
            ["model.architecture=modernbert", "objective.output_bias=log_frequency"],  # what helps first
            r"model\.\* says other sizes .*architecture modernbert and not bert.*pretrain/continued",
        ),
        (
            ["model.hidden_size=64"],  # which the preset's 12 heads do not divide
            r"^model\.\* says other sizes than init_from=.*: hidden_size 64 and not 32; the model that is there has",
        ),
        (
            ["model.architecture=elmo", "model.preset=tiny"],
            r"^model\.\* says other sizes than init_from=.*: architecture elmo and not bert; the model",
        ),
        (
            ["objective={name: bilm}", "packing.format=stream"],
            "objective.name=bilm does not train the bidirectional bert of init_from=",
        ),
        (["packing.max_length=64"], "packing.max_length 64 is over the 32 positions of init_from=.*: shorten the seq"),
        (
            ["phases=[{until: .5}, {until: 1, max_length: 64}]"],
            r"phases\.1\.max_length 64 is over the 32 positions of init_from=.*: shorten the sequences$",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_a_model_is_refused(
    words: list[str], told: str, recipe: str, bert: Path, tiny_store: Path, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=told):
        pretrain(recipe, [f"store={tiny_store}", f"init_from={bert}", *words], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("vocab_size", [200, 150])
def test_another_vocabulary_is_refused(
    vocab_size: int, recipe: str, bert: Path, samples_dir: Path, tmp_path: Path
) -> None:
    """Of the same size too."""
    text = samples_dir / "text" / "ko-constitution.jsonl"
    store = learn_and_prepare(text, tmp_path, vocab_size=vocab_size, alphabet_size=60)
    for words in (["objective.sentence_objective=none", SINGLE], RTD):
        with pytest.raises(SettingsError, match=r"has other vocabulary entries than the store's tokenizer"):
            pretrain(recipe, [f"store={store}", f"init_from={bert}", *words], out=tmp_path / "run")
        assert not (tmp_path / "run").exists()
