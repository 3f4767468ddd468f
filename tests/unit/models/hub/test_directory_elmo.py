"""Directories of ELMo: what is saved comes back bit for bit, and whatever does not fit is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.model_files import edit_weights, without
from support.sizes import small_elmo
from support.tensors import assert_equal
from unmask.errors import ModelError
from unmask.models.elmo.classifier import ElmoClassifier
from unmask.models.elmo.encoder import ElmoEncoder
from unmask.models.elmo.word_softmax import WordSoftmax
from unmask.models.family import HeadKind
from unmask.models.heads.heads import new_head
from unmask.models.hub.directory import TunedHead, load_encoder, load_model, save_model
from unmask.models.hub.source import open_source
from unmask.models.hub.uses import CAUSAL, FINE_TUNED, MASKED

SETTINGS = small_elmo()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    encoder, softmax = ElmoEncoder(SETTINGS), WordSoftmax(SETTINGS)
    save_model(tmp_path, encoder, {"softmax": softmax}, extra_config={"unmask_task": {"name": "tagging"}})
    return tmp_path


@pytest.mark.parametrize("with_softmax", [True, False])
def test_what_is_saved_comes_back(tmp_path: Path, with_softmax: bool) -> None:
    encoder, softmax = ElmoEncoder(SETTINGS), WordSoftmax(SETTINGS)
    save_model(tmp_path, encoder, {"softmax": softmax} if with_softmax else {})
    loaded = load_model(tmp_path)
    assert loaded.encoder.settings == SETTINGS
    assert loaded.config["model_type"] == "elmo"
    assert loaded.config["architectures"] == ["ElmoForPreTraining" if with_softmax else "ElmoModel"]
    assert_equal(loaded.encoder.state_dict(), encoder.state_dict())
    assert (loaded.softmax is not None) == with_softmax
    if loaded.softmax is not None:
        assert torch.equal(loaded.softmax.weight, softmax.weight)


def test_further_keys_are_kept(directory: Path) -> None:
    assert load_model(directory).config["unmask_task"] == {"name": "tagging"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "model_type is 'bert'; expected 'elmo', as ElmoForPreTraining is"),
        ({"architectures": ["BertModel"]}, "model_type is 'elmo'; expected 'bert', as BertModel is"),
        ({"architectures": ["ElmoModel"]}, "softmax.bias is left over"),
        ({"cell_size": None}, "lacks cell_size"),
        ({"cell_size": 0}, "cell_size is 0"),
        ({"projection_size": 4}, "has the shape"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(directory: Path, changes: dict[str, Any], message: str) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    with pytest.raises(ModelError, match=message):
        load_model(directory)


def test_missing_weights_are_named(directory: Path) -> None:
    edit_weights(directory, without("blocks.1.layers.0.projection"))
    with pytest.raises(ModelError, match=r"blocks\.1\.layers\.0\.projection \(5, 6\) is missing"):
        load_model(directory)


@pytest.mark.parametrize("kind", ["sequence_classification", "token_classification"])
def test_a_head_of_fine_tuning_stands_beside_the_encoder(tmp_path: Path, kind: HeadKind) -> None:
    encoder = ElmoEncoder(SETTINGS)
    head = ElmoClassifier(SETTINGS, 3) if kind == "sequence_classification" else new_head(kind, SETTINGS, 3)
    save_model(tmp_path, encoder, tuned=TunedHead(head, kind, labels=["a", "b", "c"], problem_type=None))
    loaded = load_model(tmp_path, FINE_TUNED)
    assert (loaded.architecture, loaded.head_kind, loaded.labels) == ("ElmoModel", kind, ("a", "b", "c"))
    assert_equal(dict(loaded.head_weights), dict(head.state_dict()))
    alone = load_encoder(tmp_path, head=kind)
    assert (alone.head_kind, alone.unused, alone.fresh) == (None, ("head.safetensors",), ())
    (tmp_path / "head.safetensors").unlink()
    with pytest.raises(ModelError, match=r"head\.safetensors"):
        load_model(tmp_path)


def test_what_was_only_pre_trained_has_no_such_head(directory: Path) -> None:
    assert load_model(directory).softmax is not None
    assert load_encoder(directory).unused == ("softmax.bias", "softmax.weight")
    assert open_source(directory).settings == SETTINGS
    for kind in (FINE_TUNED, MASKED, CAUSAL):
        with pytest.raises(ModelError, match="ElmoForPreTraining"):
            load_model(directory, kind)
