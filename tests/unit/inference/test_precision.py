"""Modules that only answer: their weights are cast once, and the precision is the faster one, where that is asked."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from unmask.batch import Batch, pack
from unmask.finetuning.run import save_finetuned
from unmask.inference import precision as inference_precision
from unmask.inference import predictor as prediction
from unmask.inference.features import extraction as features
from unmask.inference.features.extraction import extract_features, load_feature_model
from unmask.inference.precision import freeze, take_faster
from unmask.inference.predictor import load_predictor, predict
from unmask.inference.windows import map_ahead, windows
from unmask.models.encoder import new_encoder
from unmask.models.hub.directory import load_encoder
from unmask.models.kernels.products import Linear
from unmask.models.settings import Architecture, EncoderSettings
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import open_task
from unmask.tokenization.tokenizer import load_tokenizer
from unmask.training.device import Compute

FP32 = Compute(torch.device("cpu"), torch.float32, "a test")
BF16 = Compute(torch.device("cpu"), torch.bfloat16, "a test")
BATCH = pack([[5, 7, 9, 11, 6], [8] * 17, [6]])


def new_model(architecture: Architecture) -> nn.Module:
    torch.manual_seed(3)
    settings = EncoderSettings(
        vocab_size=50,
        hidden_size=32,
        embedding_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        architecture=architecture,
        type_vocab_size=0 if architecture == "gpt1" else 2,
    )
    return new_encoder(settings, pooler=False).eval()


@pytest.mark.parametrize("architecture", ["bert", "roberta", "electra", "gpt1"])
def test_the_weights_of_transformers_are_cast_once(architecture: Architecture) -> None:
    """Cosine: bf16 keeps 8 bits, so each of some tens of roundings moves a state by about 1 part in 500."""
    module = new_model(architecture)
    with torch.inference_mode():
        expected = module(BATCH)
        frozen, compute = freeze(module, BF16)
        assert {weight.dtype for weight in frozen.parameters()} == {torch.bfloat16}
        assert not torch.is_autocast_enabled("cpu")
        with compute.autocast():
            assert not torch.is_autocast_enabled("cpu")
            found = frozen(BATCH)
    assert found.dtype == torch.bfloat16
    assert functional.cosine_similarity(found.float(), expected, dim=-1).min() > 0.999


def test_weights_of_fp32_and_of_lstms_stay() -> None:
    bert, compute = freeze(new_model("bert"), FP32)
    assert {weight.dtype for weight in bert.parameters()} == {torch.float32}
    assert compute == FP32
    mixed = nn.ModuleList([bert, nn.LSTM(4, 4)])
    _, compute = freeze(mixed, BF16)
    assert compute.autocasts
    assert {weight.dtype for weight in mixed.parameters()} == {torch.float32}


@pytest.mark.parametrize(("slower", "taken"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_the_faster_precision_is_taken(
    slower: torch.dtype, taken: torch.dtype, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a clock that goes on by a second with each batch, and by three in the slower precision."""
    now = 0.0

    def run(module: nn.Module, batch: Batch) -> None:
        nonlocal now
        now += 3.0 if next(module.parameters()).dtype == slower else 1.0

    monkeypatch.setattr(inference_precision.time, "perf_counter", lambda: now)
    monkeypatch.setattr(inference_precision, "choose_compute", lambda *_: BF16)
    module = new_model("bert")
    with caplog.at_level(logging.INFO, logger="unmask"):
        chosen, compute = take_faster(module, FP32, [BATCH] * 8, run)
    assert compute.dtype == taken
    assert {weight.dtype for weight in chosen.parameters()} == {taken}
    assert {weight.dtype for weight in module.parameters()} == {torch.float32}  # it is the copy that was cast
    assert all(part.packed is None for part in module.modules() if isinstance(part, Linear))  # and laid out
    name, shown = ("fp32", (6, 18)) if taken == torch.float32 else ("bf16", (18, 6))
    told = "precision: {}, measured on 3 batches of the inputs: fp32 took {}000 ms, bf16 {}000 ms (a test)"
    assert told.format(name, *shown) in caplog.text


def test_nothing_is_measured_where_bf16_is_not_computed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_precision, "choose_compute", lambda *_: FP32)
    module = new_model("bert")
    chosen, compute = take_faster(module, FP32, [BATCH], lambda *_: pytest.fail("it was run"))
    assert compute == FP32
    assert {weight.dtype for weight in chosen.parameters()} == {torch.float32}
    assert all(part.packed is None for part in module.modules() if isinstance(part, Linear))


