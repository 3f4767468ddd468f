"""What does not go together in a pre-training recipe is refused when it is read, naming both settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter

from unmask.data.settings import PackingSettings
from unmask.errors import SettingsError
from unmask.models.settings import Architecture, ModelSettings
from unmask.objectives.settings import ObjectiveName, ObjectiveSettings
from unmask.pairings import ARCHITECTURES, BARE, PAIRED, contradiction, packing_contradiction
from unmask.recipe import load_pretrain_recipe

FORMATS = ("segment_pair", "sentence_pair", "full_sentences", "doc_sentences", "single_segment", "stream")


def objective(**values: Any) -> ObjectiveSettings:
    settings: ObjectiveSettings = TypeAdapter(ObjectiveSettings).validate_python(values)
    return settings


def test_every_objective_says_what_it_trains() -> None:
    assert ARCHITECTURES.keys() == set(get_args(ObjectiveName))


@pytest.mark.parametrize("name", get_args(ObjectiveName))
@pytest.mark.parametrize("architecture", get_args(Architecture))
def test_a_family_is_trained_or_refused_by_name(architecture: Architecture, name: str) -> None:
    alone = {"sentence_objective": "none"} if name == "masked_lm" else {}
    is_causal_bert = (architecture, name) == ("bert", "causal_lm")
    told = contradiction(
        architecture, ModelSettings(architecture="bert", causal=is_causal_bert), objective(name=name, **alone)
    )
    if architecture in ARCHITECTURES[name]:
        assert told is None
    else:
        assert told is not None
        assert told.startswith(f"objective.name={name} and model.architecture={architecture} do not go together: ")
        assert told.endswith(f"; take model.architecture={' or '.join(ARCHITECTURES[name])}, or another objective")


@pytest.mark.parametrize("packing_format", FORMATS)
@pytest.mark.parametrize("sentences", ["none", "nsp", "sop"])
def test_a_sentence_objective_needs_two_segments(sentences: str, packing_format: str) -> None:
    packing = PackingSettings.model_validate({"format": packing_format})
    told = packing_contradiction("bert", objective(sentence_objective=sentences), packing)
    if packing_format == "stream":
        assert told is not None
        assert told.startswith("objective.name=masked_lm and packing.format=stream do not go together")
    elif sentences == "none" or packing_format in PAIRED:
        assert told is None
    else:
        assert told is not None
        assert told.startswith(
            f"objective.sentence_objective={sentences} needs two segments, and packing.format={packing_format} has one"
        )


@pytest.mark.parametrize("architecture", sorted(BARE))
def test_text_as_it_runs_has_no_two_segments(architecture: str) -> None:
    for packing_format in FORMATS[:-1]:
        packing = PackingSettings.model_validate({"format": packing_format})
        told = packing_contradiction(architecture, objective(name="causal_lm"), packing)
        assert (told is not None) == (packing_format in PAIRED)
        assert told is None or f"packing.format={packing_format}" in told
        assert told is None or f"model.architecture={architecture}" in told


RTD = ("objective.name=replaced_token", "model.architecture=electra")

REFUSED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "NSP with one segment": (
        ("packing.format=single_segment",),
        ("objective.sentence_objective=nsp", "packing.format=single_segment"),
    ),
    "sentence order in full sentences": (
        ("objective.sentence_objective=sop", "packing.format=full_sentences"),
        ("objective.sentence_objective=sop", "packing.format=full_sentences"),
    ),
    "NSP on RoBERTa": (
        ("model.architecture=roberta",),
        ("objective.sentence_objective=nsp", "model.architecture=roberta"),
    ),
    "a generator wider than the discriminator": (
        (*RTD, "objective.generator_size=1.5"),
        ("objective.generator_size=1.5", "wider than the discriminator, whose width is model.hidden_size"),
    ),
    "unequal sizes in two stages": (
        (*RTD, "objective.schedule=two_stage"),
        ("schedule two_stage", "generator_size 0.25", "set objective.generator_size=1"),
    ),
    "RTD on a BERT": (
        RTD[:1],
        ("objective.name=replaced_token", "model.architecture=bert", "take model.architecture=electra"),
    ),
    "RTD with NSP": (
        (*RTD, "objective.sentence_objective=nsp"),
        ("objective.sentence_objective belongs to another objective.name",),
    ),
    "a causal model with MLM": (
        ("model.causal=true", "objective.sentence_objective=none"),
        ("objective.name=masked_lm", "model.causal=true"),
    ),
    "[CLS] pooling with a causal mask": (
        ("model.causal=true", "objective.sentence_objective=nsp"),
        ("objective.name=masked_lm", "model.causal=true"),
    ),
    "GPT-1 with MLM": (
        ("model={architecture: gpt1}", "objective.sentence_objective=none", "packing.format=single_segment"),
        ("objective.name=masked_lm", "model.architecture=gpt1"),
    ),
    "left to right on both sides": (
        ("objective.name=causal_lm",),
        ("objective.name=causal_lm", "model.causal=false"),
    ),
    "GPT-1 on segment pairs": (
        ("objective.name=causal_lm", "model={architecture: gpt1}"),
        ("packing.format=segment_pair", "model.architecture=gpt1"),
    ),
    "bilm without a stream": (
        ("objective.name=bilm",),
        ("objective.name=bilm", "packing.format=segment_pair"),
    ),
    "a stream without bilm": (
        ("packing.format=stream", "objective.sentence_objective=none"),
        ("objective.name=masked_lm", "packing.format=stream"),
    ),
    "length over the positions": (
        ("model.max_position_embeddings=64",),
        ("packing.max_length 128", "model.max_position_embeddings 64"),
    ),
    "length over the positions in a phase": (
        ("model.max_position_embeddings=128", "phases=[{until: .9}, {until: 1, max_length: 512}]"),
        ("packing.max_length 512", "model.max_position_embeddings 128"),
    ),
    "phases in minutes": (
        ("train.minutes=3", "phases=[{until: .9}, {until: 1, max_length: 512}]"),
        ("train.minutes", "phases"),
    ),
    "phases that do not ascend": (
        ("phases=[{until: .9}, {until: .5}, {until: 1}]",),
        ("phases end at [0.9, 0.5, 1.0]",),
    ),
    "a last phase that is not the end": (("phases=[{until: .9}]",), ("the last phase ends at 0.9",)),
    "a phase with short sequences of one segment": (
        (
            *("packing.format=single_segment", "objective.sentence_objective=none"),
            "phases=[{until: 1, short_sequence_prob: .1}]",
        ),
        ("short_sequence_prob 0.1", "single_segment"),
    ),
    "static masks and copies": (
        ("objective.masking_mode=static", "packing.copies=5"),
        ("objective.masking_mode=static", "packing.copies"),
    ),
    "static masks and copies, RTD": (
        (*RTD, "objective.masking_mode=static", "packing.copies=5"),
        ("objective.masking_mode=static", "packing.copies"),
    ),
    "decaying with Adagrad": (("optimizer.name=adagrad",), ("adagrad", "weight_decay")),
}
"""What a recipe says, and what its refusal names."""


@pytest.mark.parametrize("pairing", REFUSED)
def test_an_impossible_pairing_is_refused_naming_both(pairing: str, tmp_path: Path) -> None:
    words, names = REFUSED[pairing]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("store: s\ntrain: {steps: 10}\n")
    with pytest.raises(SettingsError) as refused:
        load_pretrain_recipe(str(recipe), words)
    for name in names:
        assert name in str(refused.value)


POSSIBLE: dict[str, tuple[str, ...]] = {
    "sentence order on sentence pairs": ("objective.sentence_objective=sop", "packing.format=sentence_pair"),
    "left-to-right BERT on segment pairs": ("objective.name=causal_lm", "model.causal=true"),
    "spans with NSP": ("objective.masking=span", "objective.span_boundary=true"),
    "MLM on an ELECTRA": ("model.architecture=electra", "objective.sentence_objective=none"),
    "untied stages": (*RTD, "objective.schedule=two_stage", "objective.generator_size=1"),
    "causal LSTM on full sentences": (
        *("objective.name=causal_lm", "model={architecture: lstm}", "packing.format=full_sentences"),
    ),
}


@pytest.mark.parametrize("pairing", POSSIBLE)
def test_a_possible_pairing_is_not(pairing: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("store: s\ntrain: {steps: 10}\n")
    load_pretrain_recipe(str(recipe), POSSIBLE[pairing])
