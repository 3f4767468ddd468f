"""The settings of a tokenizer: strict, and quick to import."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from support.imports import loaded_with
from unmask.config import build_settings, dump_settings, read_settings_file
from unmask.tokenization.settings import PRESETS, TokenizerSettings


def test_unknown_keys_and_kinds_are_refused() -> None:
    with pytest.raises(ValidationError, match="vocabsize"):
        TokenizerSettings.model_validate({"vocabsize": 100})
    with pytest.raises(ValidationError, match="wordpiece"):
        TokenizerSettings.model_validate({"kind": "syllables"})


def test_merges_are_counted_for_bpe_alone() -> None:
    assert TokenizerSettings(kind="bpe", num_merges=10).num_merges == 10
    with pytest.raises(ValidationError, match="num_merges is for the kinds bpe and byte_bpe"):
        TokenizerSettings(num_merges=10)


@pytest.mark.parametrize("kind", ["byte_bpe", "word"])
def test_accents_are_stripped_by_bert_alone(kind: str) -> None:
    with pytest.raises(ValidationError, match=f"strip_accents is for the kinds wordpiece and bpe: {kind} always keeps"):
        TokenizerSettings.model_validate({"kind": kind, "strip_accents": False})


@pytest.mark.parametrize("tokens", [["[A]", "[A]"], [""], ["[A] "]])
def test_further_special_tokens_are_distinct_and_visible(tokens: list[str]) -> None:
    with pytest.raises(ValidationError, match="expected different tokens"):
        TokenizerSettings.model_validate({"extra_special_tokens": tokens})


def test_settings_survive_their_own_file(tmp_path: Path) -> None:
    for settings in (*PRESETS.values(), TokenizerSettings(extra_special_tokens=("[A]", "[B]"))):
        path = tmp_path / "settings.yaml"
        path.write_text(dump_settings(settings), encoding="utf-8")
        assert build_settings(TokenizerSettings, read_settings_file(path), "test") == settings


def test_presets_are_the_sizes_of_what_was_released() -> None:
    assert list(PRESETS) == ["bert", "bert-cased", "roberta", "gpt1", "elmo"]
    assert (PRESETS["roberta"].kind, PRESETS["roberta"].vocab_size) == ("byte_bpe", 50265)
    assert (PRESETS["gpt1"].kind, PRESETS["gpt1"].num_merges) == ("bpe", 40000)
    assert (PRESETS["elmo"].kind, PRESETS["elmo"].vocab_size) == ("word", 793471)


def test_importing_the_settings_loads_nothing_heavy() -> None:
    assert not loaded_with("unmask.tokenization.settings") & {"torch", "numpy", "tokenizers", "transformers"}


def test_the_whole_package_does_without_torch() -> None:
    assert not loaded_with("unmask.tokenization.learning.train") & {"torch", "transformers"}
