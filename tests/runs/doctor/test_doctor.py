"""The doctor on a real store and on recipes that train for a moment."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from support.corpora import learn_and_prepare
from support.files import flip
from support.run_checks import levels_of
from unmask.batch import IGNORE_INDEX
from unmask.doctor.diagnosis import diagnose
from unmask.doctor.findings import Diagnosis, Finding, Sample
from unmask.errors import SettingsError, StoreError
from unmask.io.writing import alone_in
from unmask.objectives.floors import NoContext
from unmask.objectives.masked_lm import MaskedLM
from unmask.objectives.settings import MaskedLMSettings
from unmask.objectives.table import new_objective
from unmask.pretraining.initial_weights import build_module
from unmask.pretraining.start import open_start
from unmask.pretraining.steps import build_loader
from unmask.recipe.loading import load_pretrain_recipe
from unmask.store.store import TokenStore
from unmask.tokenization.tokenizer import load_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")


def tables(diagnosis: Diagnosis) -> dict[str, dict[str, str]]:
    """Of each table the first two columns."""
    return {table.title: {row[0]: row[1] for row in table.rows} for table in diagnosis.tables}


def check_samples(samples: tuple[Sample, ...], store: TokenStore, recipe: Path, overrides: list[str]) -> None:
    """Compares samples, token for token, with the first batch of a run of the recipe."""
    settings = load_pretrain_recipe(str(recipe), [f"store={store.directory}", *overrides])
    tokenizer = load_tokenizer(store.tokenizer_directory)
    assert isinstance(settings.objective, MaskedLMSettings)
    objective = MaskedLM(settings.objective, tokenizer.vocabulary)
    loader = build_loader(open_start(settings), store, tokenizer, held_out=False, phase=settings.all_phases[0])
    batch = objective.prepare(next(loader.steps()).batches[0])
    strings = tokenizer.token_strings
    tokens = [token for sample in samples for token in sample.tokens]
    for place, token in enumerate(tokens):
        label = int(batch.columns["labels"][place])
        assert token.shown == strings[int(batch.input_ids[place])]
        assert token.label == (None if label == IGNORE_INDEX else strings[label])
        assert token.segment == int(batch.token_type_ids[place])
        assert token.special == bool(batch.columns["special_tokens_mask"][place])
    assert len(tokens) == int(batch.bounds[len(samples)])
    names = ["IsNext (label 0)", "NotNext (label 1)"]
    expected = [names[label] for label in batch.columns["next_sentence_label"].tolist()]
    assert [sample.sequence_label for sample in samples] == expected[: len(samples)]


def test_a_store(tiny_store: Path, tiny_recipe: Path) -> None:
    found = diagnose(tiny_store, recipe=str(tiny_recipe))
    store = TokenStore(tiny_store)
    counts = store.token_counts()
    shares = counts[counts > 0] / counts.sum()
    figures = found.figures
    special_ids = load_tokenizer(store.tokenizer_directory).special_ids
    no_context = NoContext.of(counts, 0.8, 0.1, mask_id=special_ids[-1], special_ids=special_ids)
    assert (found.kind, figures["documents"], figures["tokens"]) == ("store", 12, store.num_tokens)
    entropy = float(-(shares * np.log(shares)).sum())
    floors = {
        "loss/mlm": {"no context": no_context.loss(), "unigram entropy": entropy},
        "eval/mlm_accuracy": {"no context": no_context.accuracy()},
        "loss/nsp": {"chance": math.log(2)},
        "eval/nsp_accuracy": {"chance": 0.5},
    }
    assert figures["floors"] == {figure: pytest.approx(each) for figure, each in floors.items()}
    assert "fault" not in levels_of(found.findings).values()
    check_samples(found.samples, store, tiny_recipe, [])
    assert len(found.samples) == 3
    assert json.loads(json.dumps(asdict(found)))["kind"] == "store"
    shown = tables(found)["What the first step shows the model"]
    assert shown["sequences"] == "8"
    assert float(shown["targets"].split("%")[0]) == pytest.approx(15, abs=2)  # of 30 tokens, rounded to whole ones


def test_a_store_with_other_settings(tiny_store: Path) -> None:
    found = diagnose(tiny_store, ["packing.max_length=24", "objective.sentence_objective=none"])
    assert len(found.samples) == 3
    assert max(len(sample.tokens) for sample in found.samples) <= 24
    assert found.samples[0].sequence_label == ""
    assert "loss/nsp" not in tables(found)["Floors that losses (nats) and accuracies must pass"]


def test_a_store_shows_the_first_phase(tiny_store: Path, tiny_recipe: Path) -> None:
    phases = ["phases=[{until: 0.9, max_length: 16, batch_size: 5}, {until: 1}]"]
    found = diagnose(tiny_store, phases, recipe=str(tiny_recipe))
    check_samples(found.samples, TokenStore(tiny_store), tiny_recipe, phases)
    assert max(len(sample.tokens) for sample in found.samples) == 16
    shown = tables(found)["What the first step shows the model"]
    assert shown["sequences"] == "5"
    assert float(shown["sequences of the full 16 tokens"].removesuffix("%")) > 0


def test_a_damaged_store(tiny_store: Path, tmp_path: Path) -> None:
    for part in ("tokens-00000.bin", "sentences-00000.bin", "documents-00000.bin", "tokenizer/tokenizer.json"):
        shutil.copytree(tiny_store, tmp_path / "store", dirs_exist_ok=True)
        flip(tmp_path / "store" / part, (tiny_store / part).stat().st_size // 2)
        with pytest.raises(StoreError, match="its checksum is not the manifest's"):
            diagnose(tmp_path / "store")


def test_a_recipe_with_its_store(tiny_store: Path, tiny_recipe: Path) -> None:
    overrides = [f"store={tiny_store}"]
    found = diagnose(tiny_recipe, overrides, probe_s=0.1)
    store = TokenStore(tiny_store)
    settings = load_pretrain_recipe(str(tiny_recipe), overrides)
    tokenizer = load_tokenizer(store.tokenizer_directory)
    assert isinstance(settings.objective, MaskedLMSettings)
    module = build_module(open_start(settings), MaskedLM(settings.objective, tokenizer.vocabulary), tokenizer)
    assert isinstance(module, nn.Module)
    parameters = found.figures["parameters"]
    assert isinstance(parameters, dict)
    assert parameters["total"] == sum(parameter.numel() for parameter in module.parameters())
    assert found.figures["steps"] == 12
    probe = found.figures["probe"]
    assert isinstance(probe, dict)
    assert probe["sequences"] <= 5  # a micro-batch
    assert found.figures["seconds"] == pytest.approx(12 * probe["step_s"])
    assert {"memory", "disk"} <= set(levels_of(found.findings))
    assert "Floors that losses (nats) and accuracies must pass" in tables(found)
    check_samples(found.samples, store, tiny_recipe, [])


def test_a_recipe_with_a_small_corpus(tiny_recipe: Path, tiny_text: Path) -> None:
    found = diagnose(tiny_recipe, [f"corpus={tiny_text}"], probe_s=0)
    assert found.figures["store"]["documents"] == 12  # type: ignore[index]
    assert found.figures["probe"] is None
    assert found.figures["seconds"] is None
    assert len(found.samples) == 3
    assert "no-text" not in levels_of(found.findings)


@pytest.mark.parametrize("corpus", ["large.txt", "mixture.yaml"])
def test_a_recipe_whose_corpus_is_not_read(
    tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: str
) -> None:
    monkeypatch.setattr("unmask.doctor.recipe.material.CORPUS_BYTES", 1000)
    (tmp_path / "large.txt").write_text("One line.\n" * 200, encoding="utf-8")
    found = diagnose(tiny_recipe, [f"corpus={tmp_path / corpus}"], probe_s=0)
    assert levels_of(found.findings)["text-not-read"] == "note"
    assert found.samples == ()


def test_a_recipe_without_a_text(tiny_recipe: Path) -> None:
    found = diagnose(tiny_recipe, ["schedule.warmup_steps=30", "corpus="], probe_s=0.1)
    assert levels_of(found.findings)["no-text"] == "note"
    assert levels_of(found.findings)["warmup-longer-than-run"] == "fault"
    assert found.findings[0].level == "fault"
    assert found.samples == ()
    assert found.figures["probe"] is not None


def test_a_recipe_whose_store_is_not_there(tiny_recipe: Path, tmp_path: Path) -> None:
    found = diagnose(tiny_recipe, [f"store={tmp_path / 'absent'}"], probe_s=0)
    assert levels_of(found.findings)["store-unusable"] == "fault"
    assert "no such store" in found.findings[0].message
    assert found.samples == ()


def test_a_model_too_large_is_told_and_not_tried(tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.doctor.recipe.examination.available_memory", lambda compute: 1_000_000_000)

    def tried(*arguments: object, **settings: object) -> None:
        raise AssertionError("the probe was started")

    monkeypatch.setattr("unmask.doctor.recipe.examination.measure_speed", tried)
    monkeypatch.setattr("unmask.doctor.recipe.needs.measure_saved_bytes", tried)
    # 1.3 billion parameters: 21 GB of weights, gradients and moments
    sizes = ["model.hidden_size=2048", "model.num_hidden_layers=24", "model.num_attention_heads=16"]
    found = diagnose(tiny_recipe, sizes)
    assert levels_of(found.findings)["too-large-for-memory"] == "fault"
    assert found.figures["probe"] is None
    assert found.figures["parameters"]["total"] > 1.2e9  # type: ignore[index]


def test_the_generators_are_left_as_they_were(tiny_store: Path, tiny_recipe: Path) -> None:
    import torch

    before = torch.get_rng_state()
    diagnose(tiny_recipe, [f"store={tiny_store}"], probe_s=0.05)
    assert torch.equal(torch.get_rng_state(), before)


# Other objectives

OTHERS = {
    "sop": ["objective.sentence_objective=sop"],
    "spans": [
        *("objective.sentence_objective=none", "objective.masking=span", "objective.span_boundary=true"),
        *("packing.format=single_segment", "optimizer.name=lamb"),
    ],
    "left-to-right": ["objective.name=causal_lm", "model.causal=true", "packing.format=full_sentences"],
    "lstm": [
        *("objective.name=causal_lm", "model.architecture=lstm", "model.num_attention_heads=null"),
        *("packing.format=single_segment", "optimizer.name=adagrad", "optimizer.weight_decay=0"),
    ],
    "electra": [
        *("objective.name=replaced_token", "model.architecture=electra", "packing.format=doc_sentences"),
        "optimizer.name=muon",
    ],
    "two stages": [
        *("objective.name=replaced_token", "objective.schedule=two_stage", "objective.generator_size=1"),
        *("model.architecture=electra", "packing.format=single_segment"),
    ],
    "discriminator later": [
        *("objective.name=replaced_token", "objective.discriminator_after=.3"),
        *("model.architecture=electra", "packing.format=single_segment"),
    ],
    "half left to right": [
        *("objective.sentence_objective=none", "objective.causal_share=.5", "objective.target_prob_end=.1"),
        *("model.architecture=modernbert", "model.intermediate_size=24", "packing.format=full_sentences"),
    ],
}
TOLD = {
    "sop": r"in order \(label 0\)|swapped \(label 1\)",
    "spans": "spans? of [0-9, and]+ tokens",
    **dict.fromkeys(("left-to-right", "lstm"), "each token from those before it"),
    **dict.fromkeys(("electra", "two stages", "discriminator later"), "as the generator reads it"),
    "half left to right": "read from left to right|$",
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_recipe_of_another_objective(tiny_store: Path, tiny_recipe: Path, name: str) -> None:
    words = [f"store={tiny_store}", *OTHERS[name]]
    found = diagnose(tiny_recipe, words, probe_s=0.05)
    assert "fault" not in levels_of(found.findings).values()
    settings = load_pretrain_recipe(str(tiny_recipe), words)
    tokenizer = load_tokenizer(tiny_store / "tokenizer")
    objective = new_objective(settings.objective, tokenizer.vocabulary)
    module = build_module(open_start(settings), objective, tokenizer)
    assert isinstance(module, nn.Module)
    total = sum(parameter.numel() for parameter in module.parameters())
    assert found.figures["parameters"]["total"] == total  # type: ignore[index]
    assert found.figures["probe"] is not None
    assert all(re.match(TOLD[name], sample.sequence_label) for sample in found.samples if sample.num_targets)
    is_mixed = name == "half left to right"
    if is_mixed:
        assert {sample.predicts_next for sample in found.samples} == {True, False}
        assert all(sample.predicts_next == bool(sample.sequence_label) for sample in found.samples)
    assert ("masked targets" in tables(found)["What the first step shows the model"]) == is_mixed
    without_text = diagnose(tiny_recipe, [*OTHERS[name], "model.vocab_size=200"], probe_s=0)
    assert without_text.figures["parameters"] == found.figures["parameters"]
    assert levels_of(without_text.findings)["no-text"] == "note"


def test_left_to_right_samples_hide_nothing(tiny_store: Path) -> None:
    words = ["objective.name=causal_lm", "model.causal=true", "packing.format=single_segment", "packing.max_length=16"]
    found = diagnose(tiny_store, words)
    for sample in found.samples:
        assert sample.num_targets == len(sample.tokens) - 1
        assert all(token.label is None for token in sample.tokens)
    shown = tables(found)["What the first step shows the model"]
    assert "targets shown as [MASK]" not in shown
    assert "loss/nsp" not in tables(found)["Floors that losses (nats) and accuracies must pass"]


def test_a_store_that_nothing_can_be_masked_in_is_read_from_left_to_right(tiny_text: Path, tmp_path: Path) -> None:
    store = learn_and_prepare(tiny_text, tmp_path, kind="bpe", vocab_size=300)
    found = diagnose(store)
    assert "no-samples" not in levels_of(found.findings)
    assert found.samples[0].num_targets == len(found.samples[0].tokens) - 1
    asked = diagnose(store, ["objective.name=masked_lm"])
    assert levels_of(asked.findings)["no-samples"] == "note"


def test_a_store_of_pieces_shows_no_samples_to_an_elmo(tiny_store: Path) -> None:
    found = diagnose(tiny_store, recipe="pretrain/elmo_tiny")
    (said,) = [finding for finding in found.findings if finding.name == "no-samples"]
    assert said.level == "note"
    assert "objective.name=bilm and tokenizer.kind=wordpiece" in said.message


def test_a_store_of_words_has_no_samples(tiny_text: Path, tmp_path: Path) -> None:
    store = learn_and_prepare(tiny_text, tmp_path, kind="word", vocab_size=300)
    found = diagnose(store)
    assert levels_of(found.findings)["checksums"] == "good"
    assert levels_of(found.findings)["no-samples"] == "note"
    assert "fault" not in levels_of(found.findings).values()
    assert "beyond the output vocabulary" in next(f.message for f in found.findings if f.name == "unknown-tokens")
    flip(store / "tokens-00000.bin", 9)  # the words' bytes, which no other figure is made of
    with pytest.raises(StoreError, match="its checksum is not the manifest's"):
        diagnose(store)


def test_a_recipe_of_streams_is_not_examined() -> None:
    found = diagnose("pretrain/elmo_tiny")
    assert levels_of(found.findings) == {"not-examined": "note"}
    assert found.samples == ()


def test_of_several_phases_the_largest_is_examined(tiny_recipe: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "phases.yaml"
    phases = "phases: [{until: 0.9, max_length: 16}, {until: 1, max_length: 32, batch_size: 6, micro_batch_size: 3}]\n"
    recipe.write_text(tiny_recipe.read_text(encoding="utf-8") + phases, encoding="utf-8")
    found = diagnose(recipe, probe_s=0)
    told = next(finding.message for finding in found.findings if finding.name == "phases")
    assert "packing.max_length 32 and train.batch_size 6" in told  # 3 x 32 tokens at once, where 5 x 16 are fewer


@pytest.mark.parametrize("with_model", [True, False])
def test_of_a_damaged_checkpoint_the_one_before_is_looked_at(whole: Path, tmp_path: Path, with_model: bool) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    if not with_model:
        shutil.rmtree(run / "model")
    newest = run / "checkpoints" / "step-00000012" / "weights.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    found, undamaged = ({finding.name for finding in diagnose(each).findings} for each in (run, whole))
    assert found == undamaged | {"checkpoint-passed-over"} | (set() if with_model else {"unfinished-run"})
    state = newest.with_name("state.json")
    state.write_text(state.read_text()[:50])
    assert {finding.name for finding in diagnose(run).findings} == found
    with alone_in(run):
        underway = {finding.name for finding in diagnose(run).findings}
    assert underway == found - {"unfinished-run"} | (set() if with_model else {"under-way"})


def test_a_run_is_handed_to_its_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipe.yaml").write_text("corpus: [a.txt]\ntrain: {steps: 5}\n")
    findings = [Finding("mlm", "good", "below"), Finding("other-vocabulary", "fault", "its ids mean others")]
    monkeypatch.setattr("unmask.doctor.diagnosis.check_run", lambda run: findings)
    found = diagnose(tmp_path)
    assert found == Diagnosis("run", str(tmp_path), tuple(reversed(findings)))
    with pytest.raises(SettingsError, match=r"is a run, whose recipe is settled: leave out seed=3"):
        diagnose(tmp_path, ["seed=3"])
