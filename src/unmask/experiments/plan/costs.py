"""What a run costs on N devices, from its necessary operations and the speeds of devices and links.

Data parallelism as `torchrun` starts it (Li et al. 2020, "PyTorch Distributed"): every device holds all weights and
computes its share of a step's sequences; then gradients are added up over all devices in fp32, once a step, and every
device makes the same update, but for Muon's products, of which each makes its share. With `train.shard` each holds and
updates its part. docs/guides/scaling.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from statistics import fmean

from unmask.doctor.recipe.checks import fitting_sequences, steps_of
from unmask.doctor.recipe.estimates import FLOAT32, MemoryEstimate
from unmask.training.settings import TrainSettings

BACKWARD_SHARE = 2 / 3
"""Of the time of a forward and backward pass: the backward pass has twice the operations."""


@dataclass(frozen=True)
class Phase:
    """A part of the run with its own sequences or batches.

    Attributes:
        share: of the run's budget.
        batch_size: sequences a step, over all devices.
        micro_batch_size: sequences that a device computes at once, at most; None: as many as its memory holds.
        length: the mean tokens of a sequence.
        operations: necessary FLOP a token, the backward pass included.
        epochs: the share of the text that a step shows; None: there is no text.
        memory: of a device that computes so many sequences at once.
    """

    share: float
    max_length: int
    batch_size: int
    micro_batch_size: int | None
    length: float
    operations: float
    epochs: float | None
    memory: Callable[[int], MemoryEstimate]

    @property
    def tokens(self) -> float:
        """Tokens a step, over all devices."""
        return self.batch_size * self.length


@dataclass(frozen=True)
class EqualMatrices:
    """Matrices of one shape that Muon updates: each device orthogonalises its share of them, and all gather the rest.

    Attributes:
        count: how many there are.
        operations: FLOP of one.
        size: bytes of one, as it is gathered.
    """

    count: int
    operations: float
    size: int

    def share(self, devices: int) -> int:
        """How many of them a device updates, at most."""
        return math.ceil(self.count / devices)


@dataclass(frozen=True)
class Workload:
    """What a recipe amounts to on any device.

    Attributes:
        num_parameters: that are trained, so each has a gradient.
        embeddings: how many of them are in the embeddings, whose gradient is complete last.
        update_bytes: memory read and written in the optimizer's update of all parameters.
        matrices: those whose update takes products.
        disk_bytes: checkpoints and model, without the store.
    """

    name: str
    precision: str
    train: TrainSettings
    num_parameters: int
    embeddings: int
    update_bytes: float
    matrices: tuple[EqualMatrices, ...]
    disk_bytes: int
    phases: tuple[Phase, ...]


@dataclass(frozen=True)
class Speeds:
    """What is reached, in FLOP/s and bytes/s.

    Attributes:
        operations: necessary operations of a device.
        products: matrix products alone, as in an optimizer's update.
        bandwidth: of its memory.
        inside: what a device sends to another of its node.
        across: what a node sends to another; None: there is no such link.
    """

    operations: float
    products: float
    bandwidth: float
    inside: float
    across: float | None
    per_node: int


@dataclass(frozen=True)
class StepCost:
    """The seconds of a step on each device.

    Attributes:
        computing: forward and backward.
        reducing: adding up gradients over all devices after the last backward pass, and gathering Muon's updates.
        hideable: the part of it that a loop could hide behind that pass.
        updating: the optimizer.
    """

    computing: float
    reducing: float
    hideable: float
    updating: float

    @property
    def total(self) -> float:
        return self.computing + self.reducing + self.updating


@dataclass(frozen=True)
class RunCost:
    """What a run costs on some devices; None for what cannot be known before there is a text.

    Attributes:
        step: the mean over the run.
        efficiency: the speed-up over one device, by the number of devices.
        efficiency_hidden: the same if gradients were added up behind the backward pass, as far as they can be.
        sent_bytes: that each device sends a step.
        memory_bytes: of a device at its peak, in the phase that takes most.
        sequences_at_once: that a device computes at once in that phase.
        tokens_at_once: the fewest tokens that a device computes at once in any phase.
    """

    devices: int
    steps: float | None
    tokens: float | None
    seconds: float | None
    energy_kwh: float | None
    step: StepCost
    phase_steps: tuple[StepCost, ...]
    efficiency: float
    efficiency_hidden: float
    sent_bytes: float
    memory_bytes: float
    sequences_at_once: int
    tokens_at_once: float


def sent_bytes(devices: int, size: float) -> float:
    """What each device sends to add up `size` bytes in a ring: 2 (N - 1) / N of them (Patarasuk and Yuan 2009)."""
    return 2 * (devices - 1) / devices * size


def reduce_seconds(devices: int, size: float, speeds: Speeds) -> float:
    """Adding up `size` bytes over all devices: in rings inside the nodes, then in one across them.

    With M nodes of n devices it takes 2 (n - 1) / n x size at the speed of a device's link, and 2 (M - 1) / M x size at
    the speed at which a node sends. Delays of single messages are left out.
    """
    nodes = math.ceil(devices / speeds.per_node)
    inside = sent_bytes(math.ceil(devices / nodes), size) / speeds.inside
    if nodes == 1:
        return inside
    assert speeds.across is not None, "more devices than a node has are joined by a link"
    return inside + sent_bytes(nodes, size) / speeds.across


def step_cost(workload: Workload, phase: Phase, devices: int, at_once: int, speeds: Speeds) -> StepCost:
    """A step of a phase; `at_once`: the sequences that a device computes at once.

    The all-reduce comes after the backward pass of the step's last micro-batch. It could hide behind it, but for the
    embeddings' part, whose gradient that pass completes last.
    """
    computing = phase.operations * phase.tokens / devices / speeds.operations
    micro_batches = math.ceil(phase.batch_size / devices / at_once)
    adding = reduce_seconds(devices, _added_bytes(workload, micro_batches), speeds)
    early = adding * (1 - workload.embeddings / workload.num_parameters)
    hideable = min(early, BACKWARD_SHARE * computing / micro_batches)
    gathering = reduce_seconds(devices, _gathered_bytes(workload, devices), speeds) / 2  # the second half of a ring
    operations = sum(each.share(devices) * each.operations for each in workload.matrices)
    part = devices if workload.train.shard else 1
    updating = workload.update_bytes / part / speeds.bandwidth + operations / speeds.products
    return StepCost(computing, adding + gathering, hideable, updating)


def _added_bytes(workload: Workload, micro_batches: int) -> float:
    """Bytes that are added up a step: gradients once; with `train.shard` one and a half times as many each micro-batch,
    since weights are gathered for both passes, and gradients brought to where they belong, each half of a ring."""
    size = FLOAT32 * workload.num_parameters
    return 1.5 * size * micro_batches if workload.train.shard else size


def _gathered_bytes(workload: Workload, devices: int) -> float:
    """Of Muon's updates, as many from each device."""
    return sum(each.share(devices) * devices * each.size for each in workload.matrices)


