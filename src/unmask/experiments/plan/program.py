"""Plans a run: checks what is asked for, works out its cost on each number of devices, and measures beside it."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import torch

from unmask.doctor.recipe.examination import available_memory
from unmask.doctor.recipe.speed_probe import MEMORY_FOR_PROBE, measure_speed
from unmask.errors import SettingsError
from unmask.experiments.plan.costs import RunCost, Speeds, Workload, nearest_divisor, run_cost
from unmask.experiments.plan.hardware import (
    CPU,
    GPUS,
    LINKS,
    LOOPBACK,
    NVLINK,
    NVLINK_3,
    NVLINK_4,
    REACHED_OF_LINKS,
    REACHED_OF_PEAK,
    Device,
)
from unmask.experiments.plan.rates import (
    DEEP,
    SHALLOW,
    measure_bandwidth,
    measure_operations,
    measure_products,
    processes_of_machine,
)
from unmask.experiments.plan.workload import Opened, open_recipe, open_workload
from unmask.io.progress import human_bytes, human_count
from unmask.pretraining.ranks import check_recipe
from unmask.recipe.tree import PretrainRecipe
from unmask.training.device import Compute, choose_compute
from unmask.training.distributed import Ranks

SWEEP = (1, 8, 64, 512)
MEASURED_S = 20.0
"""About how long the real steps of each phase are measured."""
FEW_TOKENS = 8192
"""Assumed: with fewer tokens at once, matrix products are too small for a GPU's usual rate."""
NARROW = 768
"""Assumed, of BERT-Base: so they are in a model that is less wide."""


@dataclass(frozen=True)
class Asked:
    """What the command line asks for; see `plan`."""

    gpu: str = "h100"
    gpus: int | None = None
    link: str | None = None
    mfu: float | None = None
    rate: float | None = None
    measure: bool = False


@dataclass(frozen=True)
class Measured:
    """Real steps on this machine beside the planned ones, in seconds, the mean over the run's phases."""

    step_s: float
    planned_s: float
    steadiness: str

    @property
    def off(self) -> float:
        """How much longer the plan is than what was measured, as a share of the latter."""
        return self.planned_s / self.step_s - 1


@dataclass(frozen=True)
class Plan:
    """What a run costs.

    Attributes:
        device: what it would run on.
        costs: one for each number of devices.
        figures: of the speeds that it reckons with: which are stated, assumed and measured.
        notes: what stands beside the plan.
        longer_on: the numbers of devices on which it takes more time and energy than planned, since products are small.
    """

    workload: Workload
    device: Device
    speeds: Speeds
    costs: tuple[RunCost, ...]
    figures: dict[str, str]
    notes: tuple[str, ...]
    longer_on: tuple[int, ...]
    measured: Measured | None = None

    def as_dict(self) -> dict[str, Any]:
        """As JSON: times in seconds, sizes in bytes, rates a second."""
        workload = self.workload
        phases = [
            {
                "share": phase.share,
                "max_length": phase.max_length,
                "batch_size": phase.batch_size,
                "tokens": phase.tokens,
                "operations": phase.tokens * phase.operations,
            }
            for phase in workload.phases
        ]
        costs = [
            {
                **{name: value for name, value in asdict(cost).items() if name not in ("step", "phase_steps")},
                "step": asdict(cost.step) | {"total": cost.step.total},
                "phase_steps_s": [step.total for step in cost.phase_steps],
                "disk_bytes": workload.disk_bytes,
                "takes_longer": cost.devices in self.longer_on,
            }
            for cost in self.costs
        ]
        measured = self.measured and asdict(self.measured) | {"off": self.measured.off}
        return {
            "recipe": workload.name,
            "device": self.device.title,
            "precision": workload.precision,
            "parameters": workload.num_parameters,
            "phases": phases,
            "speeds": asdict(self.speeds),
            "figures": self.figures,
            "costs": costs,
            "measured": measured,
            "notes": list(self.notes),
        }


