"""Steps that do not fit into the memory are halved with the same gradient."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from support.memory_toy import LONGEST, Sequences, Tagger
from support.tensors import assert_equal
from unmask.batch import IGNORE_INDEX, Batch, LossTerm
from unmask.errors import UserError
from unmask.training.captured.stepper import CapturedStepper
from unmask.training.device import Compute
from unmask.training.loop import Hooks, train
from unmask.training.memory import MicroBatches
from unmask.training.optimizers.adamw import AdamW
from unmask.training.optimizers.optimizer import Schedule, ScheduledOptimizer
from unmask.training.settings import ScheduleSettings, TrainSettings
from unmask.training.state import TrainState
from unmask.training.stepping.eager import EagerStepper
from unmask.training.stepping.protocol import Stepper
from unmask.training.steps import Learner

COMPUTE = Compute(torch.device("cpu"), torch.float32, "a test")
STEPPERS = ("eager", "captured")
TRIES = {"eager": 1, "captured": 2}
"""Of a step, before its micro-batches are halved: the graphs that there are are discarded, and it is tried without."""


def new_stepper(name: str, module: Any, optimizer: Any, prepares_ahead: bool) -> Stepper:
    stepper: EagerStepper | CapturedStepper
    if name == "eager":
        stepper = EagerStepper(module, optimizer, 1.0, COMPUTE)
    else:
        stepper = CapturedStepper(module, optimizer, 1.0, None, COMPUTE, module.paddings, LONGEST, False)
    stepper.prepares_ahead = prepares_ahead
    return stepper


@dataclass
class Outcome:
    losses: list[float]
    weights: list[Tensor]
    state: TrainState


def run(name: str, module: Any, source: Any, prepares_ahead: bool = False) -> Outcome:
    """Six steps by the loop."""
    settings, state, losses = TrainSettings(steps=6), TrainState(), list[float]()
    optimizer = AdamW([{"params": list(module.parameters())}], 0.01, (0.9, 0.999), 1e-6)
    learner = Learner(module, lambda batch: {"task": batch.num_tokens})
    micro_batches = MicroBatches(source, learner, COMPUTE, lambda: state.progress(settings))
    train(
        learner,
        micro_batches.steps(state),
        ScheduledOptimizer(optimizer, Schedule(ScheduleSettings(name="constant"))),
        new_stepper(name, module, optimizer, prepares_ahead),
        settings,
        state,
        Hooks(
            lambda state, result: losses.append(state.take_means()["task"]),
            before_step=lambda state, schedule: micro_batches.begin_step(),
            is_due=lambda state: state.step % 4 == 0,
            on_out_of_memory=micro_batches.halve,
        ),
    )
    return Outcome(losses, [parameter.detach().clone() for parameter in module.parameters()], state)


# At most 128 tokens of text in four sequences, which padded to a bucket are 160; of eight there are 172 at least.
FOUR_FIT = 165


@pytest.mark.parametrize("name", STEPPERS)
@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("prepares_ahead", [False, True])
def test_halved_a_run_is_that_of_small_micro_batches(
    name: str, in_backward: bool, prepares_ahead: bool, caplog: pytest.LogCaptureFixture
) -> None:
    small = run(name, Tagger(), Sequences(micro_batch_size=4))
    source, module = Sequences(), Tagger(FOUR_FIT, in_backward)
    with caplog.at_level(logging.WARNING, "unmask"):
        halved = run(name, module, source, prepares_ahead)
    assert module.num_failures == TRIES[name]
    assert source.opened == [(0, None), (0, 4 * LONGEST)]
    assert halved.losses == small.losses
    assert halved.state.position == small.state.position
    assert halved.state.tokens == small.state.tokens
    assert_equal(halved.weights, small.weights)
    assert caplog.messages == [
        "step 1 does not fit into the memory (CUDA out of memory. Tried to allocate 2.00 GiB): its micro-batches were "
        "of 8 sequences, and are of 4 from here on; the gradient is the same. Set "
        "train.micro_batch_size=4 to start with that size"
    ]


@pytest.mark.parametrize("name", STEPPERS)
def test_what_a_step_had_summed_before_it_broke_off_is_forgotten(name: str) -> None:
    """The first of its two micro-batches fits, and the second does not; the steps before it stay as they are."""
    source = Sequences(micro_batch_size=4)
    sizes = [batch.num_tokens for step in islice(source.steps(float, None, None), 6) for batch in step.batches]
    number, failing = next((place // 2, size) for place, size in enumerate(sizes) if place % 2 and place > 4)
    assert sizes.count(failing) == 1, "the batch is found by its size"

    class Breaking(Tagger):
        def forward(self, batch: Batch) -> list[LossTerm]:
            if int((batch.columns["labels"] != IGNORE_INDEX).sum()) == failing:
                self._fail()
            return super().forward(batch)

    module, reference = Breaking(), Tagger()
    halved, small = run(name, module, source, prepares_ahead=True), run(name, reference, Sequences(micro_batch_size=2))
    assert module.num_failures == TRIES[name]
    assert source.opened[-1] == (8 * number, 2 * LONGEST)
    assert halved.losses == pytest.approx(small.losses, rel=1e-5)  # steps before it were summed in another order
    torch.testing.assert_close(halved.weights, small.weights, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", STEPPERS)
def test_a_single_sequence_that_does_not_fit_ends_the_run(name: str) -> None:
    module = Tagger(10)
    with pytest.raises(UserError) as refused:
        run(name, module, Sequences())
    assert str(refused.value).startswith(
        "step 1 does not fit into the memory (CUDA out of memory. Tried to allocate 2.00 GiB), though a micro-batch is "
        "one sequence already, of 32 tokens at most, in a model of 228 parameters: take a shorter packing.max_length "
        "(it is 32) or a smaller model, or precision=bf16; "
    )
    assert module.num_failures == 4  # of 8, 4, 2 and 1


def test_without_the_hook_the_error_is_raised() -> None:
    module = Tagger(10)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(torch.OutOfMemoryError):
        train(
            Learner(module, lambda batch: {"task": batch.num_tokens}),
            Sequences().steps(float, None, None),
            ScheduledOptimizer(optimizer, Schedule(ScheduleSettings())),
            EagerStepper(module, optimizer, None, COMPUTE),
            TrainSettings(steps=1),
            TrainState(),
            Hooks(lambda state, result: None),
        )


def test_what_a_module_remembers_is_as_before_the_step() -> None:
    class Remembering(Tagger):
        """What it has read so far is part of its output; it grows, too."""

        remembered: Tensor

        def __init__(self, most_tokens: int = 10**9) -> None:
            super().__init__(most_tokens, raises_in_backward=True)
            self.register_buffer("remembered", torch.zeros(0))

        def forward(self, batch: Batch) -> list[LossTerm]:
            shown = self.embedding.detach()[batch.input_ids].sum() / 100
            self.remembered = torch.cat([self.remembered, shown[None]])
            terms = super().forward(batch)
            return [LossTerm("task", terms[0].total + self.weight.sum() * self.remembered.sum())]

    small, module = run("eager", Remembering(), Sequences(micro_batch_size=4)), Remembering(FOUR_FIT)
    halved = run("eager", module, Sequences())
    assert module.num_failures == 1
    assert halved.losses == small.losses
    assert len(module.remembered) == 12
