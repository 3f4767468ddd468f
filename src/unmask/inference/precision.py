"""Modules for inference: their weights cast and laid out once, in the precision that is measured to be faster.

In bf16 a Transformer's weights are cast once, and nothing is cast while it computes. LSTMs keep float32 weights; ELMo's
are rounded at every batch for products in bf16, the others compute in float32.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from unmask.batch import Batch
from unmask.models.kernels.products import pack_weights
from unmask.models.transformer import Block
from unmask.training.device import Compute, choose_compute, keep_freed_memory

logger = logging.getLogger("unmask")

AnyModule = TypeVar("AnyModule")

MEASURED_BATCHES = 3
"""How many batches of a stream's first window, spread over its lengths, are computed three times in both precisions."""


_CLEARLY = 0.9
"""bf16 is taken if it needs less than this share of fp32's time; otherwise fp32, which changes no answer."""


def freeze(module: AnyModule, compute: Compute, *, packs: bool = True) -> tuple[AnyModule, Compute]:
    """Prepares a module for inference, in place.

    Args:
        module: in eval mode, on the device, with float32 weights; it is not to be trained any more.
        compute: the device and precision.
        packs: False keeps the weights' layout: in fp32 the module then answers bit for bit as one in training does, not
            only up to rounding.

    Returns:
        The module, and the device and precision to run it with.
    """
    assert isinstance(module, nn.Module)
    if compute.dtype != torch.float32 and _is_transformer(module):
        module.to(compute.dtype)
        compute = replace(compute, autocasts=False)
    if packs:
        pack_weights(module)
    if compute.device.type == "cpu":
        keep_freed_memory()
    return module, compute


def _is_transformer(module: nn.Module) -> bool:
    parts = list(module.modules())
    return any(isinstance(part, Block) for part in parts) and not any(isinstance(part, nn.LSTM) for part in parts)


def take_faster(
    module: AnyModule, compute: Compute, batches: Sequence[Batch], run: Callable[[AnyModule, Batch], Any]
) -> tuple[AnyModule, Compute]:
    """Measures fp32 against bf16, if the device supports it, and logs which is taken.

    Args:
        module: in eval mode, on the device, with float32 weights.
        compute: the device, and fp32.
        batches: the first ones of the stream, by length, at least one; on the CPU.
        run: makes a module compute a batch on the device.

    Returns:
        A copy of the module, its weights laid out for the stream, and the device and precision to run it with.
    """
    in_bf16 = choose_compute(compute.device.type, "auto")
    if in_bf16.dtype == torch.float32:
        logger.info("precision: fp32 (%s)", in_bf16.reason)
        return freeze(copy.deepcopy(module), compute)
    sides = [freeze(copy.deepcopy(module), each) for each in (compute, in_bf16)]
    shown = [batch.to(compute.device) for batch in batches[:: -(-len(batches) // MEASURED_BATCHES)]]
    seconds = [0.0, 0.0]
    for batch in shown:
        for is_timed in (False, True, True):  # the first pass allocates memory and builds kernels
            for side, (its_module, its_compute) in enumerate(sides):
                began = time.perf_counter()
                with torch.inference_mode(), its_compute.autocast():
                    run(its_module, batch)
                if compute.device.type == "cuda":
                    torch.cuda.synchronize(compute.device)
                seconds[side] += is_timed * (time.perf_counter() - began)
    chosen = int(seconds[1] < _CLEARLY * seconds[0])
    logger.info(
        "precision: %s, measured on %d batches of the inputs: fp32 took %.0f ms, bf16 %.0f ms (%s)",
        ("fp32", "bf16")[chosen],
        len(shown),
        1000 * seconds[0],
        1000 * seconds[1],
        in_bf16.reason,
    )
    return sides[chosen]