# ---- Who asks


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of batches that were to be measured; bf16 is always taken."""
    asked: list[int] = []

    def take_bf16(module: Any, compute: Compute, batches: list[Batch], run: Any) -> tuple[Any, Compute]:
        asked.append(len(batches))
        run(module, batches[0])
        return freeze(module, BF16)

    for program in (prediction, features):
        monkeypatch.setattr(program, "take_faster", take_bf16)
    return asked


@pytest.fixture
def classifier(tiny_model: Path, tmp_path: Path) -> Path:
    settings = TaskSettings.model_validate({"labels": ["bad", "good"], "max_length": 64})
    task = open_task(settings, ColumnSettings(text="text"))
    torch.manual_seed(5)
    module = task.module(load_encoder(tiny_model, head=task.head_kind).encoder)
    save_finetuned(module, task, load_tokenizer(tiny_model), tmp_path / "model")
    return tmp_path / "model"


def test_predict_measures_once_and_only_where_there_are_many_inputs(
    classifier: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("unmask.inference.windows", "unmask.inference.predictor"):
        monkeypatch.setattr(f"{module}.window_size", lambda _: 4)
    rows = [{"text": text} for text in ("a man", "two dogs play", "a child", "", "people wait outside") * 2]
    few = list(predict(classifier, rows[:3]))
    assert measured == []
    many = list(predict(classifier, rows))
    assert measured == [1]
    for one, other in zip(few, many, strict=False):
        assert one["score"] == pytest.approx(other["score"], abs=0.02)  # bf16 keeps 8 bits
    assert list(predict(classifier, rows, precision="fp32"))[:3] == [
        {**one, "score": pytest.approx(one["score"]), "probabilities": pytest.approx(one["probabilities"])}
        for one in few
    ]
    assert measured == [1]
    loaded = load_predictor(classifier, precision="auto")
    assert loaded.compute.dtype == torch.float32
    assert isinstance(loaded.module, nn.Module)  # which answers few inputs as in training, bit for bit
    assert all(part.packed is None for part in loaded.module.modules() if isinstance(part, Linear))


def test_features_measure_once_and_only_where_there_are_many_inputs(
    tiny_model: Path, tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "WINDOW", 4)
    monkeypatch.setattr(features, "windows", partial(windows, size=4))
    inputs = tmp_path / "texts.txt"
    inputs.write_text("a man\ntwo dogs play\na child\npeople wait\na dog\n")
    in_fp32, in_bf16 = (
        np.load(
            extract_features(tiny_model, inputs, tmp_path / precision, pool="mean", precision=precision)
            / "features.npy"
        )
        for precision in ("fp32", "auto")
    )
    assert len(measured) == 1
    assert in_bf16.dtype == np.float32
    assert np.abs(in_bf16 - in_fp32).max() < 0.1  # states are of size 1, bf16 keeps 8 bits
    assert load_feature_model(tiny_model, precision="auto").chooses


def test_on_a_gpu_the_next_window_is_made_ahead() -> None:
    reading, made = set(), list[int]()

    def items() -> Iterator[int]:
        for number in range(3):
            reading.add(threading.get_ident())
            yield number
        raise ValueError("the fourth")

    def make(number: int) -> tuple[int, int]:
        made.append(number)
        return number, threading.get_ident()

    ahead = map_ahead(make, items(), torch.device("cuda"))
    (first, maker), (second, _) = next(ahead), next(ahead)
    assert (first, second) == (0, 1)
    assert maker != threading.get_ident()
    assert reading == {threading.get_ident()}  # a database may be read in the thread alone that has opened it
    with pytest.raises(ValueError, match="the fourth"):
        next(ahead)
    assert made == [0, 1, 2]
    for device in ("cuda", "cpu"):
        assert list(map_ahead(str.upper, iter("abc"), torch.device(device))) == list("ABC")
        assert list(map_ahead(str.upper, iter(""), torch.device(device))) == []


def test_what_is_left_midway_does_not_wait_for_what_is_being_made() -> None:
    going_on = threading.Event()

    def make(number: int) -> int:
        if number == 1:
            going_on.wait(60)
        return number

    ahead = map_ahead(make, range(5), torch.device("cuda"))
    assert next(ahead) == 0
    ahead.close()  # type: ignore[attr-defined]
    assert not going_on.is_set()
    going_on.set()
