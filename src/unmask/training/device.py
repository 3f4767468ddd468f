"""Where a run computes and in which precision: the one place that decides, and says why."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from unmask.errors import SettingsError


@dataclass(frozen=True)
class Compute:
    """A device and a precision.

    Attributes:
        device: where modules and batches are.
        dtype: of matrix products; weights are always float32.
        reason: why, for the log.
    """

    device: torch.device
    dtype: torch.dtype
    reason: str

    @property
    def autocast(self) -> Callable[[], AbstractContextManager[Any]]:
        """A new context for each forward pass."""
        if self.dtype == torch.float32:
            return nullcontext
        return partial(torch.autocast, self.device.type, dtype=self.dtype)

    def describe(self) -> str:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        return f"{name}, {str(self.dtype).removeprefix('torch.')} ({self.reason}), {torch.get_num_threads()} threads"


DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "fp32", "bf16")


def choose_compute(device: str = "auto", precision: str = "auto") -> Compute:
    """Finds the device and precision that a recipe asks for.

    Args:
        device: `auto` (a GPU where there is one), `cpu` or `cuda`.
        precision: `auto` (bf16 where the device computes in it), `fp32` or `bf16`.

    Raises:
        SettingsError: `cuda` where there is none, or another name.
    """
    for name, value, known in (("device", device, DEVICES), ("precision", precision, PRECISIONS)):
        if value not in known:
            raise SettingsError(f"{name} {value!r}: expected {', '.join(known[:-1])} or {known[-1]}")
    if device == "cuda" and not torch.cuda.is_available():
        raise SettingsError(
            "device=cuda, but PyTorch sees no CUDA device: set device=cpu, or install a CUDA build of torch"
        )
    chosen = torch.device("cuda" if device == "cuda" or (device == "auto" and torch.cuda.is_available()) else "cpu")
    if precision == "fp32":
        return Compute(chosen, torch.float32, "as the recipe says")
    has_bf16, what = _computes_bf16(chosen)
    if precision == "bf16":
        return Compute(chosen, torch.bfloat16, f"as the recipe says; {what}")
    return Compute(chosen, torch.bfloat16 if has_bf16 else torch.float32, what)


def _computes_bf16(device: torch.device) -> tuple[bool, str]:
    """Whether matrix products in bfloat16 are quicker there, and what says so."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return major >= 8, f"compute capability {major}.{minor}"
    capabilities = torch.cpu.get_capabilities()
    for name in ("amx_bf16", "avx512_bf16"):
        if capabilities.get(name):
            return True, f"the processor has {name}"
    return False, "the processor has neither AMX nor AVX512-BF16"