def memory_of(workload: Workload, phase: Phase, devices: int, at_once: int) -> float:
    """Bytes of a device at its peak. Several have buckets, in which gradients are sent, or with `train.shard` a part of
    what does not depend on the batch, and the embeddings with their gradient gathered (a block takes less)."""
    memory = phase.memory(at_once)
    if devices == 1:
        return memory.total
    if workload.train.shard:
        return memory.fixed / devices + 2 * FLOAT32 * workload.embeddings + memory.per_batch
    return memory.total + FLOAT32 * workload.num_parameters


def sequences_at_once(phase: Phase, devices: int, memory: float) -> int:
    """How many sequences a device computes at once: what the recipe says, at most its share of a step."""
    share = phase.batch_size // devices
    if phase.micro_batch_size is not None:
        return min(share, phase.micro_batch_size)
    whole = phase.memory(share)
    return share if whole.total <= memory else max(1, min(share, fitting_sequences(whole, round(memory), share)))


def run_cost(workload: Workload, devices: int, speeds: Speeds, memory: float, watts: float | None) -> RunCost:
    """What the run costs.

    Args:
        devices: how many; it divides the batch of every phase.
        memory: of a device, in bytes.
        watts: of a device; None: unknown.
    """
    phases = workload.phases
    at_once = [sequences_at_once(phase, devices, memory) for phase in phases]
    costs = [step_cost(workload, phase, devices, each, speeds) for phase, each in zip(phases, at_once, strict=True)]
    steps = [_steps(workload.train, phase, cost) for phase, cost in zip(phases, costs, strict=True)]
    known = [each for each in steps if each is not None]
    is_known = len(known) == len(steps)
    weights = known if is_known else [phase.share for phase in phases]
    alone = [step_cost(workload, phase, 1, sequences_at_once(phase, 1, memory), speeds).total for phase in phases]
    mean = StepCost(*(fmean(parts, weights) for parts in zip(*map(astuple, costs), strict=True)))
    seconds = sum(number * cost.total for number, cost in zip(known, costs, strict=True)) if is_known else None
    peaks = [memory_of(workload, phase, devices, each) for phase, each in zip(phases, at_once, strict=True)]
    micro_batches = [phase.batch_size / devices / each for phase, each in zip(phases, at_once, strict=True)]
    added = fmean([_added_bytes(workload, math.ceil(number)) for number in micro_batches], weights)
    return RunCost(
        devices,
        steps=sum(known) if is_known else None,
        tokens=sum(number * phase.tokens for number, phase in zip(known, phases, strict=True)) if is_known else None,
        seconds=seconds,
        energy_kwh=None if seconds is None or watts is None else devices * watts * seconds / 3.6e6,
        step=mean,
        phase_steps=tuple(costs),
        efficiency=fmean(alone, weights) / devices / mean.total,
        efficiency_hidden=fmean(alone, weights) / devices / (mean.total - mean.hideable),
        sent_bytes=sent_bytes(devices, added + _gathered_bytes(workload, devices) / 2),
        memory_bytes=max(peaks),
        sequences_at_once=at_once[peaks.index(max(peaks))],
        tokens_at_once=min(each * phase.length for each, phase in zip(at_once, phases, strict=True)),
    )


def _steps(train: TrainSettings, phase: Phase, cost: StepCost) -> float | None:
    whole = steps_of(train, phase.tokens, phase.epochs, cost.total)
    return None if whole is None else whole * phase.share


def nearest_divisor(number: int, batches: Sequence[int], most: int | None = None) -> int:
    """The divisor of all `batches`, at most `most`, that is nearest to `number`, the smaller of two equally near."""
    common = math.gcd(*batches)
    divisors = [each for each in range(1, (most or common) + 1) if common % each == 0]
    return min(divisors, key=lambda each: (abs(each - number), each))