def plan(recipe: str, overrides: Sequence[str] = (), asked: Asked = Asked()) -> Plan:
    """What a pre-training recipe costs on some devices.

    Args:
        recipe: a file, or the name of one that comes with `unmask`.
        overrides: `key.path=value` words over it.
        asked: `gpu`, a key of `GPUS`, or `cpu`: this machine's processor, measured. `gpus`: how many devices; None:
            those of `SWEEP`. `link`: a key of `LINKS`, which joins nodes, or `nvlink`. `mfu`: the share of the GPU's
            rate that is reached. `rate`: the processor's necessary operations a second, in place of measuring.
            `measure`: whether real steps are timed here too.

    Raises:
        UserError: the recipe is wrong or not one of pre-training, a name is unknown, two options contradict each
            other, or the devices do not divide the batch.
    """
    _check(asked)
    settings, names_text = open_recipe(recipe, overrides)
    compute = _compute(settings, asked.gpu)
    numbers, notes = _numbers(settings, asked)
    print("measuring the memory of a step, by a pass of the model on the processor", file=sys.stderr, flush=True)
    opened = open_workload(recipe, settings, names_text, compute)
    given = _cpu(opened, compute, asked.rate) if asked.gpu == CPU else _gpu(opened.workload, asked)
    device, products, figures = given
    speeds = Speeds(
        operations=device.rates[opened.workload.precision],
        products=products,
        bandwidth=device.bandwidth,
        inside=device.inside.speed * (1.0 if device.inside is LOOPBACK else REACHED_OF_LINKS),
        across=LINKS[asked.link].speed * REACHED_OF_LINKS if asked.link in LINKS else None,
        per_node=device.per_node,
    )
    costs = tuple(run_cost(opened.workload, number, speeds, device.memory, device.watts) for number in numbers)
    longer_on, small = ((), []) if asked.gpu == CPU else _small_products(costs, opened, asked)
    notes = [*opened.notes, *notes, *_memory_notes(costs, device), *small]
    measured = _measure(opened, compute, speeds, device) if asked.measure else None
    return Plan(opened.workload, device, speeds, costs, figures, tuple(notes), longer_on, measured)


def _check(asked: Asked) -> None:
    """Refuses options that are unknown or contradict each other."""
    known = [*GPUS, CPU]
    if asked.gpu not in known:
        raise SettingsError(f"--gpu {asked.gpu}: expected {', '.join(known[:-1])} or {known[-1]}")
    if asked.link is not None and asked.link not in (NVLINK, *LINKS):
        raise SettingsError(f"--link {asked.link}: expected {NVLINK}, {' or '.join(LINKS)}")
    if asked.link == NVLINK and (asked.gpu == CPU or GPUS[asked.gpu].inside not in (NVLINK_3, NVLINK_4)):
        raise SettingsError(f"--link {NVLINK}: {asked.gpu} has none: leave it out, or give what joins nodes: {_LINKS}")
    if asked.mfu is not None and asked.gpu == CPU:
        raise SettingsError(
            "--mfu is a share of a GPU's stated rate: for cpu give --rate, or neither to have it measured"
        )
    if asked.mfu is not None and not 0 < asked.mfu <= 1:
        raise SettingsError(
            f"--mfu {asked.mfu:g}: expected the share of the GPU's rate that is reached, above 0, up to 1"
        )
    if asked.rate is not None and asked.gpu != CPU:
        raise SettingsError(f"--rate is for --gpu cpu: for {asked.gpu} give --mfu, the share of its stated rate")
    if asked.rate is not None and not 0 < asked.rate < math.inf:
        raise SettingsError(f"--rate {asked.rate:g}: expected operations a second, such as 2e11")
    if asked.gpus is not None and asked.gpus < 1:
        raise SettingsError(f"--gpus {asked.gpus}: expected 1 or more")
    if asked.measure and asked.gpu != CPU:
        raise SettingsError(
            f"--measure times steps on this machine's processor, and the plan is for {asked.gpu}: give --gpu cpu, or "
            "leave --measure out"
        )


