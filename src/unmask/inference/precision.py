"""Modules for inference: in fp32 unless bf16 is requested, their weights cast and laid out once.

In bf16 a Transformer's weights are cast once, and nothing is cast while it computes. LSTMs keep float32 weights; ELMo's
are rounded at every batch for products in bf16, the others compute in float32.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from unmask.errors import SettingsError
from unmask.models.kernels.products import pack_weights
from unmask.models.modernbert import ModernBertBlock
from unmask.models.transformer import Block
from unmask.training.device import Compute, choose_compute, keep_freed_memory

INFERENCE_PRECISIONS = ("fp32", "bf16")


def refuse_options(loaded: object, **given: object) -> None:
    """Raises SettingsError for what is given beside a loaded model, which has it already; None is not given."""
    for name, value in given.items():
        if value is not None:
            kind = type(loaded).__name__
            raise SettingsError(f"{name}={value}: a loaded {kind} has its {name}: load its directory with this one")


def inference_compute(device: str | None, precision: str | None) -> Compute:
    """The device and precision to answer with: what was requested, so that answers are the same on every machine.

    Args:
        device: `auto` (a GPU where there is one), `cpu` or `cuda`; None: `auto`.
        precision: `fp32` or `bf16`; None: `fp32`.

    Raises:
        SettingsError: an unknown name, or `cuda` without a GPU that can be used.
    """
    device, precision = "auto" if device is None else device, "fp32" if precision is None else precision
    if precision not in INFERENCE_PRECISIONS:
        raise SettingsError(f"precision {precision!r}: expected {' or '.join(INFERENCE_PRECISIONS)}")
    return choose_compute(device, precision)


def freeze(module: nn.Module, compute: Compute, *, packs: bool = True) -> Compute:
    """Prepares a module for inference, in place.

    Args:
        module: in eval mode, on the device, with float32 weights; it is not to be trained any more.
        compute: the device and precision.
        packs: False keeps the weights' layout: in fp32 the module then answers bit for bit as one in training does, not
            only up to rounding.

    Returns:
        The device and precision to run it with.
    """
    parts = list(module.modules())
    has_blocks = any(isinstance(part, Block | ModernBertBlock) for part in parts)
    has_lstm = any(isinstance(part, nn.LSTM) for part in parts)
    if compute.dtype != torch.float32 and has_blocks and not has_lstm:
        module.to(compute.dtype)
        compute = replace(compute, autocasts=False)
    if packs:
        pack_weights(module)
    if compute.device.type == "cpu":
        keep_freed_memory()
    return compute
