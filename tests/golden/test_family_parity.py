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
    both,
    differences,
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
)
from unmask.models.encoder import new_encoder
from unmask.models.families.table import ARCHITECTURES
from unmask.models.family import HeadKind
from unmask.models.heads.heads import needs_pooler, new_head
from unmask.models.hub.config import class_in, config_of
from unmask.models.hub.directory import NUM_LABELS, TunedHead, load_encoder, load_model, save_model
from unmask.models.settings import Architecture, EncoderSettings

ODD_KINDS: dict[str, tuple[Architecture, dict[str, Any], tuple[int, ...]]] = {
    "bert, plain, equal lengths": ("bert", {}, (16, 16, 16)),
    "bert, ragged": ("bert", {}, (5, 16, 1, 9, 16, 2)),
    "bert, all of length one": ("bert", {}, (1, 1, 1)),
    "bert, a single sequence": ("bert", {}, (7,)),
    "bert, lengths in several groups": ("bert", {"max_position_embeddings": 128}, (128, 3, 90, 60, 61, 1, 127, 33)),
    "bert, one layer": ("bert", {"num_hidden_layers": 1}, (9, 4)),
    "bert, five heads of size 7": ("bert", {"hidden_size": 35, "num_attention_heads": 5}, (8, 3, 8)),
    "bert, one head": ("bert", {"num_attention_heads": 1}, (8, 3)),
    "bert, heads of size 1": ("bert", {"hidden_size": 6, "num_attention_heads": 6}, (8, 3)),
    "bert, one segment": ("bert", {"type_vocab_size": 1}, (10, 2)),
    "bert, four segments": ("bert", {"type_vocab_size": 4}, (10, 6)),
    "bert, relu": ("bert", {"hidden_act": "relu"}, (10, 2)),
    "bert, gelu_new": ("bert", {"hidden_act": "gelu_new"}, (10, 2)),
    "bert, gelu_pytorch_tanh": ("bert", {"hidden_act": "gelu_pytorch_tanh"}, (10, 2)),
    "bert, silu": ("bert", {"hidden_act": "silu"}, (10, 2)),
    "bert, swish": ("bert", {"hidden_act": "swish"}, (10, 2)),
    "bert, mish": ("bert", {"hidden_act": "mish"}, (10, 2)),
    "bert, tanh": ("bert", {"hidden_act": "tanh"}, (10, 2)),
    "bert, large epsilon": ("bert", {"layer_norm_eps": 1e-2}, (10, 2)),
    "bert, odd feed-forward": ("bert", {"intermediate_size": 17}, (10, 2)),
    "bert, no padding token": ("bert", {"pad_token_id": None}, (10, 2)),
    "bert, padding token in the middle": ("bert", {"pad_token_id": 30}, (10, 16)),
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


def class_of(settings: EncoderSettings) -> str:
    """BERT's with the heads of its pre-training, and of the others the bare encoder."""
    if settings.family.name == "bert":
        return "BertLMHeadModel" if settings.causal else "BertForPreTraining"
    return next(iter(settings.family.classes))


@pytest.mark.parametrize("kind", ODD_KINDS)
def test_all_is_equal_on_odd_kinds(tmp_path: Path, kind: str) -> None:
    family, changes, lengths = ODD_KINDS[kind]
    settings = settings_of(family, **changes)
    found = differences(*both(tmp_path, class_of(settings), settings, lengths))
    assert max(found.values()) < TOLERANCE, found


@pytest.mark.slow
def test_all_is_equal_at_base_size(tmp_path: Path) -> None:
    found = differences(*both(tmp_path, "BertForPreTraining", EncoderSettings(), (24, 9, 17)))
    assert max(found.values()) < TOLERANCE, found


OUTPUT = "blocks.0.attention.output.weight"


@pytest.mark.parametrize(("family", "name"), [
    *((family, OUTPUT) for family in FAMILY_SIZES),
    ("bert", "embeddings.position.weight"),
    ("bert", "blocks.0.attention.query_key_value.weight"),
    ("bert", "blocks.1.feed_forward.down.bias"),
    ("bert", "blocks.1.attention_norm.weight"),
])  # fmt: skip
def test_the_tolerance_can_fail(tmp_path: Path, family: Architecture, name: str) -> None:
    """One number in one weight off by a thousandth of the weights' scale of 0.2 is seen."""
    settings = settings_of(family)
    ours, theirs, batch = both(tmp_path, class_of(settings), settings, LENGTHS)
    with torch.no_grad():
        ours.encoder.get_parameter(name).flatten()[5] += 2e-4
    found = differences(ours, theirs, batch)
    assert min(found["hidden states"], found["outputs"], found["gradients"]) > TOLERANCE, found


def test_a_change_of_epsilon_is_seen(tmp_path: Path) -> None:
    settings = settings_of("bert", layer_norm_eps=1e-2)
    ours, theirs, batch = both(tmp_path, "BertForPreTraining", settings, LENGTHS)
    for module in ours.encoder.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1.01e-2
    assert differences(ours, theirs, batch)["hidden states"] > TOLERANCE


@pytest.mark.parametrize(
    ("family", "kind"),
    [(family, kind) for family in FAMILY_SIZES for kind in get_args(HeadKind) if not ARCHITECTURES[family].has(kind)],
)
def test_the_encoder_of_a_head_that_has_no_class_there_opens_alone(
    tmp_path: Path, family: Architecture, kind: HeadKind
) -> None:
    settings = settings_of(family)
    pretrained = {"gpt1": "OpenAIGPTLMHeadModel", "modernbert_decoder": "ModernBertDecoderForCausalLM"}
    new_theirs(pretrained[family], settings).save_pretrained(tmp_path / "pretrained")
    loaded = load_encoder(tmp_path / "pretrained", head=kind)
    assert loaded.head is None
    head = new_head(kind, settings, NUM_LABELS.get(kind, 3), dropout_prob=0.3)
    save_model(tmp_path / "tuned", loaded.encoder, tuned=TunedHead(head, kind, labels=LABELS))

    batch = draw(settings, LENGTHS)
    theirs, report = AutoModel.from_pretrained(tmp_path / "tuned", output_loading_info=True)
    assert not any(report.values()), report
    ours = evaluated(load_model(tmp_path / "tuned"))
    assert ours.head_kind == kind
    assert ours.labels == (None if kind in NUM_LABELS else LABELS)
    found = {"last_hidden_state": ours.encoder(batch)}
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
