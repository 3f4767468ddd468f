"""Averaged weights: the mean that the formula says, evaluated and kept, and the same after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.sessions import NUMBERED, Noting, sit
from unmask.errors import Interrupted
from unmask.training.averaging import AVERAGE, WeightAverage
from unmask.training.optimizers.adamw import AdamW, OnDevice
from unmask.training.optimizers.optimizer import build_optimizer
from unmask.training.settings import OPTIMIZERS, OptimizerSettings, ScheduleSettings

DECAY = 0.7


def mean_of(weights: list[Tensor]) -> Tensor:
    """What the docstring's formula gives, from the weights after each step."""
    shares = torch.tensor([DECAY ** (len(weights) - number) for number in range(1, len(weights) + 1)])
    return torch.einsum("n...,n->...", torch.stack(weights), shares / shares.sum())


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(3, 3)])
        self.unused = nn.Parameter(torch.ones(2))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_means_beside_every_optimizer(name: Any) -> None:
    module, plain = Layer(), Layer()
    settings = OptimizerSettings(name=name, learning_rate=0.1, weight_decay=0.0)
    optimizer, other = build_optimizer(module, settings), build_optimizer(plain, settings)
    average = WeightAverage(optimizer, DECAY)
    seen = []
    for step in range(4):
        for each, its in ((module, optimizer), (plain, other)):
            (each.blocks[0](torch.tensor([1.0, 2.0, step])).pow(2).sum()).backward()
            its.step()
            its.zero_grad()
        seen.append(module.blocks[0].weight.detach().clone())
    assert torch.equal(module.blocks[0].weight, plain.blocks[0].weight), "training is the same"
    with average.used():
        torch.testing.assert_close(module.blocks[0].weight.detach(), mean_of(seen))
        torch.testing.assert_close(module.unused.detach(), torch.ones(2))
    assert torch.equal(module.blocks[0].weight, seen[-1])


def test_what_is_trained_later_has_a_mean_of_its_own_steps() -> None:
    """As ELECTRA's discriminator, which begins after its generator with that one's weights in place of its own."""
    early, late = nn.Parameter(torch.ones(2)), nn.Parameter(torch.full((2,), 100.0))
    optimizer = torch.optim.SGD([early, late], 0.1)
    average = WeightAverage(optimizer, DECAY)
    seen: dict[nn.Parameter, list[Tensor]] = {early: [], late: []}
    for step in range(6):
        trained = early if step < 3 else late
        optimizer.zero_grad()
        if step == 3:
            late.data.copy_(early.data)
        trained.pow(2).sum().backward()
        optimizer.step()
        seen[trained].append(trained.detach().clone())
    average.use()
    for parameter, weights in seen.items():
        torch.testing.assert_close(parameter.detach(), mean_of(weights))


def test_a_captured_step_that_is_not_taken_does_not_count() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = AdamW([{"params": [weight]}], 0.1, (0.9, 0.999), 1e-8)
    WeightAverage(optimizer, DECAY)
    optimizer.on_device = OnDevice(torch.zeros(()), torch.ones(()), [torch.tensor(0.1)])
    for halted in (0.0, 1.0):
        weight.grad = torch.ones(2)
        optimizer.on_device.found_inf.fill_(halted)
        optimizer.step()
    torch.testing.assert_close(optimizer.state[weight][AVERAGE], (1 - DECAY) * weight.detach())


class NotingSteps(Noting):
    """It notes its weights after every step as well."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Tensor] = []

    def forward(self, batch: Any) -> Any:
        if int(self.seen):
            self.taken.append(self.embedding.weight.detach().clone())
        return super().forward(batch)


def run(directory: Path, stop_after: int | None = None) -> NotingSteps:
    module = NotingSteps()
    sit(
        directory,
        module,
        NUMBERED,
        {"steps": 6, "eval_every": 3, "weight_averaging": DECAY},
        stops=lambda batch: int(module.seen) + 1 == stop_after,
        evaluate=lambda: {"loss": float(module.embedding.weight.detach().sum())},
        optimizer=OptimizerSettings(learning_rate=0.1),
        schedule=ScheduleSettings(),
    )
    return module


def test_the_mean_is_evaluated_and_is_the_model(tmp_path: Path) -> None:
    module = run(tmp_path)
    torch.testing.assert_close(module.evaluated[3], mean_of(module.taken[:3]))
    assert torch.equal(module.embedding.weight, module.evaluated[6])
    assert not torch.equal(module.embedding.weight, module.taken[-1])


def test_interrupted_it_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(tmp_path / "resumed", stop_after=4)
    resumed = run(tmp_path / "resumed")
    assert torch.equal(resumed.embedding.weight, whole.embedding.weight)
