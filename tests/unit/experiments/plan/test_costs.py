"""The cost of a run by hand, and against a ring of devices that really pass their gradients on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.doctor.recipe.estimates import MemoryEstimate
from unmask.experiments.plan.costs import (
    EqualMatrices,
    Phase,
    Speeds,
    Workload,
    nearest_divisor,
    reduce_seconds,
    run_cost,
    sent_bytes,
    sequences_at_once,
    step_cost,
)
from unmask.training.settings import TrainSettings

GIB = 2**30


def memory(sequences: int) -> MemoryEstimate:
    """Ten GiB, and half of one for each sequence."""
    return MemoryEstimate(
        2 * GIB, 2 * GIB, 4 * GIB, 2 * GIB, activations=sequences * GIB // 4, logits=sequences * GIB // 4
    )


PHASE = Phase(
    share=1.0,
    max_length=100,
    batch_size=1024,
    micro_batch_size=32,
    length=100.0,
    operations=6e9,
    epochs=None,
    memory=memory,
)
WORKLOAD = Workload(
    name="by hand",
    precision="bf16",
    train=TrainSettings(steps=1000, batch_size=1024),
    num_parameters=1_000_000_000,
    embeddings=250_000_000,
    update_bytes=28e9,
    matrices=(EqualMatrices(count=10, operations=2e11, size=50_000_000),),
    disk_bytes=0,
    phases=(PHASE,),
)
SPEEDS = Speeds(operations=100e12, products=200e12, bandwidth=1e12, inside=100e9, across=50e9, per_node=8)


def test_a_step_on_one_device() -> None:
    """1,024 sequences of 100 tokens are 6.144e14 FLOP; the update reads 28 GB and multiplies for .01 s."""
    cost = step_cost(WORKLOAD, PHASE, 1, 32, SPEEDS)
    assert cost.computing == pytest.approx(6.144)
    assert cost.updating == pytest.approx(0.028 + 0.01)
    assert (cost.reducing, cost.hideable) == (0, 0)
    assert cost.total == pytest.approx(6.182)


def test_a_step_in_one_node() -> None:
    """Each of eight sends 7 GB of 4 GB of gradients, .07 s. They take four micro-batches, so that .128 s of the last
    one's backward pass could hide all but the quarter that belongs to the embeddings. Of ten matrices each multiplies
    two, for .002 s, and 16 places of 50 MB are gathered in .007 s."""
    cost = step_cost(WORKLOAD, PHASE, 8, 32, SPEEDS)
    assert cost.computing == pytest.approx(0.768)
    assert cost.reducing == pytest.approx(0.07 + 0.007)
    assert cost.updating == pytest.approx(0.028 + 0.002)
    assert cost.hideable == pytest.approx(0.0525)
    assert cost.total == pytest.approx(0.768 + 0.077 + 0.03)


def test_a_step_on_two_nodes() -> None:
    """.07 s inside the nodes, and 4 GB over the link between them, .08 s; for 16 places of 50 MB a tenth as long."""
    assert step_cost(WORKLOAD, PHASE, 16, 32, SPEEDS).reducing == pytest.approx(0.15 * 1.1)


def test_no_more_is_hidden_than_the_backward_pass_takes() -> None:
    """512 devices compute for .012 s, of which .008 s are the backward pass; 64 nodes of 8 add up in .07 + .1575 s."""
    cost = step_cost(replace(WORKLOAD, matrices=()), PHASE, 512, 2, SPEEDS)
    assert cost.reducing == pytest.approx(0.07 + 2 * 63 / 64 * 4e9 / 50e9)
    assert cost.hideable == pytest.approx(0.008)


def test_a_run() -> None:
    cost = run_cost(WORKLOAD, 8, SPEEDS, memory=80e9, watts=500)
    step_s = 0.768 + 0.077 + 0.03
    assert (cost.steps, cost.tokens) == (1000, pytest.approx(102.4e6))
    assert cost.seconds == pytest.approx(1000 * step_s)
    assert cost.energy_kwh == pytest.approx(8 * 500 * 1000 * step_s / 3.6e6)
    assert cost.efficiency == pytest.approx(6.182 / 8 / step_s)
    assert cost.efficiency_hidden == pytest.approx(6.182 / 8 / (step_s - 0.0525))
    assert cost.sent_bytes == pytest.approx(7e9 + 7 / 8 * 0.8e9)
    assert cost.memory_bytes == 26 * GIB + 4_000_000_000  # 32 sequences, and the buckets that gradients are sent in
    assert cost.sequences_at_once == 32
    assert run_cost(WORKLOAD, 1, SPEEDS, 80e9, None).memory_bytes == 26 * GIB
    assert run_cost(WORKLOAD, 1, SPEEDS, 80e9, None).energy_kwh is None


def test_a_divided_run() -> None:
    """Of eight devices each holds an eighth of 10 GiB, and the embeddings with their gradient. In three micro-batches
    (of 56, 56 and 16 sequences) it gathers 4 GB of weights twice and sends as many gradients once: 1.5 times what one
    sum takes, each time."""
    whole = replace(WORKLOAD, matrices=(), phases=(replace(PHASE, micro_batch_size=56),))
    divided = replace(whole, train=WORKLOAD.train.model_copy(update={"shard": True}))
    before, after = (run_cost(each, 8, SPEEDS, memory=80e9, watts=None) for each in (whole, divided))
    assert after.memory_bytes == 10 * GIB / 8 + 8 * 250_000_000 + 28 * GIB
    assert after.sent_bytes == pytest.approx(3 * 1.5 * before.sent_bytes)
    assert after.step.reducing == pytest.approx(3 * 1.5 * before.step.reducing)
    assert after.step.updating == pytest.approx(before.step.updating / 8)
    assert run_cost(divided, 1, SPEEDS, 80e9, None) == run_cost(whole, 1, SPEEDS, 80e9, None)


def test_phases_share_the_budget() -> None:
    """Of 1,000 steps the last tenth takes twice as long. It has the peak; the fewest tokens are those of the first."""
    phases = (replace(PHASE, share=0.9), replace(PHASE, share=0.1, length=200.0, micro_batch_size=64))
    cost = run_cost(replace(WORKLOAD, phases=phases), 1, SPEEDS, 80e9, None)
    assert cost.seconds == pytest.approx(900 * 6.182 + 100 * (2 * 6.144 + 0.038))
    assert cost.tokens == pytest.approx(900 * 102_400 + 100 * 204_800)
    assert cost.step.total == pytest.approx(cost.seconds / 1000)
    assert cost.efficiency == pytest.approx(1)
    assert (cost.sequences_at_once, cost.tokens_at_once) == (64, 3200)


def test_budgets() -> None:
    tokens = replace(WORKLOAD, train=TrainSettings(tokens=1_024_000, batch_size=1024))
    assert run_cost(tokens, 1, SPEEDS, 80e9, None).steps == pytest.approx(10)
    minutes = replace(WORKLOAD, train=TrainSettings(minutes=5, batch_size=1024))
    assert run_cost(minutes, 8, SPEEDS, 80e9, None).seconds == pytest.approx(300)
    epochs = replace(WORKLOAD, train=TrainSettings(epochs=2, batch_size=1024))
    unknown = run_cost(epochs, 1, SPEEDS, 80e9, 500)
    assert (unknown.steps, unknown.tokens, unknown.seconds, unknown.energy_kwh) == (None, None, None, None)
    assert unknown.step.total == pytest.approx(6.182)
    known = replace(epochs, phases=(replace(PHASE, epochs=0.01),))
    assert run_cost(known, 1, SPEEDS, 80e9, None).steps == pytest.approx(200)


def test_sequences_at_once() -> None:
    assert sequences_at_once(PHASE, 64, 80e9) == 16, "a device's share of the batch"
    fitted = replace(PHASE, micro_batch_size=None)
    assert sequences_at_once(fitted, 64, 80e9) == 16
    assert sequences_at_once(fitted, 1, 20 * GIB) == 16, ".8 of the ten GiB that are free, at half of one each"


@given(devices=st.integers(1, 9), chunk=st.integers(1, 4))
def test_a_ring_sends_as_much_as_told(devices: int, chunk: int) -> None:
    """Devices in a ring, each with a vector of its own: in N - 1 rounds of sums and N - 1 of results every one sends
    a chunk a round."""
    values = np.arange(devices * devices * chunk, dtype=float).reshape(devices, devices, chunk)
    held, sent = values.copy(), 0
    for number in range(2 * (devices - 1)):
        messages = [(rank, (rank - number) % devices) for rank in range(devices)]
        passed = [held[rank, part].copy() for rank, part in messages]
        for (rank, part), message in zip(messages, passed, strict=True):
            after = (rank + 1) % devices
            held[after, part] = held[after, part] + message if number < devices - 1 else message
        sent += passed[0].nbytes
    assert np.array_equal(held, np.broadcast_to(values.sum(0), held.shape))
    assert sent == pytest.approx(sent_bytes(devices, values[0].nbytes))


@given(devices=st.integers(1, 512))
def test_more_devices_never_add_up_sooner(devices: int) -> None:
    speeds = replace(SPEEDS, per_node=1)
    assert reduce_seconds(devices, 1e9, speeds) <= reduce_seconds(devices + 1, 1e9, speeds)


@pytest.mark.parametrize(
    ("number", "batches", "nearest"),
    [(8, [256], 8), (512, [256], 256), (6, [256], 4), (7, [256], 8), (64, [512, 256, 96], 32), (5, [7], 7)],
)
def test_the_nearest_number_of_devices(number: int, batches: list[int], nearest: int) -> None:
    assert nearest_divisor(number, batches) == nearest
