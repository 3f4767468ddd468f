"""ModernBERT against `transformers`: every class in every variant of its configuration, both ways, in texts longer than
the local window; and every layout in which its directories were released."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from support.family_parity import (
    TOLERANCE,
    both,
    differences,
    draw,
    evaluated,
    largest_difference,
    new_theirs,
    run_ours,
    run_theirs,
    save_again,
    settings_of,
)
from unmask.models.families.table import ARCHITECTURES
from unmask.models.hub.config import config_of
from unmask.models.hub.directory import load_model
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


@pytest.mark.parametrize(("class_name", "variant"), CASES)
def test_hidden_states_outputs_and_gradients_both_ways(tmp_path: Path, class_name: str, variant: str) -> None:
    settings = variant_of(variant)
    ours, theirs, batch = both(tmp_path / "theirs", class_name, settings, LENGTHS)
    found = differences(ours, theirs, batch)
    assert max(found.values()) < TOLERANCE, found

    save_again(tmp_path / "ours", ours)
    again, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert again.config.cls_token_id is None  # left out, it would be 50281, which is no entry of a small vocabulary
    assert not any(report.values()), report
    outputs = (run_theirs(each, batch, settings) for each in (again.eval(), theirs))
    assert largest_difference(*outputs) < TOLERANCE


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
