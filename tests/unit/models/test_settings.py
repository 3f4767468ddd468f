"""Sizes of an encoder: presets, what overrides them, and what is refused."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from unmask.errors import SettingsError
from unmask.models.families.table import ARCHITECTURES
from unmask.models.family import PRESETS
from unmask.models.settings import Architecture, EncoderSettings, ModelSettings, Preset, token_families


def test_defaults_are_bert_base() -> None:
    assert ModelSettings().resolve(30522) == EncoderSettings()


def test_every_preset_resolves_with_a_feed_forward_of_four_times_its_width() -> None:
    assert set(PRESETS) == set(get_args(Preset))
    for preset, sizes in PRESETS.items():
        settings = ModelSettings(preset=preset).resolve(100)
        assert settings.intermediate_size == 4 * settings.hidden_size
        assert settings.head_size == 64
        assert settings.num_hidden_layers == sizes["num_hidden_layers"]


EVERY_PRESET = [(name, preset) for name, family in ARCHITECTURES.items() for preset in family.presets]


@pytest.mark.parametrize(("architecture", "preset"), EVERY_PRESET)
def test_every_preset_of_every_architecture_takes_512_tokens(architecture: Architecture, preset: Preset) -> None:
    settings = ModelSettings(architecture=architecture, preset=preset).resolve(100, pad_token_id=1)
    assert settings.architecture == architecture
    assert settings.num_positions == (8192 if architecture.startswith("modernbert") else 512)
    assert (settings.vocab_size, settings.pad_token_id) == (100, 1)
    assert settings.is_causal == (architecture in ("modernbert_decoder", "gpt1", "lstm"))


def test_presets_are_the_papers() -> None:
    """Layers, hidden, heads, feed-forward, embeddings: Liu et al. 2019, table 9; Clark et al. 2020, table 6; Radford et
    al. 2018, sections 4.1 and 5; Warner et al. 2024, section 2.1.3."""

    def of(architecture: Architecture, preset: Preset) -> tuple[int | None, ...]:
        one = ModelSettings(architecture=architecture, preset=preset).resolve(100)
        wide = one.intermediate_size, one.embedding_size
        return (one.num_hidden_layers, one.hidden_size, one.num_attention_heads, *wide)

    assert token_families() == [name for name in ARCHITECTURES if name != "elmo"]
    assert of("roberta", "base") == (12, 768, 12, 3072, None)
    assert of("roberta", "large") == (24, 1024, 16, 4096, None)
    assert of("electra", "small") == (12, 256, 4, 1024, 128)
    assert of("electra", "base") == (12, 768, 12, 3072, 768)
    assert of("electra", "large") == (24, 1024, 16, 4096, 1024)
    assert of("gpt1", "base") == (12, 768, 12, 3072, None)
    assert of("modernbert", "base") == (22, 768, 12, 1152, None)
    assert of("modernbert", "large") == (28, 1024, 16, 2624, None)
    assert of("lstm", "base") == (1, 768, 1, 2048, None)


def test_robertas_rows_are_counted_from_its_padding_token() -> None:
    base = ModelSettings(architecture="roberta").resolve(50265, pad_token_id=1)
    assert (base.max_position_embeddings, base.type_vocab_size, base.layer_norm_eps) == (514, 1, 1e-5)
    short = ModelSettings(architecture="roberta", max_position_embeddings=130).resolve(50265, pad_token_id=1)
    assert short.num_positions == 128


def test_left_to_right_is_for_bert_and_reported_of_every_family() -> None:
    assert ModelSettings(preset="tiny", causal=True).resolve(100).is_causal
    assert not ModelSettings(preset="tiny").resolve(100).is_causal
    for architecture, message in (("gpt1", "left-to-right anyway"), ("roberta", "reads in both directions")):
        with pytest.raises(SettingsError, match=f"causal is True: that is for BERT.*, and {architecture} .*{message}"):
            ModelSettings(architecture=architecture, causal=True).resolve(100)


def test_a_preset_that_an_architecture_has_not_is_reported() -> None:
    with pytest.raises(ValidationError, match="preset 'large' is none of gpt1: expected one of tiny, mini, base"):
        ModelSettings(architecture="gpt1", preset="large")


@pytest.mark.parametrize(
    ("key", "value"), [("num_attention_heads", 4), ("attention_probs_dropout_prob", 0.1), ("hidden_act", "gelu")]
)
def test_what_means_nothing_to_an_lstm_is_reported(key: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"{key} .* means nothing to LSTM"):
        ModelSettings(architecture="lstm", preset="mini", **{key: value}).resolve(100)


def test_an_overridden_width_takes_the_feed_forward_with_it() -> None:
    assert ModelSettings(preset="tiny", hidden_size=96).resolve(100).intermediate_size == 384
    assert ModelSettings(preset="tiny", hidden_size=96, intermediate_size=50).resolve(100).intermediate_size == 50
    modern = ModelSettings(architecture="modernbert", preset="base", hidden_size=96)
    assert modern.resolve(100).intermediate_size == 144


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
    ("settings", "pad_token_id", "message"),
    [
        (ModelSettings(vocab_size=99), 0, ["99", "100", "vocab_size"]),
        (ModelSettings(hidden_size=100), 0, ["hidden_size 100", "num_attention_heads 12"]),
        (ModelSettings(preset="tiny"), 100, ["pad_token_id 100", "vocab_size 100"]),
    ],
)
def test_contradictions_are_reported(settings: ModelSettings, pad_token_id: int, message: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        settings.resolve(100, pad_token_id)
    for part in message:
        assert part in str(caught.value)


WRONG = {"hidden": 3, "preset": "huge", "hidden_size": 0, "hidden_dropout_prob": 1.0, "hidden_act": "gelo"}


@pytest.mark.parametrize(("key", "value"), [*WRONG.items(), ("architecture", "t5"), ("num_hidden_layers", 1001)])
def test_what_is_no_setting_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValidationError, match=rf"1 validation error .*\n{key}\n"):
        ModelSettings.model_validate({key: value})


def test_families_differ_by_what_their_config_files_leave_out() -> None:
    gpt1 = EncoderSettings(architecture="gpt1", hidden_size=96)
    assert (gpt1.type_vocab_size, gpt1.hidden_act) == (0, "gelu_new")
    assert (gpt1.layer_norm_eps, gpt1.pad_token_id) == (1e-5, None)
    assert gpt1.intermediate_size == 384
    electra = EncoderSettings(architecture="electra")
    assert (electra.embedding_size, electra.hidden_size) == (128, 256)
    assert EncoderSettings(architecture="roberta").vocab_size == 50265


@pytest.mark.parametrize(
    ("given", "num_positions"),
    [
        ({}, 512),
        ({"architecture": "roberta", "max_position_embeddings": 514}, 512),
        ({"architecture": "roberta", "max_position_embeddings": 514, "pad_token_id": 0}, 513),
        ({"architecture": "gpt1", "pad_token_id": 7}, 512),
    ],
)
def test_the_longest_sequence(given: dict[str, Any], num_positions: int) -> None:
    settings = EncoderSettings(**given)
    assert settings.num_positions == num_positions
    assert settings.first_position == settings.max_position_embeddings - num_positions


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"embedding_size": 128}, "embedding_size 128 means nothing to BERT"),
        ({"type_vocab_size": 0}, "bert has at least one segment"),
        ({"embedding_dropout_prob": 0.2}, "embedding_dropout_prob 0.2 means nothing to BERT"),
        ({"architecture": "roberta", "pad_token_id": None}, "counted from it"),
        ({"architecture": "roberta", "max_position_embeddings": 2}, "leaves no position"),
        ({"architecture": "gpt1", "type_vocab_size": 2}, "type_vocab_size 2 means nothing to GPT-1: leave it out .0."),
        ({"architecture": "gpt1", "intermediate_size": 100}, "leave it out .3072."),
        ({"architecture": "gpt1", "hidden_act": "gelu"}, "gelu_new"),
        ({"architecture": "bart"}, "architecture"),
    ],
)
def test_what_a_family_cannot_be_is_reported(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EncoderSettings(**given)
