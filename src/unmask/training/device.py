"""Chooses a run's device and precision: the one place that decides, says why, and describes the device.

Nothing here touches CUDA where a recipe names the CPU.
"""

from __future__ import annotations

import ctypes
import logging
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from unmask.errors import SettingsError, first_line
from unmask.io.processes import is_own_process
from unmask.io.progress import counted, human_bytes

if TYPE_CHECKING:
    from unmask.models.sizes import Sizes

logger = logging.getLogger("unmask")

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "fp32", "bf16")

_FIRST_WITH_BF16 = (8, 0)
_LITTLE_MEMORY = 0.2
"""The free share of a GPU's memory below which a run is warned: something else holds most of it."""
_SMALL_HIDDEN_SIZE = 512
_CPU_INSTRUCTIONS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16"}

AnyModule = TypeVar("AnyModule", bound=nn.Module)


@dataclass(frozen=True)
class Compute:
    """A device and a precision.

    Attributes:
        dtype: of matrix products; weights are always float32.
        autocasts: False: a module's weights have been cast to `dtype`, once, and nothing is cast as it computes.
    """

    device: torch.device
    dtype: torch.dtype
    reason: str
    autocasts: bool = True

    @property
    def autocast(self) -> Callable[[], AbstractContextManager[Any]]:
        """A new context for each forward pass; an autocast of the program has no effect in it."""
        is_cast = self.dtype != torch.float32 and self.autocasts
        return partial(torch.autocast, self.device.type, dtype=self.dtype if is_cast else None, enabled=is_cast)

    def place(self, module: AnyModule) -> AnyModule:
        """Moves a module to the device, in place."""
        return module.to(self.device)

    @contextmanager
    def keeping_torch_state(self) -> Iterator[None]:
        """A block with gradients and new tensors in float32, whatever a program has set, that may seed PyTorch's
        generators, here and on the device: all is as it was at its end."""
        generators, dtype = [self.device] if self.device.type == "cuda" else [], torch.get_default_dtype()
        with torch.random.fork_rng(generators), torch.inference_mode(False), torch.enable_grad():
            torch.set_default_dtype(torch.float32)
            try:
                yield
            finally:
                torch.set_default_dtype(dtype)

    def for_figures(self) -> Compute:
        """fp32, whatever a run trains in: what a model says of dev and test is then the same anywhere."""
        return Compute(self.device, torch.float32, "so that figures are the same everywhere")

    def describe(self) -> str:
        """One line for the log of a run: the device and its present state, the precision and why, versions."""
        about = describe_gpu(look_at_gpu(self.device)) if self.device.type == "cuda" else describe_cpu()
        precision = str(self.dtype).removeprefix("torch.")
        num_threads = torch.get_num_threads()
        threads = "1 thread" if num_threads == 1 else f"{num_threads} threads"
        versions = f"torch {torch.__version__}"
        if self.device.type == "cuda" and torch.version.cuda is not None:
            versions += f" for CUDA {torch.version.cuda}"
        return f"{about}, {precision} ({self.reason}), {threads}, {versions}"


def log_compute(compute: Compute, sizes: Sizes) -> None:
    """Logs what a run computes with: the device, and the backend of attention where the encoder has any."""
    from unmask.models.kernels.attention_backends import describe_attention  # what only predicts needs neither
    from unmask.models.settings import EncoderSettings

    logger.info(compute.describe())
    if isinstance(sizes, EncoderSettings) and not sizes.family.is_recurrent:
        dropout_prob, head_size = sizes.attention_probs_dropout_prob, sizes.head_size
        logger.info(describe_attention(compute.device, compute.dtype, dropout_prob, head_size))


def processes_tip(compute: Compute, hidden_size: int, batch_size: int) -> str:
    """What uses a CPU's cores better than threads where products of matrices are short; empty where nothing does."""
    threads = torch.get_num_threads()
    if compute.device.type != "cpu" or not 1 < threads <= batch_size or hidden_size > _SMALL_HIDDEN_SIZE:
        return ""
    return (
        f"a model of this size trains faster in {threads} processes than on {threads} threads (docs/guides/speed.md): "
        f"OMP_NUM_THREADS=1 torchrun --nproc-per-node={threads} -m unmask pretrain ..."
    )


def without_free_memory(description: str) -> str:
    """What `Compute.describe` said, but for how much of a GPU's memory was free, so that two can be compared."""
    return re.sub(r"[^;(]* of [^;)]* free", "", description)


