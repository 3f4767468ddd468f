"""Modules that only answer: their weights are cast once, and the precision is the one asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from support.files import write
from support.sizes import small
from support.untrained import save_task_model
from unmask.batch import pack
from unmask.errors import SettingsError
from unmask.inference.features.extraction import extract_features
from unmask.inference.opening import freeze, inference_compute
from unmask.inference.predictor import load_predictor, predict
from unmask.models.encoder import new_encoder
from unmask.models.settings import Architecture
from unmask.tasks.settings import ColumnSettings
from unmask.training.device import Compute

FP32 = Compute(torch.device("cpu"), torch.float32, "a test")
BF16 = Compute(torch.device("cpu"), torch.bfloat16, "a test")
BATCH = pack([[5, 7, 9, 11, 6], [8] * 17, [6]])


def new_model(architecture: Architecture) -> nn.Module:
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"vocab": 50, "width": 32, "layers": 2, "heads": 2, "inner": 128}
    if architecture != "modernbert":
        sizes |= {"embedding_size": 32, "type_vocab_size": 0 if architecture == "gpt1" else 2}
    return new_encoder(small(architecture=architecture, **sizes), pooler=False).eval()


@pytest.mark.parametrize("architecture", ["bert", "roberta", "electra", "gpt1", "modernbert"])
def test_the_weights_of_transformers_are_cast_once(architecture: Architecture) -> None:
    """Cosine: bf16 keeps 8 bits, so each of some tens of roundings moves a state by about 1 part in 500."""
    module = new_model(architecture)
    with torch.inference_mode():
        expected = module(BATCH)
        compute = freeze(module, BF16)
        assert {weight.dtype for weight in module.parameters()} == {torch.bfloat16}
        assert not torch.is_autocast_enabled("cpu")
        with compute.autocast():
            assert not torch.is_autocast_enabled("cpu")
            found = module(BATCH)
    assert found.dtype == torch.bfloat16
    assert functional.cosine_similarity(found.float(), expected, dim=-1).min() > 0.999


def test_weights_of_fp32_and_of_lstms_stay() -> None:
    bert = new_model("bert")
    compute = freeze(bert, FP32)
    assert {weight.dtype for weight in bert.parameters()} == {torch.float32}
    assert compute == FP32
    mixed = nn.ModuleList([bert, nn.LSTM(4, 4)])
    compute = freeze(mixed, BF16)
    assert compute.autocasts
    assert {weight.dtype for weight in mixed.parameters()} == {torch.float32}


def test_only_precisions_that_are_the_same_everywhere_are_taken() -> None:
    """`auto` would depend on the machine."""
    assert inference_compute("cpu", "fp32").dtype == torch.float32
    assert inference_compute("cpu", "bf16").dtype == torch.bfloat16
    for name in ("auto", "fp8", "float32"):
        with pytest.raises(SettingsError, match=f"precision '{name}': expected fp32 or bf16"):
            inference_compute("cpu", name)


@pytest.fixture
def classifier(tiny_model: Path, tmp_path: Path) -> Path:
    columns = ColumnSettings(text="text")
    return save_task_model(tmp_path / "model", tiny_model, columns, seed=5, labels=["bad", "good"], max_length=64)


@pytest.mark.parametrize("asked", [{}, {"precision": "fp32"}])
def test_many_inputs_are_answered_as_one_is(
    classifier: Path, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the machine is fast at. fp32 rounds otherwise for other shapes, by some 1e-7; bf16 by some 1e-3."""
    monkeypatch.setattr("unmask.training.device._computes_bf16", lambda _: (True, "a test"))
    monkeypatch.setattr("unmask.inference.example_sets.set_size", lambda _: 4)
    rows = [{"text": text} for text in ("a man", "two dogs play", "a child", "", "people wait outside") * 2]
    many = list(predict(classifier, rows, **asked))
    for row, prediction in zip(rows, many, strict=True):
        (alone,) = predict(classifier, [row], **asked)
        assert prediction["score"] == pytest.approx(alone["score"], abs=1e-6)
    (in_bf16,) = predict(classifier, rows[1:2], precision="bf16")
    assert in_bf16["score"] != pytest.approx(many[1]["score"], abs=1e-6)


def test_the_autocast_of_a_program_changes_no_answer(classifier: Path) -> None:
    for precision in ("fp32", "bf16"):
        predictor = load_predictor(classifier, device="cpu", precision=precision)
        [expected] = predict(predictor, ["two dogs play"])
        with torch.autocast("cpu", torch.float16):
            [found] = predict(predictor, ["two dogs play"])
        assert found == expected


def test_features_are_made_in_fp32_unless_bf16_is_asked_for(tiny_model: Path, tmp_path: Path) -> None:
    inputs = write(tmp_path / "texts.txt", "a man\ntwo dogs play\na child\npeople wait\na dog\n")
    usual, in_fp32, in_bf16 = (
        np.load(extract_features(tiny_model, inputs, tmp_path / name, pool="mean", **asked) / "features.npy")
        for name, asked in (("usual", {}), ("fp32", {"precision": "fp32"}), ("bf16", {"precision": "bf16"}))
    )
    assert usual.dtype == in_bf16.dtype == np.float32
    assert (usual == in_fp32).all()
    assert 1e-4 < np.abs(in_bf16 - in_fp32).max() < 0.1  # states are of size 1, bf16 keeps 8 bits
