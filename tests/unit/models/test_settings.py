"""Sizes of an encoder: presets, what overrides them, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from unmask.errors import SettingsError
from unmask.models.settings import PRESETS, EncoderSettings, ModelSettings, Preset


def test_defaults_are_bert_base() -> None:
    assert ModelSettings().resolve(30522) == EncoderSettings()


def test_every_preset_resolves_with_a_feed_forward_of_four_times_its_width() -> None:
    assert set(PRESETS) == set(get_args(Preset))
    for preset, sizes in PRESETS.items():
        settings = ModelSettings(preset=preset).resolve(100)
        assert settings.intermediate_size == 4 * settings.hidden_size
        assert settings.head_size == 64
        assert settings.num_hidden_layers == sizes["num_hidden_layers"]


def test_an_overridden_width_takes_the_feed_forward_with_it() -> None:
    assert ModelSettings(preset="tiny", hidden_size=96).resolve(100).intermediate_size == 384
    assert ModelSettings(preset="tiny", hidden_size=96, intermediate_size=50).resolve(100).intermediate_size == 50


def test_everything_given_is_kept() -> None:
    given: dict[str, Any] = {
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "hidden_act": "relu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.2,
        "max_position_embeddings": 64,
        "type_vocab_size": 1,
        "initializer_range": 0.1,
        "layer_norm_eps": 1e-5,
    }
    resolved = ModelSettings(preset="mini", vocab_size=7, **given).resolve(7, pad_token_id=None)
    assert given.items() <= resolved.model_dump().items()
    assert resolved.pad_token_id is None


@pytest.mark.parametrize(
    ("settings", "vocab_size", "pad_token_id", "told"),
    [
        (ModelSettings(vocab_size=99), 100, 0, ["99", "100", "vocab_size"]),
        (ModelSettings(hidden_size=100), 100, 0, ["hidden_size 100", "num_attention_heads 12"]),
        (ModelSettings(preset="tiny"), 100, 100, ["pad_token_id 100", "vocab_size 100"]),
    ],
)
def test_contradictions_are_told(settings: ModelSettings, vocab_size: int, pad_token_id: int, told: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        settings.resolve(vocab_size, pad_token_id)
    for part in told:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden": 3},
        {"preset": "huge"},
        {"hidden_size": 0},
        {"hidden_dropout_prob": 1.0},
        {"hidden_act": "gelo"},
        {"architecture": "t5"},
    ],
)
def test_what_is_no_setting_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ModelSettings(**wrong)


def test_reading_settings_does_not_import_torch() -> None:
    code = "import sys, unmask.models.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