@dataclass(frozen=True)
class Gpu:
    """A GPU as it is at this moment.

    Attributes:
        capability: major and minor number of its compute capability.
        index: among those that PyTorch sees.
        free: bytes of memory that this process can allocate, including what its own PyTorch keeps in reserve.
    """

    name: str
    capability: tuple[int, int]
    index: int
    num_visible: int
    free: int
    total: int

    @property
    def version(self) -> str:
        return "{}.{}".format(*self.capability)


@dataclass(frozen=True)
class NoGpu:
    """Why there is none to compute on.

    Attributes:
        is_fault: True: there is a GPU and it cannot be used; False: there is none.
    """

    problem: str
    remedy: str
    is_fault: bool


def choose_compute(device: str = "auto", precision: str = "auto") -> Compute:
    """Finds the device and precision that a recipe names.

    A GPU that cannot be used (one that this build of PyTorch has no kernels for, or one that is full) is passed over by
    `auto`, a GPU with little free memory is used, and so is bf16 where it is slow: each with a warning in the log.

    Args:
        device: `auto` (a GPU where there is one), `cpu` or `cuda`.
        precision: `auto` (bf16 where the device computes in it), `fp32` or `bf16`.

    Raises:
        SettingsError: `cuda` without a GPU that can be used, or an unknown name.
    """
    for name, value, known in (("device", device, DEVICES), ("precision", precision, PRECISIONS)):
        if value not in known:
            raise SettingsError(f"{name} {value!r}: expected {', '.join(known[:-1])} or {known[-1]}")

    found = find_gpu() if device != "cpu" else None
    if isinstance(found, NoGpu):
        if device == "cuda":
            raise SettingsError(f"device=cuda, but {found.problem}: take cpu, or {found.remedy}")
        if found.is_fault:
            _warn(f"computes on the CPU, for {found.problem}: to use the GPU, {found.remedy}")
    gpu = found if isinstance(found, Gpu) else None
    if gpu is not None and gpu.free < _LITTLE_MEMORY * gpu.total:
        _warn(_little_memory(gpu))

    chosen = torch.device("cpu" if gpu is None else "cuda")
    if precision == "fp32":
        return Compute(chosen, torch.float32, "as the recipe says")
    has_bf16, what = _computes_bf16(gpu)
    if precision == "bf16":
        if not has_bf16:
            _warn(f"precision=bf16 takes longer than fp32 here, on a processor many times: {what}; give fp32")
        return Compute(chosen, torch.bfloat16, f"as the recipe says; {what}")
    return Compute(chosen, torch.bfloat16 if has_bf16 else torch.float32, what)


# ---- The GPU


def find_gpu() -> Gpu | NoGpu:
    """The GPU that a run would take, or why it can take none."""
    if not torch.cuda.is_available():
        problem = "PyTorch sees no CUDA device"
        if torch.version.cuda is None:
            return NoGpu(problem, "install a CUDA build of torch", is_fault=False)
        remedy = (
            f"see with nvidia-smi whether there is one, with a driver for CUDA {torch.version.cuda}, and that "
            "CUDA_VISIBLE_DEVICES does not hide it"
        )
        return NoGpu(problem, remedy, is_fault=False)
    try:
        gpu = look_at_gpu(torch.device("cuda"))
    except RuntimeError as error:  # a full GPU has no memory for CUDA's own state; one in exclusive use refuses others
        remedy = "see with nvidia-smi what holds it, or choose another GPU with CUDA_VISIBLE_DEVICES"
        return NoGpu(f"the GPU cannot be used ({first_line(error)})", remedy, is_fault=True)
    architectures = torch.cuda.get_arch_list()
    if not has_kernels(gpu.capability, architectures):
        problem = (
            f"this torch {torch.__version__} has no kernels for {gpu.name} of compute capability {gpu.version} "
            f"(it has them for {', '.join(architectures)})"
        )
        return NoGpu(problem, "install a build of torch that has them", is_fault=True)
    return gpu


def look_at_gpu(device: torch.device) -> Gpu:
    """What a CUDA device is and how much of its memory is free. Raises RuntimeError if it cannot be used."""
    free, total = torch.cuda.mem_get_info(device)
    reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return Gpu(
        name=torch.cuda.get_device_name(device),
        capability=torch.cuda.get_device_capability(device),
        index=torch.cuda.current_device() if device.index is None else device.index,
        num_visible=torch.cuda.device_count(),
        free=free + reserve,
        total=total,
    )


