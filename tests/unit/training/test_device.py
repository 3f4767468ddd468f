"""Where a run computes and in which precision."""

from __future__ import annotations

import pytest
import torch

from unmask.errors import SettingsError
from unmask.training.device import Compute, choose_compute


@pytest.fixture
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("without_cuda")
def test_cuda_where_there_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match="device=cuda, but PyTorch sees no CUDA device: set device=cpu"):
        choose_compute("cuda")


@pytest.mark.usefixtures("without_cuda")
def test_auto_falls_back_to_the_processor() -> None:
    assert choose_compute("auto", "fp32").device == torch.device("cpu")


def test_auto_takes_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    compute = choose_compute("auto")
    assert (compute.device.type, compute.dtype) == ("cuda", torch.bfloat16)
    assert compute.reason == "compute capability 8.0"
    assert choose_compute("cpu").device.type == "cpu"


def test_an_older_gpu_computes_in_fp32_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert choose_compute("auto").dtype == torch.float32
    assert choose_compute("auto", "bf16").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("capabilities", "dtype", "why"),
    [
        ({"amx_bf16": True, "avx512_bf16": True}, torch.bfloat16, "the processor has amx_bf16"),
        ({"avx512_bf16": True}, torch.bfloat16, "the processor has avx512_bf16"),
        ({"avx512_bf16": False, "avx2": True}, torch.float32, "the processor has neither AMX nor AVX512-BF16"),
        ({}, torch.float32, "the processor has neither AMX nor AVX512-BF16"),
    ],
)
def test_auto_precision_is_what_the_processor_computes_in(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], dtype: torch.dtype, why: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    compute = choose_compute("cpu", "auto")
    assert (compute.dtype, compute.reason) == (dtype, why)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_recipe_s_precision_holds(precision: str, dtype: torch.dtype) -> None:
    compute = choose_compute("cpu", precision)
    assert compute.dtype == dtype
    assert compute.reason.startswith("as the recipe says")
    weights = torch.ones(4, 4)
    for _ in range(2):  # a new context each time
        with compute.autocast():
            assert (weights @ weights).dtype == dtype
    assert (weights @ weights).dtype == torch.float32


def test_what_a_run_computes_with_is_told() -> None:
    told = Compute(torch.device("cpu"), torch.float32, "as the recipe says").describe()
    assert told == f"CPU, float32 (as the recipe says), {torch.get_num_threads()} threads"
