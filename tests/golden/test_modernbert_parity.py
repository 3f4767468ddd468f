"""ModernBERT against `transformers`: every class in every variant of its configuration, both ways, in texts longer than
the local window; and every layout in which its directories were released."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from support.family_parity import (
    TOLERANCE,
    draw,
    evaluated,
    largest_difference,
    new_theirs,
    padded_inputs,
    run_ours,
    run_theirs,
    save_again,
    settings_of,
    unpad,
)
from unmask.batch import Batch
from unmask.models.families.table import ARCHITECTURES
from unmask.models.hub.config import config_of
from unmask.models.hub.directory import load_model
from unmask.models.hub.source import LoadedModel
from unmask.models.hub.weight_names import hub_names, split
from unmask.models.kernels.rotary import rotate
from unmask.models.kernels.row_layout import Layout
from unmask.models.settings import EncoderSettings

CLASSES = tuple(ARCHITECTURES["modernbert"].classes)
LENGTHS = (40, 3, 41, 1, 22, 60)
"""Windows are of three tokens on either side: sequences shorter and longer than one, by a mask and block by block."""

VARIANTS: dict[str, dict[str, Any]] = {
    "as published": {},
    "a window wider than the texts": {"local_attention": 128},
    "an odd window": {"local_attention": 5},
    "every layer global": {"global_attn_every_n_layers": 1},
    "every other layer global": {"global_attn_every_n_layers": 2},
    "one global layer": {"global_attn_every_n_layers": 5},
    "other thetas": {"global_rope_theta": 500.0, "local_rope_theta": 100.0},
    "all biases": {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True},
    "no bias at all": {"decoder_bias": False},
    "silu, tanh in the head": {"hidden_act": "silu", "classifier_activation": "tanh"},
    "relu": {"hidden_act": "relu", "classifier_activation": "relu"},
    "a decoder of its own": {"tie_word_embeddings": False},
    "pooled by the mean": {"classifier_pooling": "mean"},
    "five heads of two": {"hidden_size": 10, "num_attention_heads": 5, "layer_norm_eps": 1e-3},
    "one layer, one head": {
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 7,
        "global_attn_every_n_layers": 1,
    },
    "much at once": {
        "norm_bias": True,
        "classifier_bias": True,
        "hidden_act": "silu",
        "classifier_activation": "relu",
        "classifier_pooling": "mean",
        "global_attn_every_n_layers": 2,
        "hidden_size": 50,
        "num_attention_heads": 5,
    },
}

CASES = [
    *((class_name, variant) for class_name in CLASSES for variant in ("as published", "much at once")),
    *(("ModernBertForMaskedLM", variant) for variant in VARIANTS if variant not in ("as published", "much at once")),
    ("ModernBertForSequenceClassification", "pooled by the mean"),
    ("ModernBertForMultipleChoice", "pooled by the mean"),
]


def variant_of(name: str) -> EncoderSettings:
    sizes = {"num_hidden_layers": 5, "max_position_embeddings": 64}
    return settings_of("modernbert", **sizes | VARIANTS[name])


def labels_of(class_name: str, batch: Batch, num_labels: int, vocab_size: int) -> dict[str, Tensor]:
    """Targets of a class's loss, over packed tokens or over sequences; -100 is no target."""
    generator = torch.Generator().manual_seed(3)

    def draw_labels(number: int, high: int) -> Tensor:
        return torch.randint(high, (number,), generator=generator)

    if class_name.endswith("MaskedLM"):
        labels = draw_labels(batch.num_tokens, vocab_size)
        return {"labels": labels.masked_fill(draw_labels(batch.num_tokens, 4) > 0, -100)}
    if class_name.endswith("TokenClassification"):
        return {"labels": draw_labels(batch.num_tokens, num_labels)}
    if class_name.endswith("SequenceClassification"):
        return {"labels": draw_labels(batch.num_sequences, num_labels)}
    if class_name.endswith("MultipleChoice"):
        return {"labels": torch.tensor([2])}
    if class_name.endswith("QuestionAnswering"):
        lengths = torch.tensor(batch.lengths)
        return {"start_positions": draw_labels(len(lengths), 9) % lengths, "end_positions": lengths - 1}
    return {}


def loss_of_ours(model: LoadedModel, batch: Batch, labels: dict[str, Tensor]) -> Tensor:
    outputs = run_ours(model, batch)
    if "start_positions" in labels:
        losses = []
        for which in ("start", "end"):
            rows = torch.split(outputs[f"{which}_logits"], list(batch.lengths))
            scores = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=float("-inf"))
            losses.append(functional.cross_entropy(scores, labels[f"{which}_positions"]))
        return torch.stack(losses).mean()
    if model.head_kind == "multiple_choice":
        return functional.cross_entropy(outputs["logits"].T, labels["labels"])
    if labels:
        return functional.cross_entropy(outputs["logits"], labels["labels"])
    return outputs["last_hidden_state"].square().mean()


