"""Every family and head of fine-tuning against `transformers`', and their directories both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, PreTrainedModel

from support.sizes import sizes_of
from unmask.batch import Batch, pack
from unmask.models.encoder import new_encoder
from unmask.models.families.table import ARCHITECTURES
from unmask.models.heads.heads import HeadKind, needs_pooler, new_head
from unmask.models.hub.config import config_of, find_class
from unmask.models.hub.directory import NUM_LABELS, LoadedModel, load_encoder, load_model, save_model
from unmask.models.hub.weight_names import hub_names, split
from unmask.models.settings import Architecture, EncoderSettings
from unmask.objectives.causal_lm import next_token_decoder

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TOLERANCE = 1e-5
"""Activations are of order 1 to 3, so this is some 50 roundings of fp32 (6e-8 each); measured are at most 2e-6. A
weight that is off by a thousandth of its scale is over it (`test_the_tolerance_can_fail`)."""

PAD = 1
SIZES = sizes_of(vocab=61, width=24, layers=2, heads=3, inner=96, positions=20, std=0.2, pad_token_id=PAD)
FAMILY_SIZES: dict[Architecture, dict[str, Any]] = {
    "bert": SIZES,
    "roberta": {**SIZES, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "electra": {**SIZES, "embedding_size": 10},
    "gpt1": SIZES,
    "modernbert": {**SIZES, "num_hidden_layers": 3, "hidden_size": 30, "local_attention": 6},
}
LENGTHS = (9, 16, 1, 3, 16)

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
    "modernbert, wide window": ("modernbert", {"local_attention": 128}, LENGTHS),
    "modernbert, long sequences": ("modernbert", {"max_position_embeddings": 130}, (128, 3, 90, 60, 61, 1, 127)),
    "modernbert, all layers global": ("modernbert", {"global_attn_every_n_layers": 1}, LENGTHS),
    "modernbert, all biases": (
        "modernbert",
        {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True},
        LENGTHS,
    ),
    "modernbert, silu and other thetas": (
        "modernbert",
        {"hidden_act": "silu", "global_rope_theta": 500.0, "local_rope_theta": 100.0},
        LENGTHS,
    ),
    "gpt1, heads of size 1": ("gpt1", {"hidden_size": 6, "num_attention_heads": 6, "intermediate_size": 24}, LENGTHS),
}
"""The family, what differs from its sizes, and the lengths of the batch."""

LABELS = ("no", "yes", "나쁨")


def settings_of(family: Architecture, **changes: Any) -> EncoderSettings:
    return EncoderSettings(architecture=family, **FAMILY_SIZES[family] | changes)


def draw(settings: EncoderSettings, lengths: tuple[int, ...]) -> Batch:
    """Random tokens, none of them the padding token, which RoBERTa's positions leave out in `transformers`."""
    generator = torch.Generator().manual_seed(len(lengths))

    def numbers(low: int, high: int) -> list[list[int]]:
        return [torch.randint(low, high, (length,), generator=generator).tolist() for length in lengths]

    return pack(numbers(6, settings.vocab_size), numbers(0, max(1, settings.type_vocab_size)))


def padded_inputs(batch: Batch, settings: EncoderSettings) -> dict[str, Tensor]:
    def pad(packed: Tensor, value: int) -> Tensor:
        rows = list(packed.split(batch.lengths))
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)

    assert settings.pad_token_id is not None
    inputs = {
        "input_ids": pad(batch.input_ids, settings.pad_token_id),
        "attention_mask": pad(torch.ones_like(batch.input_ids), 0),
    }
    if settings.type_vocab_size:
        inputs["token_type_ids"] = pad(batch.token_type_ids, 0)
    return inputs


def unpad(padded: Tensor, batch: Batch) -> Tensor:
    return torch.cat([row[:length] for row, length in zip(padded, batch.lengths, strict=True)])


def new_theirs(class_name: str, settings: EncoderSettings, **config: Any) -> PreTrainedModel:
    """Random weights, biases and norms included, in eval mode."""
    torch.manual_seed(0)
    model_class = getattr(transformers, class_name)
    theirs: PreTrainedModel = model_class(model_class.config_class(**config_of(settings), **config)).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.ndim == 1:  # fresh biases and norms are all 0 and 1, and hide mistakes
                parameter.add_(torch.randn_like(parameter) * settings.initializer_range)
            elif "embed" in name:
                parameter.normal_(0, settings.initializer_range)
    return theirs


def run_theirs(theirs: PreTrainedModel, batch: Batch, settings: EncoderSettings) -> dict[str, Tensor]:
    """Outputs over packed tokens, or over sequences; a batch's sequences are the choices of one question."""
    inputs = padded_inputs(batch, settings)
    is_choice = type(theirs).__name__.endswith("MultipleChoice")
    if is_choice:
        inputs = {name: tensor[None] for name, tensor in inputs.items()}
    outputs = {name: tensor for name, tensor in theirs(**inputs).items() if isinstance(tensor, Tensor)}
    if is_choice:
        return {name: tensor.reshape(-1, 1) for name, tensor in outputs.items()}
    by_token = inputs["input_ids"].shape
    return {name: unpad(tensor, batch) if tensor.shape[:2] == by_token else tensor for name, tensor in outputs.items()}


