"""Where a run computes and in which precision, on machines that are made up."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from unmask.errors import SettingsError
from unmask.training import device as device_module
from unmask.training.device import (
    Compute,
    choose_compute,
    has_kernels,
    keep_freed_memory,
    keeping_freed_memory,
    processes_tip,
)

GIB = 2**30
ARCHITECTURES = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


Patch, Log = pytest.MonkeyPatch, pytest.LogCaptureFixture


@pytest.fixture(autouse=True)
def forgotten_warnings() -> Iterator[None]:
    """Warnings are logged once in a process."""
    device_module._warn.cache_clear()
    yield
    device_module._warn.cache_clear()


@pytest.fixture
def without_cuda(monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)


def pretend_gpu(
    patch: Patch,
    name: str = "NVIDIA H100",
    capability: tuple[int, int] = (9, 0),
    free: int = 78 * GIB,
    total: int = 80 * GIB,
    in_reserve: int = 0,
    num_visible: int = 1,
    index: int = 0,
) -> None:
    """Gives the machine a GPU, as far as questions to `torch.cuda` go."""
    patch.setattr(torch.version, "cuda", "12.9")
    answers = {
        "is_available": True,
        "device_count": num_visible,
        "current_device": index,
        "get_arch_list": ARCHITECTURES,
        "get_device_name": name,
        "get_device_capability": capability,
        "mem_get_info": (free, total),
        "memory_reserved": in_reserve,
        "memory_allocated": 0,
    }
    for question, answer in answers.items():
        patch.setattr(torch.cuda, question, lambda *_, answer=answer: answer)


# ---- Which device


@pytest.mark.usefixtures("without_cuda")
def test_cuda_where_there_is_none_is_refused(monkeypatch: Patch) -> None:
    problem = "^device=cuda, but PyTorch sees no CUDA device: take cpu, or"
    with pytest.raises(SettingsError, match=f"{problem} install"):
        choose_compute("cuda")
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    with pytest.raises(SettingsError, match=rf"{problem} .*CUDA 12\.9, and that CUDA_VISIBLE_DEVICES does not hide"):
        choose_compute("cuda")


@pytest.mark.usefixtures("without_cuda")
def test_auto_falls_back_to_the_processor(caplog: Log) -> None:
    assert choose_compute("auto", "fp32").device == torch.device("cpu")
    assert not caplog.records


def test_auto_takes_a_gpu_where_there_is_one(monkeypatch: Patch, caplog: Log) -> None:
    pretend_gpu(monkeypatch)
    compute = choose_compute("auto")
    assert (compute.device.type, compute.dtype) == ("cuda", torch.bfloat16)
    assert compute.reason == "the GPU computes in it"
    assert choose_compute("cuda", "fp32").dtype == torch.float32
    assert not caplog.records


def test_the_cpu_is_asked_for_without_a_word_to_cuda(monkeypatch: Patch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("CUDA was touched")

    for question in ("is_available", "device_count", "get_device_name", "get_device_capability", "mem_get_info"):
        monkeypatch.setattr(torch.cuda, question, refuse)
    assert choose_compute("cpu").describe().startswith("CPU (")


def test_a_gpu_without_kernels_is_passed_over_by_auto_and_refused_by_cuda(monkeypatch: Patch, caplog: Log) -> None:
    pretend_gpu(monkeypatch, name="Tesla K80", capability=(3, 7))
    problem = (
        f"this torch {torch.__version__} has no kernels for Tesla K80 of compute capability 3.7 (it has them for sm_75,"
    )
    with pytest.raises(SettingsError) as refusal:
        choose_compute("cuda")
    assert str(refusal.value).startswith(f"device=cuda, but {problem}")
    assert str(refusal.value).endswith(": take cpu, or install a build of torch that has them")
    for _ in range(2):
        assert choose_compute("auto").device.type == "cpu"
    (record,) = caplog.records  # once in a process
    assert record.levelno == logging.WARNING
    assert record.message.startswith(f"computes on the CPU, for {problem}")
    assert record.message.endswith(": to use the GPU, install a build of torch that has them")


def test_a_gpu_that_lets_nobody_in(monkeypatch: Patch, caplog: Log) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA error: out of memory\nCUDA kernel errors might be reported later")

    pretend_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    problem = r"the GPU cannot be used \(CUDA error: out of memory\): "
    with pytest.raises(SettingsError, match=f"^device=cuda, but {problem}take cpu, or see with nvidia-smi"):
        choose_compute("cuda")
    assert choose_compute("auto").device.type == "cpu"
    (record,) = caplog.records
    assert "to use the GPU, see with nvidia-smi what holds it, or choose another GPU" in record.message


def test_a_gpu_almost_full_is_used_with_a_warning(monkeypatch: Patch, caplog: Log) -> None:
    pretend_gpu(monkeypatch, free=3 * GIB, in_reserve=GIB)
    assert choose_compute("auto").device.type == "cuda"
    (record,) = caplog.records
    assert record.message == (
        "only 4 GiB of the 80 GiB of the GPU (NVIDIA H100) are free: the run may run out of memory; nvidia-smi "
        "shows what is using the rest"
    )


def test_what_this_process_keeps_in_reserve_is_free(monkeypatch: Patch, caplog: Log) -> None:
    pretend_gpu(monkeypatch, free=3 * GIB, in_reserve=70 * GIB)
    assert "; 73 GiB of 80 GiB free)" in choose_compute("cuda").describe()
    assert not caplog.records


def test_of_several_gpus_the_message_says_how_to_choose(monkeypatch: Patch, caplog: Log) -> None:
    pretend_gpu(monkeypatch, num_visible=4, index=3, free=GIB)
    message = choose_compute("cuda").describe()
    assert "free; number 3 of 4 from 0, CUDA_VISIBLE_DEVICES chooses another), " in message
    assert caplog.messages[0].endswith("using the rest, and CUDA_VISIBLE_DEVICES chooses another of the 4")


@pytest.mark.parametrize(
    ("capability", "architectures", "fit"),
    [
        ((8, 0), ARCHITECTURES, True),
        ((8, 9), ARCHITECTURES, True),  # later than 8.6, of the same major version
        ((7, 0), ARCHITECTURES, False),
        ((6, 1), ARCHITECTURES, False),
        ((11, 0), ARCHITECTURES, False),  # between two, and older than what is compiled on the spot
        ((12, 1), ARCHITECTURES, True),
        ((13, 0), ARCHITECTURES, True),  # by compute_120
        ((13, 0), ["sm_120"], False),
        ((9, 0), ["sm_90a"], True),
        ((9, 1), ["sm_90a", "compute_90a"], False),
        ((10, 3), ["sm_100", "sm_120"], True),
        ((8, 0), ["sm_86"], False),
        ((9, 4), ["gfx942", "gfx90a"], True),  # not NVIDIA's
        ((8, 0), [], True),
    ],
)
def test_what_a_build_runs_on(capability: tuple[int, int], architectures: list[str], fit: bool) -> None:
    assert has_kernels(capability, architectures) is fit


# ---- Which precision


def test_an_older_gpu_computes_in_fp32_unless_set_otherwise(
    monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    pretend_gpu(monkeypatch, name="Tesla T4", capability=(7, 5))
    compute = choose_compute("auto")
    assert compute.dtype == torch.float32
    assert compute.reason == "a GPU of compute capability 7.5 is slow in bf16, which begins with 8.0"
    with caplog.at_level("WARNING"):
        assert choose_compute("auto", "bf16").dtype == torch.bfloat16
    assert "precision=bf16 takes longer than fp32 here" in caplog.text
    assert "7.5 is slow in bf16, which begins with 8.0; give fp32" in caplog.text


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
    monkeypatch: Patch, capabilities: dict[str, bool], dtype: torch.dtype, why: str
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


def test_other_names_are_refused() -> None:
    with pytest.raises(SettingsError, match="device 'tpu': expected auto, cpu or cuda"):
        choose_compute("tpu")
    with pytest.raises(SettingsError, match="precision 'fp16': expected auto, fp32 or bf16"):
        choose_compute("cpu", "fp16")


# ---- What is logged


def test_what_a_run_computes_with_is_reported(monkeypatch: Patch) -> None:
    versions = f"2 threads, torch {torch.__version__}"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    capabilities = {"cpu_name": "AMD EPYC", "num_physical_cores": 2, "avx512_bf16": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    message = Compute(torch.device("cpu"), torch.float32, "as the recipe says").describe()
    assert message == f"CPU (AMD EPYC, 2 physical cores, AVX512-BF16), float32 (as the recipe says), {versions}"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True, "avx512_bf16": True})
    assert choose_compute("cpu", "fp32").describe().startswith("CPU (AMX and AVX512-BF16), ")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert ", 1 thread, torch" in choose_compute("cpu", "fp32").describe()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert choose_compute("cpu", "fp32").describe().startswith("CPU (neither AMX nor AVX512-BF16), ")

    pretend_gpu(monkeypatch, name="NVIDIA H200", free=138 * GIB, total=140 * GIB)
    assert choose_compute("auto").describe() == (
        "NVIDIA H200 (compute capability 9.0; 138 GiB of 140 GiB free), bfloat16 (the GPU computes in it), "
        f"{versions} for CUDA 12.9"
    )


@pytest.mark.parametrize(
    ("device", "threads", "hidden_size", "batch_size", "is_said"),
    [
        ("cpu", 2, 256, 32, True),
        ("cpu", 1, 256, 32, False),
        ("cpu", 2, 768, 32, False),
        ("cuda", 2, 256, 32, False),
        ("cpu", 64, 256, 32, False),  # more processes than a step has sequences are refused
    ],
)
def test_processes_are_advised_where_they_are_faster_than_threads(
    device: str, threads: int, hidden_size: int, batch_size: int, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    tip = processes_tip(Compute(torch.device(device), torch.float32, "as it is"), hidden_size, batch_size)
    assert ("--nproc-per-node=2 " in tip) == is_said


class Malloc:
    """What glibc's allocator has been set to, and how often it gave back what was free."""

    def __init__(self, patched: Patch) -> None:
        self.set: list[tuple[int, int]] = []
        self.given_back = 0
        patched.setattr(device_module, "_set_malloc", self._note)
        patched.setattr(device_module, "give_freed_memory_back", self._give_back)

    def _note(self, trim_threshold: int, mmap_max: int) -> None:
        self.set.append((trim_threshold, mmap_max))

    def _give_back(self) -> None:
        self.given_back += 1


def test_a_program_that_trains_keeps_freed_memory_until_the_end(monkeypatch: Patch) -> None:
    malloc = Malloc(monkeypatch)
    monkeypatch.setattr(device_module, "is_own_process", lambda: False)  # whatever a test before has run
    keep_freed_memory()
    assert malloc.set == []  # its arrays would stay with it
    with keeping_freed_memory(torch.device("cpu")):
        assert malloc.set == [(2**31 - 1, 0)]
    assert (malloc.set[1:], malloc.given_back) == ([(128 * 1024, 65_536)], 1)


def test_a_process_of_ours_keeps_it_for_good(monkeypatch: Patch) -> None:
    malloc = Malloc(monkeypatch)
    monkeypatch.setattr(device_module, "is_own_process", lambda: True)
    keep_freed_memory()
    with keeping_freed_memory(torch.device("cpu")), keeping_freed_memory(torch.device("meta")):
        pass
    assert (malloc.set, malloc.given_back) == ([(2**31 - 1, 0)] * 2, 0)
