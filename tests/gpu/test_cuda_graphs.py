"""Steps captured as CUDA graphs, on a GPU alone: when they are, what they wait for, and the memory they hold."""

from __future__ import annotations

import gc
import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from support.captured_toy import read_all
from support.gpu_training import begin_training, count_targets, losses_of, merge, new_compute, take_steps
from unmask.batch import Batch, LossTerm
from unmask.models.buckets import Paddings
from unmask.models.trained import TrainedModule
from unmask.training.captured.cautious import CautiousStepper
from unmask.training.captured.stepper import CapturedStepper
from unmask.training.settings import TrainSettings
from unmask.training.stepping.choosing import choose_stepper, why_not_captured
from unmask.training.stepping.eager import EagerStepper

needs_gpu = pytest.mark.gpu

LONGEST = 32
"""Of the sequences of these batches."""


@needs_gpu
def test_on_a_gpu_steps_are_captured_but_not_in_fp32(masked_lm: Any) -> None:
    trained = begin_training(masked_lm, new_compute("cuda"), "captured")
    settings = TrainSettings(steps=1)
    eager = EagerStepper(trained.module, trained.optimizer, 1.0, new_compute("cuda"))
    stepper, line = choose_stepper(eager, settings, LONGEST, compiles=True)
    assert isinstance(stepper, CautiousStepper)
    assert line.startswith("steps: captured once a shape and replayed (CUDA graphs), ")
    eager.compute = new_compute("cuda", torch.float32)
    why_not = why_not_captured(eager, settings, LONGEST)
    assert why_not == "the variable-length kernel is for fp16 and bf16, not torch.float32"


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_step_that_is_launched_does_not_wait_for_the_device(masked_lm: Any) -> None:
    trained = begin_training(masked_lm, new_compute("cuda"), "captured", dropout_prob=0.1)
    take_steps(masked_lm, trained, range(12))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batches in masked_lm.steps:
            trained.stepper.launch(batches, count_targets(masked_lm, batches))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(trained.stepper.read(read_all)) == 12


@needs_gpu
def test_graphs_share_their_memory(masked_lm: Any) -> None:
    """That of the largest batch holds all others: ten more shapes need little more than their batches."""
    trained = begin_training(masked_lm, new_compute("cuda"), "captured")
    batches = [batch for step in masked_lm.steps for batch in step]
    counts = count_targets(masked_lm, batches)
    trained.stepper.launch([merge(batches * 20)], counts)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    assert isinstance(trained.stepper, CapturedStepper)
    for number in range(1, 20, 2):
        trained.stepper.launch([merge(batches * number)], counts)
    assert trained.stepper.num_graphs > 8
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < 1.2 * before + 2**26
    assert len(trained.stepper.read(read_all)) == 11


@needs_gpu
def test_a_batch_that_does_not_fit_leaves_nothing(masked_lm: Any) -> None:
    """Steps launched before it are taken, and the run continues with smaller ones."""
    huge = merge([batch for step in masked_lm.steps for batch in step] * 40)
    trained, plain = (begin_training(masked_lm, new_compute("cuda"), "captured") for _ in range(2))
    expected = take_steps(masked_lm, plain, range(4))
    first, second = masked_lm.steps[:2]
    for batches in (first, second):
        trained.stepper.launch(batches, count_targets(masked_lm, batches))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**26) / total)
    allocated = torch.cuda.memory_allocated()
    try:
        with pytest.raises(torch.OutOfMemoryError):
            trained.stepper.launch([huge], count_targets(masked_lm, [huge]))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()  # the error has held on to what was allocated
    assert torch.cuda.memory_allocated() <= allocated + 2**20
    found = take_steps(masked_lm, trained, range(2, 4))
    assert [each.sums for each in found] == [each.sums for each in expected]
    assert torch.equal(trained.weights(), plain.weights())


class Waiting(TrainedModule):
    """Asks the device for a number in each pass, which cannot be captured."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    @property
    def paddings(self) -> Paddings:
        paddings: Paddings = self.module.paddings
        return paddings

    def forward(self, batch: Batch) -> list[LossTerm]:
        terms: list[LossTerm] = self.module(batch)
        assert terms[0].total.item() >= 0
        return terms


@needs_gpu
@pytest.mark.filterwarnings("ignore")  # of PyTorch's about the capture that breaks
def test_steps_that_cannot_be_captured_are_computed_as_they_come(
    masked_lm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A capture that breaks leaves the stream, the generator and the weights as they were, and memory can be freed."""
    waiting = replace(masked_lm, build=lambda dropout_prob: Waiting(masked_lm.build(dropout_prob)))
    compute = new_compute("cuda")
    tried, plain = (begin_training(waiting, compute, kind, dropout_prob=0.1) for kind in ("cautious", "eager"))
    stream = torch.cuda.current_stream()
    with caplog.at_level(logging.WARNING, "unmask"):
        torch.manual_seed(5)
        found = take_steps(waiting, tried, range(6))
        torch.manual_seed(5)
        expected = take_steps(waiting, plain, range(6))
    assert torch.cuda.current_stream() == stream
    assert not tried.stepper.runs_ahead
    assert [
        message for message in caplog.messages if message.startswith("steps cannot be captured as CUDA graphs here")
    ]
    assert losses_of(waiting, found) == pytest.approx(losses_of(waiting, expected), rel=1e-3)  # sums in any order
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    torch.empty(2**28, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before
    good = begin_training(masked_lm, compute, "captured", dropout_prob=0.1)  # another run of this process is captured
    assert len(take_steps(masked_lm, good, range(6))) == 6
