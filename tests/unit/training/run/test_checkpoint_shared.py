"""Parameters that several parts of a module share: saved once, restored shared, counted and updated once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from support.checkpoints import save_checkpoint
from support.tensors import assert_equal
from unmask.training.optimizers.optimizer import Schedule, build_optimizer, clip_gradients
from unmask.training.run.best import Best, copy_weights
from unmask.training.run.checkpoint import BEST, WEIGHTS, find_checkpoint, restore
from unmask.training.settings import OptimizerSettings, ScheduleSettings
from unmask.training.state import TrainState


class Tied(nn.Module):
    """Two parts with one embedding, a buffer that both hold, and a count that is no tensor."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2))
        self.second = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 4))
        self.second[0].weight = self.first[0].weight
        shared = torch.zeros(2)
        self.first.register_buffer("seen", shared)
        self.second.register_buffer("seen", shared)
        self.stage = 0

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor(self.stage)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.stage = int(state)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.first(ids).sum() + self.second(ids).square().sum()


class Run:
    def __init__(self, seed: int = 0) -> None:
        self.module = Tied(seed)
        self.optimizer = build_optimizer(self.module, OptimizerSettings(learning_rate=0.1))
        self.schedule = Schedule(ScheduleSettings())
        self.state = TrainState()

    def take_a_step(self) -> None:
        self.module(torch.tensor([1, 2, 2])).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.state.step += 1

    def save(self, checkpoints: Path) -> Path:
        return save_checkpoint(checkpoints, self.module, self.optimizer, self.schedule, self.state, {}, keep_last=3)

    def restore(self, checkpoints: Path) -> None:
        found = find_checkpoint(checkpoints)
        self.state = restore(found, self.module, self.optimizer, self.schedule)


def test_a_checkpoint_has_them_once_and_brings_them_back_shared(tmp_path: Path) -> None:
    run = Run()
    run.take_a_step()
    run.module.stage = 3
    directory = run.save(tmp_path)
    assert set(load_file(directory / WEIGHTS)) == {
        *("first.0.weight", "first.1.weight", "first.1.bias", "first.seen"),
        *("second.1.weight", "second.1.bias", "_extra_state"),
    }

    resumed = Run(seed=1)
    resumed.restore(tmp_path)
    assert_equal(resumed.module.state_dict(), run.module.state_dict())
    assert resumed.module.stage == 3
    assert resumed.module.second[0].weight is resumed.module.first[0].weight
    run.take_a_step()
    resumed.take_a_step()
    assert_equal(resumed.module.state_dict(), run.module.state_dict())


def test_the_best_weights_are_kept_once_and_restored_under_every_name(tmp_path: Path) -> None:
    run = Run()
    run.take_a_step()
    run.state.best = Best(1, {"loss": 1.0}, copy_weights(run.module))
    weights = run.state.best.weights
    assert weights.keys() == run.module.state_dict().keys()
    assert weights["first.0.weight"] is weights["second.0.weight"]
    before = {name: tensor.clone() for name, tensor in weights.items()}
    run.take_a_step()
    assert all(torch.equal(weights[name], tensor) for name, tensor in before.items())  # a copy
    directory = run.save(tmp_path)
    assert "second.0.weight" not in load_file(directory / BEST)

    resumed = Run(seed=1)
    resumed.restore(tmp_path)
    resumed.module.load_state_dict(resumed.state.best.weights)
    run.module.load_state_dict(weights)
    assert_equal(resumed.module.state_dict(), run.module.state_dict())
    again = resumed.save(tmp_path)
    assert set(load_file(again / BEST)) == set(load_file(directory / BEST))


def test_equal_parameters_that_are_not_shared_are_both_kept(tmp_path: Path) -> None:
    run = Run()
    run.module.second[0].weight = nn.Parameter(run.module.first[0].weight.detach().clone())
    weights = load_file(run.save(tmp_path) / WEIGHTS)
    assert torch.equal(weights["first.0.weight"], weights["second.0.weight"])


@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_the_optimizer_has_them_once(layer_decay: float) -> None:
    module = Tied()
    module.encoder = nn.Module()
    module.encoder.blocks = nn.ModuleList([module.first])
    optimizer = build_optimizer(module, OptimizerSettings(layer_decay=layer_decay))
    ids = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert len(ids) == len(set(ids)) == 5


def test_clipping_counts_their_gradient_once() -> None:
    module = Tied()
    module(torch.tensor([1, 2])).backward()
    gradients = {id(p): p.grad for p in module.parameters()}
    expected = torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum().sqrt()
    assert float(clip_gradients(module, None)) == pytest.approx(float(expected), rel=1e-6)  # ten roundings of fp32
