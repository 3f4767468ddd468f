"""What this machine's processor reaches, measured for some seconds with this process's threads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from unmask.doctor.recipe.material import Material
from unmask.doctor.recipe.speed_probe import measure_module
from unmask.io.cores import count_cores
from unmask.objectives.base import fresh_module
from unmask.training.device import Compute

SHALLOW, DEEP = 1, 3
"""Blocks of the two models that are timed: their width, embeddings and heads are the recipe's."""
PROBED_TOKENS = 4096
"""Of a step of these models, at most: enough for the rate of a whole micro-batch."""
PROBE_S = 6.0
"""About how long each of them is timed."""
_BYTES = 2**26
"""Of the array that is read and written: more than caches hold."""

Clock = Callable[[], float]


def measure_operations(material: Material, compute: Compute, clock: Clock = time.perf_counter) -> float:
    """FLOP/s of the recipe's necessary operations, forward and backward, with all that is between them.

    It is the rate of a model of the recipe's depth, on the line through the times of a shallow and of a deeper one. It
    is not worked out from the rate of products: on a processor more than half of a step is something else, and no fixed
    share of it. Nor is it the rate of one small model, whose head weighs more than that of the whole.
    """
    depth = material.sizes.num_hidden_layers
    shallow, deep = min(SHALLOW, depth), min(DEEP, depth)
    seconds = _seconds_per_token(material, deep, compute, clock)
    if deep > shallow:
        one_block = (seconds - _seconds_per_token(material, shallow, compute, clock)) / (deep - shallow)
        seconds += (depth - deep) * one_block
    batch = material.objective.prepare(next(material.batches(_sequences(material))))
    return material.objective.operations(material.sizes, batch, material.length) / seconds


def _sequences(material: Material) -> int:
    train = material.settings.train
    fitting = int(PROBED_TOKENS / material.length)
    return max(1, min(train.micro_batch_of(train.batch_size), fitting))


def _seconds_per_token(material: Material, num_blocks: int, compute: Compute, clock: Clock) -> float:
    """Of steps of the recipe with so many blocks, without the optimizer."""
    sizes = material.sizes.model_copy(update={"num_hidden_layers": num_blocks})
    doing = f"measuring {num_blocks} block(s)"
    with torch.random.fork_rng(devices=[]):
        module = fresh_module(material.objective, sizes)
        probe = measure_module(module, material, compute, PROBE_S, _sequences(material), clock, doing)
    return (probe.step_s - probe.optimizer_s) / probe.tokens


def measure_products(width: int, compute: Compute, clock: Clock = time.perf_counter) -> float:
    """FLOP/s of products of square matrices as wide as the model, eight together."""
    matrices = torch.zeros(8, width, width, dtype=compute.dtype)
    return 2 * 8 * width**3 / _median(lambda: torch.bmm(matrices, matrices), clock)


def measure_bandwidth(clock: Clock = time.perf_counter) -> float:
    """Bytes/s read from and written to memory together."""
    source = torch.zeros(_BYTES // 4)
    target = torch.empty_like(source)
    return 2 * _BYTES / _median(lambda: torch.add(source, 1.0, out=target), clock)


def _median(work: Callable[[], object], clock: Clock) -> float:
    taken = []
    for _ in range(9):
        began = clock()
        work()
        taken.append(clock() - began)
    return statistics.median(taken)


def processes_of_machine() -> int:
    """How many processes with this one's number of threads the machine has cores for."""
    return max(1, count_cores() // torch.get_num_threads())
