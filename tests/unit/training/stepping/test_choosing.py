"""Which stepper is chosen, and the line that says why."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from support.captured_toy import CPU
from support.sizes import small
from unmask.models.encoder import new_encoder
from unmask.models.heads.heads import new_head
from unmask.tasks.tagging.module import TaggingModule
from unmask.training.optimizers.optimizer import build_optimizer
from unmask.training.settings import OptimizerSettings, TrainSettings
from unmask.training.stepping.choosing import choose_stepper
from unmask.training.stepping.eager import EagerStepper

SIZES = small(vocab=20, width=16, layers=2, heads=2, inner=32, positions=16)


@pytest.fixture
def eager() -> EagerStepper:
    module = TaggingModule(new_encoder(SIZES, pooler=False), new_head("token_classification", SIZES, 3))
    return EagerStepper(module, build_optimizer(module, OptimizerSettings(learning_rate=0.01)), 1.0, CPU)


def test_on_the_cpu_steps_are_computed_as_they_come(eager: EagerStepper) -> None:
    told = [
        choose_stepper(eager, TrainSettings(steps=1, **settings), 16, compiles=True)
        for settings in ({}, {"compile_blocks": True}, {"capture_steps": False})
    ]
    assert all(stepper is eager for stepper, _ in told)
    plainly, compiled, not_captured = (line for _, line in told)
    assert plainly == "steps: computed as they come (CUDA graphs are for GPUs)"
    assert "compile_blocks=true is for" in compiled
    assert not_captured.endswith("(train.capture_steps is false)")


def test_batches_of_two_directions_are_computed_as_they_come(eager: EagerStepper) -> None:
    eager.compute = replace(CPU, device=torch.device("cuda"))
    stepper, line = choose_stepper(eager, TrainSettings(steps=1), longest=None, compiles=True)
    assert stepper is eager
    assert (
        line == "steps: computed as they come (some sequences of a batch are read from left to right, others are not)"
    )
