"""BERT's left-to-right model: what a token sees, what sums a sequence up, what is refused, and its directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
import torch

from support.model_files import edit_config, edit_weights
from support.sizes import sizes_of
from support.tensors import assert_equal
from unmask.batch import pack
from unmask.errors import ModelError, SettingsError
from unmask.models.bert import BertEncoder
from unmask.models.encoder import new_encoder
from unmask.models.family import HeadKind
from unmask.models.heads.heads import MaskedLMHead, needs_pooler, new_head
from unmask.models.hub.directory import NUM_LABELS, TunedHead, load_encoder, load_model, save_model
from unmask.models.hub.uses import CAUSAL, FINE_TUNED, MASKED
from unmask.models.settings import EncoderSettings

SIZES = sizes_of(vocab=30, width=12, layers=2, heads=3, inner=48, positions=16, std=0.2)
LEFT_TO_RIGHT = EncoderSettings(causal=True, **SIZES)


def new_causal() -> BertEncoder:
    torch.manual_seed(0)
    return BertEncoder(LEFT_TO_RIGHT, pooler=False)


def save_language_model(directory: Path) -> BertEncoder:
    encoder = new_causal()
    save_model(directory, encoder, {"masked_lm_head": MaskedLMHead(LEFT_TO_RIGHT)}, causal_lm=True)
    return encoder


def test_a_token_sees_what_stands_before_it_and_the_last_one_sums_up() -> None:
    encoder = new_causal().eval()
    batch = pack([[5, 6, 7, 8], [9, 10]], [[0, 0, 1, 1], [0, 0]])
    hidden = encoder(batch)
    other = encoder(pack([[5, 6, 7, 9], [9, 10]], [[0, 0, 1, 1], [0, 0]]))
    assert torch.equal(hidden[:3], other[:3])
    assert not torch.equal(hidden[3], other[3])
    torch.testing.assert_close(encoder.summary(batch), hidden[[3, 5]], rtol=0, atol=1e-6)  # fp32, other shapes


def test_a_pooler_is_refused_and_both_settings_are_named() -> None:
    for build in (BertEncoder, new_encoder):
        with pytest.raises(SettingsError, match=r"model\.causal is true, and a pooler .*objective\.sentence_objective"):
            build(LEFT_TO_RIGHT)
    assert not needs_pooler(LEFT_TO_RIGHT, "sequence_classification")
    assert not needs_pooler(LEFT_TO_RIGHT, "multiple_choice")


def test_a_language_model_comes_back_and_fills_no_masks(tmp_path: Path) -> None:
    encoder = save_language_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["architectures"], config["is_decoder"]) == (["BertLMHeadModel"], True)
    loaded = load_model(tmp_path, CAUSAL)
    assert loaded.encoder.settings == LEFT_TO_RIGHT
    assert loaded.masked_lm_head is not None
    assert_equal(loaded.encoder.state_dict(), encoder.state_dict())
    with pytest.raises(ModelError, match=r"\(BertLMHeadModel\) is a left-to-right .*: expected a masked"):
        load_model(tmp_path, MASKED)
    for pooler in (True, False):
        started = load_encoder(tmp_path, pooler=pooler)
        assert (started.encoder.pooler, started.fresh) == (None, ())
    edit_config(tmp_path, is_causal=False)
    with pytest.raises(ModelError, match=r"is_causal is False; expected True .*BertLMHeadModel sees those before"):
        load_model(tmp_path, CAUSAL)
    edit_config(tmp_path, is_decoder=False, is_causal=None)
    with pytest.raises(ModelError, match=r"config\.json: is_decoder is False; expected true: a BertLMHeadModel"):
        load_model(tmp_path, CAUSAL)


def test_a_masked_lm_is_no_left_to_right_one(tmp_path: Path) -> None:
    settings = EncoderSettings(**SIZES)
    save_model(tmp_path, BertEncoder(settings, pooler=False), {"masked_lm_head": MaskedLMHead(settings)})
    assert "is_decoder" not in json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(ModelError, match=r"\(BertForMaskedLM\) is a masked .*: expected a left-to-right"):
        load_model(tmp_path, CAUSAL)
    edit_config(tmp_path, is_decoder=True)
    with pytest.raises(ModelError, match="is_decoder is True; expected False"):
        load_model(tmp_path)


@pytest.mark.parametrize("kind", get_args(HeadKind))
def test_every_fine_tuned_head_stands_apart(tmp_path: Path, kind: HeadKind) -> None:
    head = new_head(kind, LEFT_TO_RIGHT, NUM_LABELS.get(kind, 2))
    save_model(tmp_path, new_causal(), tuned=TunedHead(head, kind))
    assert (tmp_path / "head.safetensors").exists()
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertModel"]
    loaded = load_model(tmp_path, FINE_TUNED)
    assert loaded.encoder.settings == LEFT_TO_RIGHT
    assert loaded.encoder.pooler is None
    assert_equal(loaded.head.state_dict(), head.state_dict())


def test_the_pooler_that_transformers_gives_a_bare_one_is_left(tmp_path: Path) -> None:
    save_model(tmp_path, new_causal())
    pooler = {"pooler.dense.weight": torch.zeros(12, 12), "pooler.dense.bias": torch.zeros(12)}
    edit_weights(tmp_path, lambda weights: weights | pooler)
    for loaded in (load_model(tmp_path), load_encoder(tmp_path, head="sequence_classification")):
        assert loaded.encoder.pooler is None
        assert loaded.unused == ("bert.pooler.dense.bias", "bert.pooler.dense.weight")