def outputs_of_theirs(
    theirs: PreTrainedModel, batch: Batch, settings: EncoderSettings, labels: dict[str, Tensor]
) -> tuple[list[Tensor], Tensor]:
    """The hidden states of all layers, over packed tokens, and the loss. No token has a label where there is none; and
    no padded one may be the answer to a question: `transformers` lets it be."""
    inputs = padded_inputs(batch, settings)
    for name, packed in labels.items():
        per_token = len(packed) == batch.num_tokens
        rows = list(packed.split(batch.lengths)) if per_token else []
        inputs[name] = torch.nn.utils.rnn.pad_sequence(rows, True, -100) if per_token else packed
    if type(theirs).__name__.endswith("MultipleChoice"):
        inputs = {name: values if name == "labels" else values[None] for name, values in inputs.items()}
    found = theirs(**inputs, output_hidden_states=True)
    states = [unpad(state, batch) for state in found.hidden_states]
    if "start_positions" in labels:
        padding = padded_inputs(batch, settings)["attention_mask"] == 0
        scores = [logits.masked_fill(padding, float("-inf")) for logits in (found.start_logits, found.end_logits)]
        targets = (labels["start_positions"], labels["end_positions"])
        return states, torch.stack(
            [functional.cross_entropy(*pair) for pair in zip(scores, targets, strict=True)]
        ).mean()
    return states, found.loss if labels else states[-1].square().mean()


@pytest.mark.parametrize(("class_name", "variant"), CASES)
def test_hidden_states_losses_and_gradients_both_ways(tmp_path: Path, class_name: str, variant: str) -> None:
    """Gradients are relative to the largest of a parameter's, or a hundredth of the largest of all where that is more:
    smaller ones are sums of large terms that cancel."""
    settings = variant_of(variant)
    theirs = new_theirs(class_name, settings)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = evaluated(load_model(tmp_path / "theirs"))
    assert ours.encoder.settings == settings
    batch = draw(settings, LENGTHS)
    labels = labels_of(class_name, batch, theirs.config.num_labels, settings.vocab_size)
    expected, expected_loss = outputs_of_theirs(theirs, batch, settings, labels)
    found, loss = ours.encoder.hidden_states(batch), loss_of_ours(ours, batch, labels)
    assert len(found) == len(expected) == settings.num_hidden_layers + 1
    for state, its in zip(found, expected, strict=True):
        assert float((state - its).detach().abs().max()) < TOLERANCE
    assert float((loss - expected_loss).detach().abs()) < TOLERANCE
    places = torch.tensor([0, 5, batch.num_tokens - 1])
    assert float((ours.encoder(batch, places) - found[-1][places]).detach().abs().max()) < TOLERANCE
    assert largest_difference(run_ours(ours, batch), run_theirs(theirs, batch, settings)) < TOLERANCE

    loss.backward()
    expected_loss.backward()
    prefix = settings.family.weights.prefix if class_name == "ModernBertModel" else ""
    gradients = {prefix + name: parameter.grad for name, parameter in theirs.named_parameters()}
    floor = 1e-2 * max(float(gradient.abs().max()) for gradient in gradients.values() if gradient is not None)
    for parameter, place in hub_names(ours.encoder, ours.heads).items():
        assert parameter.grad is not None
        for name, gradient in split(place, parameter.grad).items():
            its = gradients.pop(name)
            assert its is not None
            if class_name.endswith(("MultipleChoice", "QuestionAnswering")) and name == "classifier.bias":
                # It moves all choices, beginnings or ends alike: the terms of its gradient, each up to 1, cancel but
                # for their roundings.
                assert max(float(gradient.abs().max()), float(its.abs().max())) < 1e-6
                continue
            largest = max(float(its.abs().max()), floor)
            assert float((gradient - its).abs().max()) < TOLERANCE * largest, name
    assert not gradients

    save_again(tmp_path / "ours", ours)
    again, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert again.config.cls_token_id is None  # left out, it would be 50281, which is no entry of a small vocabulary
    assert not any(report.values()), report
    states, loss_again = outputs_of_theirs(again.eval(), batch, settings, labels)
    for state, its in zip(states, expected, strict=True):
        assert float((state - its).detach().abs().max()) < TOLERANCE
    assert float((loss_again - expected_loss).detach().abs()) < TOLERANCE


@pytest.mark.parametrize("change", [-2, 2])
def test_a_window_that_is_off_by_one_is_seen(tmp_path: Path, change: int) -> None:
    settings = variant_of("as published")
    theirs = new_theirs("ModernBertModel", settings)
    theirs.save_pretrained(tmp_path)
    batch = draw(settings, LENGTHS)
    expected = run_theirs(theirs, batch, settings)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"local_attention": settings.local_attention + change}))
    assert largest_difference(run_ours(evaluated(load_model(tmp_path)), batch), expected) > 100 * TOLERANCE


