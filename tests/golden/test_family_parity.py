"""Every family and head of fine-tuning against `transformers`', and their directories both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModel

from support.family_parity import (
    FAMILY_SIZES,
    LENGTHS,
    TOLERANCE,
    draw,
    evaluated,
    gradient_difference,
    largest_difference,
    new_theirs,
    padded_inputs,
    run_ours,
    run_theirs,
    save_again,
    settings_of,
    unpad,
)
from unmask.models.encoder import new_encoder
from unmask.models.families.table import ARCHITECTURES
from unmask.models.family import HeadKind
from unmask.models.heads.heads import needs_pooler, new_head
from unmask.models.hub.config import class_in, config_of
from unmask.models.hub.directory import NUM_LABELS, TunedHead, load_encoder, load_model, save_model
from unmask.models.settings import Architecture

ODD_KINDS: dict[str, tuple[Architecture, dict[str, Any], tuple[int, ...]]] = {
    "roberta, lengths in several groups": ("roberta", {"max_position_embeddings": 130}, (128, 3, 90, 60, 61, 1, 127)),
    "roberta, two segments": ("roberta", {"type_vocab_size": 2}, LENGTHS),
    "roberta, padding token 5": ("roberta", {"pad_token_id": 5}, (14, 6, 14)),
    "roberta, relu": ("roberta", {"hidden_act": "relu"}, LENGTHS),
    "electra, nothing projected": ("electra", {"embedding_size": 24}, LENGTHS),
    "electra, wide embeddings": ("electra", {"embedding_size": 31}, (1, 1)),
    "electra, gelu_new": ("electra", {"hidden_act": "gelu_new"}, LENGTHS),
    "bert, left to right": ("bert", {"causal": True}, LENGTHS),
    "gpt1, equal lengths": ("gpt1", {}, (16, 16, 16)),
    "gpt1, lengths in several groups": ("gpt1", {"max_position_embeddings": 128}, (128, 3, 90, 60, 61, 1, 127)),
    "gpt1, all of length one": ("gpt1", {}, (1, 1)),
    "gpt1, relu": ("gpt1", {"hidden_act": "relu"}, LENGTHS),
    "gpt1, silu and a large epsilon": ("gpt1", {"hidden_act": "silu", "layer_norm_eps": 1e-2}, LENGTHS),
    "gpt1, heads of size 1": ("gpt1", {"hidden_size": 6, "num_attention_heads": 6, "intermediate_size": 24}, LENGTHS),
}
"""The family, what differs from its sizes, and the lengths of the batch."""

LABELS = ("no", "yes", "나쁨")


@pytest.mark.parametrize("class_name", [name for family in FAMILY_SIZES for name in ARCHITECTURES[family].classes])
def test_directories_and_logits_both_ways(tmp_path: Path, class_name: str) -> None:
    settings = settings_of(class_in({"architectures": [class_name]})[0].name, causal=class_name == "BertLMHeadModel")
    labels = {"id2label": dict(enumerate(LABELS)), "label2id": {name: number for number, name in enumerate(LABELS)}}
    labelled = class_name.endswith(("SequenceClassification", "TokenClassification"))
    theirs = new_theirs(class_name, settings, **labels if labelled else {})
    theirs.save_pretrained(tmp_path / "theirs")
    batch = draw(settings, LENGTHS)
    expected = run_theirs(theirs, batch, settings)

    ours = evaluated(load_model(tmp_path / "theirs"))
    assert ours.architecture == class_name
    assert ours.encoder.settings == settings
    assert ours.unused == ours.fresh == ()
    assert ours.labels == (LABELS if labelled else None)
    assert largest_difference(run_ours(ours, batch), expected) < TOLERANCE

    save_again(tmp_path / "ours", ours)
    again, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    for name, weight in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
    assert largest_difference(run_theirs(again.eval(), batch, settings), expected) < TOLERANCE
    if labelled:
        assert again.config.id2label == dict(enumerate(LABELS))
    assert again.config.to_diff_dict().keys() <= theirs.config.to_diff_dict().keys() | {"classifier_dropout"}
    flatten = settings.family.flatten_config or dict
    written, kept = flatten(again.config.to_dict()), flatten(theirs.config.to_dict())
    for key in config_of(settings):
        assert written[key] == kept[key], key

    bare, report = AutoModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    lacks_pooler = settings.family.has("pooler") and ours.encoder.pooler is None
    assert set(report["missing_keys"]) == ({"pooler.dense.weight", "pooler.dense.bias"} if lacks_pooler else set())
    alone = load_encoder(tmp_path / "ours", pooler=not lacks_pooler).encoder.eval()
    outputs = run_theirs(bare.eval(), batch, settings)
    found = {"last_hidden_state": alone(batch)} | ({"pooler_output": alone.summary(batch)} if alone.pooler else {})
    assert largest_difference(found, {name: outputs[name] for name in found}) < TOLERANCE

    assert gradient_difference(ours, theirs, batch) < TOLERANCE


@pytest.mark.parametrize("kind", ODD_KINDS)
def test_hidden_states_of_odd_kinds(tmp_path: Path, kind: str) -> None:
    family, changes, lengths = ODD_KINDS[kind]
    settings = settings_of(family, **changes)
    bare = next(iter(ARCHITECTURES[family].classes))
    theirs = new_theirs(bare, settings)
    theirs.save_pretrained(tmp_path)
    ours = evaluated(load_model(tmp_path))
    batch = draw(settings, lengths)
    expected = theirs(**padded_inputs(batch, settings), output_hidden_states=True).hidden_states
    found = ours.encoder.hidden_states(batch)
    assert len(found) == len(expected)
    for state, padded in zip(found, expected, strict=True):
        assert float((state - unpad(padded, batch)).detach().abs().max()) < TOLERANCE
    places = torch.tensor([0, batch.num_tokens - 1])
    assert float((ours.encoder(batch, places) - found[-1][places]).detach().abs().max()) < TOLERANCE


@pytest.mark.parametrize("family", FAMILY_SIZES)
def test_the_tolerance_can_fail(tmp_path: Path, family: Architecture) -> None:
    """One number in one weight off by a thousandth of the weights' scale of 0.2 is seen."""
    settings = settings_of(family)
    bare = next(iter(ARCHITECTURES[family].classes))
    theirs = new_theirs(bare, settings)
    theirs.save_pretrained(tmp_path)
    ours = evaluated(load_model(tmp_path))
    with torch.no_grad():
        ours.encoder.get_parameter("blocks.0.attention.output.weight")[5, 5] += 2e-4
    batch = draw(settings, LENGTHS)
    assert largest_difference(run_ours(ours, batch), run_theirs(theirs, batch, settings)) > TOLERANCE


