"""What does not go together in a pre-training recipe is refused when it is read, naming both settings."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from support.files import write
from unmask.errors import SettingsError
from unmask.models.families.table import ARCHITECTURES
from unmask.objectives.settings_base import ObjectiveSettings
from unmask.objectives.table import OBJECTIVES, AnyObjective, families_of, why_not_trained
from unmask.packing.settings import PAIRED, PackingSettings
from unmask.recipe.loading import load_pretrain_recipe
from unmask.recipe.pairings import contradiction, unasked_pairs

FORMATS = ("segment_pair", "sentence_pair", "full_sentences", "doc_sentences", "single_segment", "stream")


def objective(**values: Any) -> ObjectiveSettings:
    settings: ObjectiveSettings = TypeAdapter(AnyObjective).validate_python(values)
    return settings


def test_what_every_objective_trains() -> None:
    """Of the families in the papers."""
    families = {"bert", "roberta", "electra", "modernbert", "modernbert_decoder", "gpt1", "lstm", "elmo"}
    assert {name: families & {*families_of(entry.settings)} for name, entry in OBJECTIVES.items()}.items() >= {
        "masked_lm": {"bert", "roberta", "electra", "modernbert"},
        "replaced_token": {"electra"},
        "causal_lm": {"bert", "modernbert_decoder", "gpt1", "lstm"},
        "bilm": {"elmo"},
    }.items()


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_family_is_trained_or_refused_by_name(architecture: str, name: str) -> None:
    alone = {"sentence_objective": "none"} if name == "masked_lm" else {}
    settings = objective(name=name, **alone)
    is_causal = name == "causal_lm" and ARCHITECTURES[architecture].may_be_causal
    wrong = why_not_trained(settings, architecture, is_causal)
    if architecture in families_of(settings):
        assert wrong is None
        return
    assert wrong is not None
    assert re.match(rf"objective.name={name} does not train the [- a-z]*{architecture} of model.architecture: ", wrong)
    fix, _, others = wrong.partition("; take ")[2].partition(", or objective.name=")
    assert fix == f"model.architecture={' or '.join(families_of(settings))}"
    assert all(architecture in families_of(OBJECTIVES[other].settings) for other in others.split(" or "))


FOR_PAIRS = " or ".join(name for name, family in ARCHITECTURES.items() if family.has("next_sentence_head"))

INIT_FROM: dict[str, tuple[dict[str, Any], str, bool, str]] = {
    "RTD from a RoBERTa": (
        {"name": "replaced_token"},
        "roberta",
        False,
        "objective.name=replaced_token does not train the roberta of init_from=m: "
        "generator and discriminator share embeddings, which ELECTRA has apart from its layers; take a model of the "
        "family electra or bert in init_from, or objective.name=masked_lm",
    ),
    "MLM from a GPT-1": (
        {"sentence_objective": "none"},
        "gpt1",
        True,
        "objective.name=masked_lm does not train the gpt1 of init_from=m: a masked "
        "token is predicted from both sides; take a model of the family "
        f"{' or '.join(families_of(OBJECTIVES['masked_lm'].settings))} in init_from, or objective.name=causal_lm",
    ),
    "MLM from a left-to-right BERT": (
        {},
        "bert",
        True,
        "objective.name=masked_lm does not train the left-to-right bert of init_from=m: a masked token is predicted "
        "from both sides; take a model that reads in both directions in init_from, or objective.name=causal_lm",
    ),
    "left to right from a BERT": (
        {"name": "causal_lm"},
        "bert",
        False,
        "objective.name=causal_lm does not train the bidirectional bert of init_from=m: the tokens of a bidirectional "
        "encoder see the one to predict; take a model that reads from left to right in init_from, or "
        "objective.name=masked_lm",
    ),
    "NSP from a RoBERTa": (
        {"sentence_objective": "nsp"},
        "roberta",
        False,
        "objective.sentence_objective=nsp is not for the roberta of init_from=m, which has no head for it: take "
        f"objective.sentence_objective=none, or a model of the family {FOR_PAIRS} in init_from, with any tokenizer",
    ),
}


@pytest.mark.parametrize("case", INIT_FROM)
def test_what_init_from_brings_is_not_called_a_setting_of_the_recipe(case: str) -> None:
    """Neither model.architecture nor model.causal was written."""
    values, architecture, is_causal, message = INIT_FROM[case]
    assert why_not_trained(objective(**values), architecture, is_causal, "m") == message
    assert "model." not in message


def test_every_family_with_a_head_for_pairs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, "other", replace(ARCHITECTURES["bert"], name="other"))
    wrong = why_not_trained(objective(sentence_objective="sop"), "roberta", False)
    assert wrong is not None
    assert wrong.endswith("model.architecture=bert or other, with any tokenizer")


def pack(packing_format: str) -> PackingSettings:
    return PackingSettings.model_validate({"format": packing_format})


@pytest.mark.parametrize("packing_format", FORMATS)
@pytest.mark.parametrize("sentences", ["none", "nsp", "sop"])
def test_a_sentence_objective_needs_two_segments(sentences: str, packing_format: str) -> None:
    wrong = contradiction(objective(sentence_objective=sentences), "bert", False, pack(packing_format))
    expected = ""
    if packing_format == "stream":
        expected = "objective.name=masked_lm and packing.format=stream do not go together"
    elif sentences != "none" and packing_format not in PAIRED:
        expected = f"objective.sentence_objective={sentences} needs two segments, and packing.format={packing_format}"
    assert (wrong or "").startswith(expected)
    assert (wrong is None) == (expected == "")


@pytest.mark.parametrize("architecture", [name for name, family in ARCHITECTURES.items() if family.reads_bare_text])
@pytest.mark.parametrize("packing_format", FORMATS[:-1])
@pytest.mark.parametrize("init_from", [None, "m"])
def test_text_as_it_runs_has_no_two_segments(architecture: str, packing_format: str, init_from: str | None) -> None:
    named = f"the {architecture} of {'model.architecture' if init_from is None else 'init_from=m'}"
    wrong = contradiction(objective(name="causal_lm"), architecture, True, pack(packing_format), init_from)
    assert (wrong is not None) == (packing_format in PAIRED)
    if wrong is not None:
        assert wrong.startswith(f"packing.format={packing_format} is not for {named}, which reads text as it runs")
        _, _, offered = wrong.partition(": take packing.format=")
        assert offered.split(" or ") == ["single_segment", "doc_sentences"], "no separator token is needed there"


@pytest.mark.parametrize(
    ("values", "architecture", "packing_format", "root"),
    [
        ({}, "gpt1", "segment_pair", "objective.name=masked_lm does not train the gpt1"),
        ({}, "roberta", "full_sentences", "objective.sentence_objective=nsp is not for the roberta"),
        ({"name": "bilm"}, "bert", "segment_pair", "objective.name=bilm does not train the bidirectional bert"),
        (
            {"name": "replaced_token"},
            "bert",
            "stream",
            "objective.name=replaced_token does not train the bidirectional bert",
        ),
        ({}, "elmo", "segment_pair", "objective.name=masked_lm does not train the elmo"),
    ],
)
def test_the_root_is_reported_before_what_follows_from_it(
    values: dict[str, Any], architecture: str, packing_format: str, root: str
) -> None:
    wrong = contradiction(objective(**values), architecture, False, pack(packing_format))
    assert (wrong or "").startswith(root)


@pytest.mark.parametrize(
    ("architecture", "packing_format"), [("electra", "single_segment"), ("bert", "full_sentences")]
)
@pytest.mark.parametrize(("values", "is_default"), [({}, True), ({"sentence_objective": "nsp"}, False)], ids=str)
def test_a_sentence_objective_that_is_not_given_is_called_the_default(
    values: dict[str, Any], is_default: bool, architecture: str, packing_format: str
) -> None:
    wrong = contradiction(objective(**values), architecture, False, pack(packing_format)) or ""
    assert wrong.startswith("objective.sentence_objective=nsp ")
    assert "take objective.sentence_objective=none" in wrong
    assert ("(nsp is the default of objective.name=masked_lm" in wrong) == is_default


@pytest.mark.parametrize("packing_format", FORMATS[:-1])
@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"sentence_objective": "nsp"}, None),
        ({"sentence_objective": "sop"}, None),
        ({"sentence_objective": "none"}, "objective.sentence_objective=none"),
        ({"name": "causal_lm"}, "objective.name=causal_lm"),
    ],
)
def test_pairs_without_an_objective_get_a_note(values: dict[str, Any], key: str | None, packing_format: str) -> None:
    note = unasked_pairs(objective(**values), pack(packing_format))
    if key is None or packing_format not in PAIRED:
        assert note is None
    else:
        assert note is not None
        assert note.startswith(f"packing.format={packing_format} makes {PAIRED[packing_format]}")
        assert f"{key} asks nothing about the two" in note


RTD = ("objective.name=replaced_token", "model.architecture=electra")

REFUSED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sentence order in full sentences": (
        ("objective.sentence_objective=sop", "packing.format=full_sentences"),
        ("objective.sentence_objective=sop", "packing.format=full_sentences"),
    ),
    "NSP on RoBERTa": (
        ("model.architecture=roberta",),
        ("objective.sentence_objective=nsp", "the roberta of model.architecture"),
    ),
    "a generator wider than the discriminator": (
        (*RTD, "objective.generator_size=1.5"),
        ("objective.generator_size=1.5: expected at most 1",),
    ),
    "unequal sizes in two stages": (
        (*RTD, "objective.schedule=two_stage"),
        ("schedule two_stage", "generator_size 0.25", "set objective.generator_size=1"),
    ),
    "RTD on a BERT": (
        RTD[:1],
        ("objective.name=replaced_token", "the bidirectional bert", "take model.architecture=electra"),
    ),
    "RTD with NSP": (
        (*RTD, "objective.sentence_objective=nsp"),
        ("objective.sentence_objective belongs to objective.name=masked_lm: leave it out, or change objective.name",),
    ),
    "a causal model with MLM": (
        ("model.causal=true", "objective.sentence_objective=none"),
        ("objective.name=masked_lm", "take model.causal=false"),
    ),
    "left to right on both sides": (
        ("objective.name=causal_lm",),
        ("objective.name=causal_lm", "take model.causal=true"),
    ),
    "bilm without a stream": (
        ("objective.name=bilm", "model.architecture=elmo"),
        ("objective.name=bilm", "packing.format=segment_pair", "take packing.format=stream"),
    ),
    "a stream without bilm": (
        ("packing.format=stream", "objective.sentence_objective=none"),
        ("objective.name=masked_lm", "packing.format=stream"),
    ),
    "phases in minutes": (
        ("train.minutes=3", "phases=[{until: .9}, {until: 1, max_length: 512}]"),
        ("train.minutes", "phases"),
    ),
    "a last phase that is not the end": (("phases=[{until: .9}]",), ("the last phase ends at 0.9",)),
    "a phase with short sequences of one segment": (
        (
            *("packing.format=single_segment", "objective.sentence_objective=none"),
            "phases=[{until: 1, short_sequence_prob: .1}]",
        ),
        ("short_sequence_prob 0.1", "single_segment"),
    ),
    "static masks and copies, RTD": (
        (*RTD, "objective.masking_mode=static", "packing.copies=5"),
        ("objective.masking_mode=static", "packing.copies"),
    ),
    "a key of another family": (
        ("model.cell_size=64",),
        ("model.cell_size belongs to model.architecture=elmo: leave it out, or change model.architecture",),
    ),
    "a key of all families but one": (
        ("objective.name=bilm", "model={architecture: elmo, hidden_size: 64}", "packing.format=stream"),
        ("model.hidden_size belongs to model.architecture=bert or roberta or ", " or lstm", ": leave it out"),
    ),
    "a key of two other objectives": (
        ("objective.name=causal_lm", "model.causal=true", "objective.target_prob=0.2"),
        ("objective.target_prob belongs to objective.name=masked_lm or ", "replaced_token", ": leave it out"),
    ),
    "decaying with Adagrad": (("optimizer.name=adagrad",), ("adagrad", "weight_decay")),
}
"""What a recipe says, and what its refusal names."""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """One that says only what it must."""
    return str(write(tmp_path / "recipe.yaml", "store: s\ntrain: {steps: 10}\n"))


@pytest.mark.parametrize("pairing", REFUSED)
def test_an_impossible_pairing_is_refused_naming_both(pairing: str, recipe: str) -> None:
    words, names = REFUSED[pairing]
    with pytest.raises(SettingsError) as refused:
        load_pretrain_recipe(recipe, words)
    for name in names:
        assert name in str(refused.value)


POSSIBLE: dict[str, tuple[str, ...]] = {
    "sentence order on sentence pairs": ("objective.sentence_objective=sop", "packing.format=sentence_pair"),
    "left-to-right BERT on segment pairs": ("objective.name=causal_lm", "model.causal=true"),
    "spans with NSP": ("objective.masking=span", "objective.span_boundary=true"),
    "MLM on an ELECTRA": ("model.architecture=electra", "objective.sentence_objective=none"),
    "untied stages": (*RTD, "objective.schedule=two_stage", "objective.generator_size=1"),
    "causal LSTM on full sentences": (
        *("objective.name=causal_lm", "model.architecture=lstm", "packing.format=full_sentences"),
    ),
}


@pytest.mark.parametrize("pairing", POSSIBLE)
def test_a_possible_pairing_is_not(pairing: str, recipe: str) -> None:
    settings = load_pretrain_recipe(recipe, POSSIBLE[pairing]).model_dump()
    for word in POSSIBLE[pairing]:
        key, _, value = word.partition("=")
        section, name = key.split(".")
        assert str(settings[section][name]).lower().removesuffix(".0") == value