_LINKS = " or ".join(f"--link {name}" for name in LINKS)


def _compute(settings: PretrainRecipe, gpu: str) -> Compute:
    """The device planned for; a GPU computes in bf16 unless the recipe says otherwise."""
    if gpu == CPU:
        return choose_compute("cpu", settings.precision)
    dtype = torch.float32 if settings.precision == "fp32" else torch.bfloat16
    return Compute(torch.device("cuda"), dtype, "planned for")


def _gpu(workload: Workload, asked: Asked) -> tuple[Device, float, dict[str, str]]:
    """A GPU with the rates that it reaches, that of matrix products alone, and what they come from."""
    device, precision = GPUS[asked.gpu], workload.precision
    mfu = REACHED_OF_PEAK if asked.mfu is None else asked.mfu
    rates = {name: rate * mfu for name, rate in device.rates.items()}
    links = [device.inside.title, *([LINKS[asked.link].title] if asked.link in LINKS else [])]
    stated = (
        f"{human_count(device.rates[precision])} FLOP/s of products in {precision}, "
        f"{device.bandwidth / 1e9:,.0f} GB/s of memory, {device.watts:g} W, {' and '.join(links)}"
    )
    given = "--mfu" if asked.mfu is not None else "--mfu changes it"
    assumed = (
        f"a step reaches {mfu:.0%} of the products' rate ({given}), an all-reduce {REACHED_OF_LINKS:.0%} of a link"
    )
    figures = {"stated": stated, "assumed": assumed, "measured": "nothing"}
    return replace(device, rates=rates), rates[precision], figures


def _cpu(opened: Opened, compute: Compute, rate: float | None) -> tuple[Device, float, dict[str, str]]:
    """This machine's processor, measured; returns as `_gpu`."""
    material = opened.materials[0]
    bandwidth, products = measure_bandwidth(), measure_products(material.sizes.hidden_size, compute)
    reached = measure_operations(material, compute) if rate is None else rate
    about = f"{human_count(reached)} FLOP/s of the recipe's operations"
    measured = f"{human_count(products)} FLOP/s of products, {bandwidth / 1e9:,.0f} GB/s of memory"
    figures = {
        "stated": f"{LOOPBACK.title}, {LOOPBACK.speed / 1e9:g} GB/s" + (f"; {about} (--rate)" if rate else ""),
        "assumed": f"an all-reduce across machines reaches {REACHED_OF_LINKS:.0%} of a link",
        "measured": measured if rate else f"{about}, by steps of {SHALLOW} and {DEEP} blocks of its width; {measured}",
    }
    device = Device(
        title=compute.describe(),
        rates={opened.workload.precision: reached},
        memory=available_memory(compute),
        bandwidth=bandwidth,
        watts=None,
        inside=LOOPBACK,
        per_node=processes_of_machine(),
    )
    return device, products, figures


def _numbers(settings: PretrainRecipe, asked: Asked) -> tuple[list[int], list[str]]:
    """The numbers of devices to plan for, and what to say of those left out or replaced.

    Raises:
        SettingsError: the number asked for is impossible.
    """
    numbers, notes = _possible_numbers(sorted({cut.batch_size for cut in settings.cuts}), asked)
    for number in numbers:
        if number > 1:
            check_recipe(settings, Ranks(size=number))
    return numbers, notes