@pytest.mark.parametrize("head_size", [16, 64])
def test_the_angles_are_theirs_to_the_bit(head_size: int) -> None:
    """At 8,192 tokens an angle whose frequency is off by its last bit is off by 5e-4."""
    settings = settings_of("modernbert", hidden_size=head_size, num_attention_heads=1)
    theirs = new_theirs("ModernBertModel", settings).rotary_emb
    places = torch.arange(8192)
    layout = Layout(torch.tensor([0, 8192]), (8192,), 8192, position_ids=places)
    thetas = {"full_attention": settings.global_rope_theta, "sliding_attention": settings.local_rope_theta}
    for kind, theta in thetas.items():
        ones = torch.ones(8192, 3, 1, head_size)
        ones[..., head_size // 2 :] = 0
        cos, sin = rotate(ones, layout, theta)[:, 0, 0].chunk(2, -1)
        expected_cos, expected_sin = theirs(ones, places[None], kind)
        assert torch.equal(cos, expected_cos[0, :, : head_size // 2])
        assert torch.equal(sin, expected_sin[0, :, : head_size // 2])


def test_texts_of_many_windows(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 1, "local_attention": 128}
    settings = settings_of("modernbert", **sizes, max_position_embeddings=2048)
    theirs = new_theirs("ModernBertModel", settings)
    theirs.save_pretrained(tmp_path)
    batch = draw(settings, (2048, 700))
    with torch.inference_mode():
        expected = run_theirs(theirs, batch, settings)
        assert largest_difference(run_ours(evaluated(load_model(tmp_path)), batch), expected) < TOLERANCE


OF_4_48: dict[str, Any] = {
    "architectures": ["ModernBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 4,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "cls_token_id": 4,
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "eos_token_id": 5,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "gradient_checkpointing": False,
    "hidden_activation": "gelu",
    "hidden_size": 30,
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "layer_norm_eps": 1e-05,
    "local_attention": 6,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 3,
    "num_hidden_layers": 5,
    "pad_token_id": 1,
    "position_embedding_type": "absolute",
    "reference_compile": None,
    "repad_logits_with_grad": False,
    "sep_token_id": 5,
    "sparse_pred_ignore_index": -100,
    "sparse_prediction": False,
    "torch_dtype": "float32",
    "transformers_version": "4.48.0",
    "vocab_size": 61,
}
"""The keys of ModernBERT-base's config.json, with small sizes."""

RELEASED: dict[str, dict[str, Any]] = {
    "ModernBERT": OF_4_48,
    "Ettin": OF_4_48 | {"position_embedding_type": "sans_pos", "causal_mask": False, "is_causal": False},
    "mmBERT": {key: value for key, value in OF_4_48.items() if key != "reference_compile"}
    | {"position_embedding_type": "sans_pos", "local_rope_theta": 160000.0, "pad_token_id": 0, "dtype": "float32"},
    "everything that is usual left out": {
        key: value
        for key, value in OF_4_48.items()
        if key in ("architectures", "model_type", "vocab_size", "pad_token_id")
        or key.endswith(("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "s_token_id"))
    },
    "compiled and sparse": OF_4_48
    | {"reference_compile": True, "sparse_prediction": True, "deterministic_flash_attn": True},
}


@pytest.mark.parametrize("name", RELEASED)
def test_released_layouts_open(tmp_path: Path, name: str) -> None:
    config = RELEASED[name]
    sizes = {"num_hidden_layers": 5, "max_position_embeddings": 64}
    new_theirs("ModernBertForMaskedLM", settings_of("modernbert", **sizes)).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    ours = evaluated(load_model(tmp_path))
    settings = ours.encoder.settings
    batch = draw(settings, LENGTHS)
    assert largest_difference(run_ours(ours, batch), run_theirs(theirs, batch, settings)) < TOLERANCE
    written = config_of(settings)
    same = (written.keys() & config.keys()) - settings.family.fixed_keys.keys()
    assert {key: written[key] for key in same} == {key: config[key] for key in same}


@pytest.mark.parametrize("version", ["4.48", "5"])
def test_both_ways_of_writing_the_pattern_are_one(tmp_path: Path, version: str) -> None:
    settings = variant_of("every other layer global")
    new_theirs("ModernBertModel", settings).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert "layer_types" in config
    assert "global_rope_theta" not in config
    if version == "4.48":
        keys = {"global_attn_every_n_layers": 2, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
        config = {key: value for key, value in config.items() if key not in ("layer_types", "rope_parameters")} | keys
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_model(tmp_path).encoder.settings == settings