def run_ours(model: LoadedModel, batch: Batch) -> dict[str, Tensor]:
    """The same outputs, under the names that they have in `transformers`."""
    encoder, head = model.encoder, model.head
    if model.head_kind in ("sequence_classification", "multiple_choice"):
        return {"logits": head(encoder.summary(batch))}
    hidden = encoder(batch)
    if model.head_kind == "token_classification":
        return {"logits": head(hidden)}
    if model.head_kind == "question_answering":
        start, end = head(hidden).unbind(-1)
        return {"start_logits": start, "end_logits": end}
    if model.discriminator_head is not None:
        return {"logits": model.discriminator_head(hidden)}
    if model.architecture == "OpenAIGPTLMHeadModel":
        return {"logits": functional.linear(*next_token_decoder(encoder, None, hidden))}
    if model.masked_lm_head is not None:
        logits = model.masked_lm_head(hidden, encoder.word_embeddings)
        if model.next_sentence_head is None:
            return {"logits": logits}
        return {
            "prediction_logits": logits,
            "seq_relationship_logits": model.next_sentence_head(encoder.summary(batch)),
        }
    return {"last_hidden_state": hidden} | ({"pooler_output": encoder.summary(batch)} if encoder.pooler else {})


def modules_of(model: LoadedModel) -> list[nn.Module]:
    modules = (model.encoder, model.masked_lm_head, model.next_sentence_head, model.discriminator_head, model.head)
    return [module for module in modules if module is not None]


def save_again(directory: Path, model: LoadedModel) -> None:
    """Saves what has been loaded."""
    heads = {name: getattr(model, name) for name in ("masked_lm_head", "next_sentence_head", "discriminator_head")}
    head = {"head": model.head, "head_kind": model.head_kind, "labels": model.labels}
    save_model(directory, model.encoder, causal_lm=model.is_causal_lm, **heads, **head)


def evaluated(model: LoadedModel) -> LoadedModel:
    for module in modules_of(model):
        module.eval()
    return model


def largest_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].shape == tensor.shape, name
    return max(float((ours[name] - tensor).detach().abs().max()) for name, tensor in theirs.items())


def gradient_difference(model: LoadedModel, theirs: PreTrainedModel, batch: Batch) -> float:
    """Of the summed squares of all outputs; relative to the largest of a parameter's gradient.

    Small ones are sums of large terms that cancel, down to the keys' biases, whose are zero but for rounding: they are
    compared with a hundredth of the largest of all. Measured are at most 2e-6.
    """
    for loss_of in (run_ours(model, batch), run_theirs(theirs, batch, model.encoder.settings)):
        torch.stack([tensor.square().sum() for tensor in loss_of.values()]).sum().backward()
    ours: dict[str, Tensor] = {}
    for parameter, place in hub_names(model.encoder, model.heads).items():
        assert parameter.grad is not None
        ours |= split(place, parameter.grad)
    prefix = model.encoder.settings.family.weights.prefix if theirs.base_model is theirs else ""
    expected = {prefix + name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert ours.keys() == expected.keys()
    floor = 1e-2 * max(float(gradient.abs().max()) for gradient in expected.values())
    return max(
        float((ours[name] - gradient).abs().max()) / max(float(gradient.abs().max()), floor)
        for name, gradient in expected.items()
    )


@pytest.mark.parametrize("class_name", [name for family in FAMILY_SIZES for name in ARCHITECTURES[family].classes])
def test_directories_and_logits_both_ways(tmp_path: Path, class_name: str) -> None:
    settings = settings_of(find_class(class_name)[0].name, causal=class_name == "BertLMHeadModel")
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


MODERN_HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "a decoder of its own": ("ModernBertForMaskedLM", {"tie_word_embeddings": False}),
    "a decoder without bias": ("ModernBertForMaskedLM", {"decoder_bias": False}),
    "head by tanh": ("ModernBertForMaskedLM", {"classifier_activation": "tanh"}),
    "the mean of a text": ("ModernBertForSequenceClassification", {"classifier_pooling": "mean"}),
    "the mean of a choice": ("ModernBertForMultipleChoice", {"classifier_pooling": "mean"}),
    "biases in the head": ("ModernBertForTokenClassification", {"classifier_bias": True, "norm_bias": True}),
}


@pytest.mark.parametrize("variant", MODERN_HEADS)
def test_the_heads_of_modernbert_in_all_variants(tmp_path: Path, variant: str) -> None:
    class_name, changes = MODERN_HEADS[variant]
    settings = settings_of("modernbert", **changes)
    theirs = new_theirs(class_name, settings)
    theirs.save_pretrained(tmp_path / "theirs")
    batch = draw(settings, LENGTHS)
    expected = run_theirs(theirs, batch, settings)
    ours = evaluated(load_model(tmp_path / "theirs"))
    assert ours.encoder.settings == settings
    assert largest_difference(run_ours(ours, batch), expected) < TOLERANCE
    assert gradient_difference(ours, theirs, batch) < TOLERANCE
    save_again(tmp_path / "ours", ours)
    again, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    assert largest_difference(run_theirs(again.eval(), batch, settings), expected) < TOLERANCE


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
    }
    new_theirs(pretrained[family], settings).save_pretrained(tmp_path / "pretrained")
    loaded = load_encoder(tmp_path / "pretrained", head=kind)
    assert (loaded.encoder.pooler is not None) == needs_pooler(settings, kind)
    assert loaded.head is None
    head = new_head(kind, settings, NUM_LABELS.get(kind, 3), dropout_prob=0.3)
    save_model(tmp_path / "tuned", loaded.encoder, head=head, head_kind=kind, labels=LABELS)

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
    save_model(tmp_path, encoder, head=head, head_kind="sequence_classification", problem_type=problem_type)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    batch = draw(settings, LENGTHS)
    targets = torch.rand(len(LENGTHS), num_labels, generator=torch.Generator().manual_seed(0))
    expected = theirs(**padded_inputs(batch, settings), labels=targets).loss
    logits = head(encoder.summary(batch))
    loss = nn.MSELoss() if problem_type == "regression" else nn.BCEWithLogitsLoss()
    assert float((loss(logits, targets) - expected).detach().abs()) < TOLERANCE