def has_kernels(capability: tuple[int, int], architectures: list[str]) -> bool:
    """Whether a build of PyTorch runs on a GPU.

    Machine code (`sm_80`) runs on its own major version from its minor version on, machine code with a suffix
    (`sm_90a`) runs on exactly that version; what is compiled when it is loaded (`compute_90`) runs on anything later.

    Args:
        architectures: that the build has code for; if none is NVIDIA's (a build for other GPUs), the build is assumed
            to fit.
    """
    parsed = [match for each in architectures if (match := re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", each))]
    if not parsed:
        return True
    for kind, major, minor, suffix in (match.groups() for match in parsed):
        version = int(major), int(minor)
        if version == capability:
            return True
        if not suffix and version < capability and (kind == "compute" or version[0] == capability[0]):
            return True
    return False


def describe_gpu(gpu: Gpu) -> str:
    """Name, capability and memory, and which it is where there are several."""
    parts = [f"compute capability {gpu.version}", f"{human_bytes(gpu.free)} of {human_bytes(gpu.total)} free"]
    if gpu.num_visible > 1:
        parts.append(f"number {gpu.index} of {gpu.num_visible} from 0, CUDA_VISIBLE_DEVICES chooses another")
    return f"{gpu.name} ({'; '.join(parts)})"


def _little_memory(gpu: Gpu) -> str:
    other = f", and CUDA_VISIBLE_DEVICES chooses another of the {gpu.num_visible}" if gpu.num_visible > 1 else ""
    return (
        f"only {human_bytes(gpu.free)} of the {human_bytes(gpu.total)} of the GPU ({gpu.name}) are free: "
        f"the run may run out of memory; nvidia-smi shows what is using the rest{other}"
    )


# ---- The processor


def describe_cpu() -> str:
    """Name, cores and which instructions for bfloat16, as far as PyTorch reports them."""
    capabilities = torch.cpu.get_capabilities()
    cores = capabilities.get("num_physical_cores")
    instructions = [name for key, name in _CPU_INSTRUCTIONS.items() if capabilities.get(key)]
    parts = [
        *([str(capabilities["cpu_name"])] if capabilities.get("cpu_name") else []),
        *([counted(cores, "physical core")] if cores else []),
        " and ".join(instructions) or "neither AMX nor AVX512-BF16",
    ]
    return f"CPU ({', '.join(parts)})"


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Options of `mallopt`: how many bytes may be free at the end of the heap, and how many blocks may lie outside it."""


def keep_freed_memory() -> None:
    """Makes an `own_process` keep the memory that it frees, up to 2 GiB at the end of its heap, if glibc allocates it.

    The C library hands large blocks back to the system as soon as they are freed, and the system clears each page when
    it is touched again: a step on the CPU, whose every tensor is such a block, spends a tenth of its time on that. The
    process then stays as large as it has ever been. The arrays of another program would stay with it.
    """
    if is_own_process():
        _set_malloc(trim_threshold=2**31 - 1, mmap_max=0)


@contextmanager
def keeping_freed_memory(device: torch.device) -> Iterator[None]:
    """A block of many steps in which any process does so, if they are the CPU's; another program's gives back what is
    free at its end."""
    if device.type != "cpu":
        yield
        return
    _set_malloc(trim_threshold=2**31 - 1, mmap_max=0)
    try:
        yield
    finally:
        if not is_own_process():
            _set_malloc(trim_threshold=128 * 1024, mmap_max=65_536)  # glibc's own values
            give_freed_memory_back()


def _set_malloc(trim_threshold: int, mmap_max: int) -> None:
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, trim_threshold)
        mallopt(_MMAP_MAX, mmap_max)


def give_freed_memory_back() -> None:
    """Gives the system all memory that is free now, where glibc allocates it; the next step takes it again."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def _computes_bf16(gpu: Gpu | None) -> tuple[bool, str]:
    """Whether matrix products in bfloat16 are faster on the device, and why."""
    if gpu is not None:
        if gpu.capability >= _FIRST_WITH_BF16:
            return True, "the GPU computes in it"
        return False, f"a GPU of compute capability {gpu.version} is slow in bf16, which begins with 8.0"
    capabilities = torch.cpu.get_capabilities()
    for name in _CPU_INSTRUCTIONS:
        if capabilities.get(name):
            return True, f"the processor has {name}"
    return False, "the processor has neither AMX nor AVX512-BF16"


@cache
def _warn(message: str) -> None:
    """Logs a warning, once per process: many runs may follow each other."""
    logger.warning(message)