def _possible_numbers(batches: Sequence[int], asked: Asked) -> tuple[list[int], list[str]]:
    per_node = processes_of_machine() if asked.gpu == CPU else GPUS[asked.gpu].per_node
    sizes = " and of ".join(f"{size:,}" for size in batches)
    node = f"a node of {per_node}" if asked.gpu != CPU else f"this machine of {per_node} such processes"
    if asked.gpus is not None:
        if (nearest := nearest_divisor(asked.gpus, batches)) != asked.gpus:
            raise SettingsError(
                f"--gpus {asked.gpus} does not divide a batch of {sizes} sequences into equal shares: the nearest "
                f"number that does is {nearest}"
            )
        if asked.gpus > per_node and asked.link not in LINKS:
            raise SettingsError(f"--gpus {asked.gpus} are more than {node}: say what joins nodes with {_LINKS}")
        return [asked.gpus], []
    numbers: list[int] = []
    notes = []
    for number in SWEEP:
        if number > per_node and asked.link not in LINKS:
            notes.append(f"more devices than {node} are left out: say what joins nodes with {_LINKS}")
            break
        nearest = nearest_divisor(number, batches, None if asked.link in LINKS else per_node)
        if nearest != number:
            notes.append(f"{number} does not divide a batch of {sizes} sequences: {nearest} replaces it")
        if nearest not in numbers:
            numbers.append(nearest)
    return numbers, notes


def _memory_notes(costs: Sequence[RunCost], device: Device) -> list[str]:
    return [
        f"on {cost.devices} a device takes {human_bytes(cost.memory_bytes)}, and has {human_bytes(device.memory)}: "
        f"lower train.micro_batch_size, or that of a phase, which is {cost.sequences_at_once} here"
        for cost in costs
        if cost.memory_bytes > device.memory
    ]


def _small_products(costs: Sequence[RunCost], opened: Opened, asked: Asked) -> tuple[tuple[int, ...], list[str]]:
    """The numbers of GPUs on which they reach less than the assumed share of their rate, and why."""
    width = opened.materials[0].sizes.hidden_size
    is_narrow = width < NARROW and asked.mfu is None
    few = [cost for cost in costs if cost.tokens_at_once < FEW_TOKENS]
    reasons = [f"the model is {width} wide, less than {NARROW}"] if is_narrow else []
    if few:
        counts = ", ".join(f"{cost.devices} ({human_count(cost.tokens_at_once)})" for cost in few)
        reasons.append(f"a device computes fewer than {FEW_TOKENS:,} tokens at once on {counts}")
    if not reasons:
        return (), []
    note = (
        f"{', and '.join(reasons)}: a GPU reaches less than the assumed share of its rate there, and a step takes "
        "longer than planned; those of pretrain/night, 256 wide, took 14 times as long (docs/guides/scaling.md)"
    )
    # A budget in minutes is what it is, whatever a step takes.
    is_open = opened.workload.train.minutes is None
    return tuple(cost.devices for cost in (costs if is_narrow else few) if is_open), [note]


def _measure(opened: Opened, compute: Compute, speeds: Speeds, device: Device) -> Measured:
    """Times real steps of every phase on this machine."""
    alone = run_cost(opened.workload, 1, speeds, device.memory, None)
    phases = opened.workload.phases
    fixed = phases[0].memory(1).fixed
    if fixed > device.memory:
        raise SettingsError(
            f"--measure: weights, gradients and optimizer take {human_bytes(fixed)}, and {human_bytes(device.memory)} "
            "are free here: leave --measure out"
        )
    measured, planned, weights, words = [], [], [], []
    for material, phase, step in zip(opened.materials, phases, alone.phase_steps, strict=True):
        memory = phase.memory(1)
        fitting = max(1, int(MEMORY_FOR_PROBE * (device.memory - memory.fixed) / memory.per_batch))
        probe = measure_speed(material, compute, MEASURED_S, min(fitting, phase.micro_batch_size or fitting))
        measured.append(probe.seconds_for(phase.tokens))
        planned.append(step.total)
        weights.append(phase.share)
        words.append(probe.steadiness)
    return Measured(fmean(measured, weights), fmean(planned, weights), "; ".join(words))