@pytest.mark.parametrize("kind", get_args(HeadKind))
@pytest.mark.parametrize("family", FAMILY_SIZES)
def test_what_is_fine_tuned_here_opens_there(tmp_path: Path, family: Architecture, kind: HeadKind) -> None:
    """A fresh head on the encoder of a pre-trained directory; with no class for it, the encoder opens alone."""
    settings = settings_of(family)
    pretrained = {
        "bert": "BertForPreTraining",
        "roberta": "RobertaForMaskedLM",
        "electra": "ElectraForPreTraining",
        "gpt1": "OpenAIGPTLMHeadModel",
        "modernbert": "ModernBertForMaskedLM",
        "modernbert_decoder": "ModernBertDecoderForCausalLM",
    }
    new_theirs(pretrained[family], settings).save_pretrained(tmp_path / "pretrained")
    loaded = load_encoder(tmp_path / "pretrained", head=kind)
    assert (loaded.encoder.pooler is not None) == needs_pooler(settings, kind)
    assert loaded.head is None
    head = new_head(kind, settings, NUM_LABELS.get(kind, 3), dropout_prob=0.3)
    save_model(tmp_path / "tuned", loaded.encoder, tuned=TunedHead(head, kind, labels=LABELS))

    batch = draw(settings, LENGTHS)
    auto = {
        "sequence_classification": transformers.AutoModelForSequenceClassification,
        "token_classification": transformers.AutoModelForTokenClassification,
        "question_answering": transformers.AutoModelForQuestionAnswering,
        "multiple_choice": transformers.AutoModelForMultipleChoice,
    }
    auto_class = auto[kind] if ARCHITECTURES[family].has(kind) else AutoModel
    theirs, report = auto_class.from_pretrained(tmp_path / "tuned", output_loading_info=True)
    assert not any(report.values()), report
    ours = evaluated(load_model(tmp_path / "tuned"))
    assert ours.head_kind == kind
    assert ours.labels == (None if kind in NUM_LABELS else LABELS)
    found = run_ours(ours, batch) if ARCHITECTURES[family].has(kind) else {"last_hidden_state": ours.encoder(batch)}
    assert largest_difference(found, run_theirs(theirs.eval(), batch, settings)) < TOLERANCE


@pytest.mark.parametrize("problem_type", ["multi_label_classification", "regression"])
@pytest.mark.parametrize("family", FAMILY_SIZES)
def test_the_problem_type_is_what_their_loss_goes_by(tmp_path: Path, family: Architecture, problem_type: str) -> None:
    settings = settings_of(family)
    num_labels = 1 if problem_type == "regression" else 3
    encoder = new_encoder(settings, needs_pooler(settings, "sequence_classification")).eval()
    head = new_head("sequence_classification", settings, num_labels).eval()
    save_model(tmp_path, encoder, tuned=TunedHead(head, "sequence_classification", problem_type=problem_type))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    batch = draw(settings, LENGTHS)
    targets = torch.rand(len(LENGTHS), num_labels, generator=torch.Generator().manual_seed(0))
    expected = theirs(**padded_inputs(batch, settings), labels=targets).loss
    logits = head(encoder.summary(batch))
    loss = nn.MSELoss() if problem_type == "regression" else nn.BCEWithLogitsLoss()
    assert float((loss(logits, targets) - expected).detach().abs()) < TOLERANCE
