"""LAMB against algorithm 2 of You et al. 2020, number by number."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from support.small_bert import SIZES
from unmask.models.bert import BertEncoder
from unmask.training.optimizers.lamb import Lamb, fused_matrices
from unmask.training.optimizers.optimizer import build_optimizer
from unmask.training.settings import OptimizerSettings

RATE, BETA1, BETA2, EPSILON, DECAY = 0.1, 0.9, 0.99, 1e-6, 0.1


def norm(numbers: list[float]) -> float:
    return math.sqrt(sum(number**2 for number in numbers))


class Reference:
    """One parameter in Python's doubles."""

    def __init__(self, values: list[float], decay: float, is_scaled: bool, bias_correction: bool) -> None:
        self.values, self.decay, self.is_scaled, self.corrects = values, decay, is_scaled, bias_correction
        self.m, self.v, self.t = [0.0] * len(values), [0.0] * len(values), 0

    def step(self, gradient: list[float]) -> None:
        self.t += 1
        self.m = [BETA1 * m + (1 - BETA1) * g for m, g in zip(self.m, gradient, strict=True)]
        self.v = [BETA2 * v + (1 - BETA2) * g**2 for v, g in zip(self.v, gradient, strict=True)]
        m = [each / (1 - BETA1**self.t) if self.corrects else each for each in self.m]
        v = [each / (1 - BETA2**self.t) if self.corrects else each for each in self.v]
        update = [
            mean / (math.sqrt(square) + EPSILON) + self.decay * x
            for mean, square, x in zip(m, v, self.values, strict=True)
        ]
        ratio = norm(self.values) / norm(update) if self.is_scaled and norm(self.values) and norm(update) else 1.0
        self.values = [x - RATE * ratio * u for x, u in zip(self.values, update, strict=True)]


@pytest.mark.parametrize("bias_correction", [True, False])
def test_it_is_the_papers_algorithm(bias_correction: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes: list[tuple[tuple[int, ...], bool]] = [((3, 4), True), ((5,), True), ((2, 2), True), ((4,), False)]
    parameters = [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape, _ in shapes]
    parameters[2].data.zero_()  # a norm of 0: the ratio is 1
    groups: list[dict[str, Any]] = [
        {"params": parameters[:3], "weight_decay": DECAY, "is_weight": True},
        {"params": parameters[3:], "weight_decay": 0.0, "is_weight": False},
    ]
    optimizer = Lamb(groups, RATE, (BETA1, BETA2), EPSILON, bias_correction, {})
    expected = [
        Reference(p.flatten().tolist(), DECAY if is_scaled else 0.0, is_scaled, bias_correction)
        for p, (_, is_scaled) in zip(parameters, shapes, strict=True)
    ]
    for step in range(10):
        for place, (parameter, reference) in enumerate(zip(parameters, expected, strict=True)):
            if place == 1 and step < 4:  # its own count of steps begins later
                continue
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            reference.step(parameter.grad.flatten().tolist())
        optimizer.step()
    for parameter, reference in zip(parameters, expected, strict=True):
        # doubles on both sides: ten steps of some twenty roundings of 1e-16, and sums of twelve squares
        assert parameter.flatten().tolist() == pytest.approx(reference.values, rel=1e-12)


def test_matrices_in_one_parameter_move_as_three_parameters_would() -> None:
    """Of unlike norms, the third with no gradient at first."""
    generator = torch.Generator().manual_seed(1)
    sizes = torch.tensor([1.0, 10.0, 0.1], dtype=torch.float64)
    parts = [size * torch.randn(4, 3, generator=generator, dtype=torch.float64) for size in sizes]
    fused, other = (nn.Parameter(torch.cat(parts)) for _ in range(2))
    expected = [Reference(part.flatten().tolist(), DECAY, is_scaled=True, bias_correction=True) for part in parts]
    as_one = Reference(fused.flatten().tolist(), DECAY, is_scaled=True, bias_correction=True)
    groups = [{"params": [fused, other], "weight_decay": DECAY}]
    optimizer = Lamb(groups, RATE, (BETA1, BETA2), EPSILON, True, {fused: 3})
    for step in range(5):
        gradient = torch.randn(12, 3, generator=generator, dtype=torch.float64)
        gradient[8:] *= step
        fused.grad, other.grad = gradient.clone(), gradient.clone()
        for reference, part in zip(expected, gradient.chunk(3), strict=True):
            reference.step(part.flatten().tolist())
        as_one.step(gradient.flatten().tolist())
        optimizer.step()
    # doubles, as above
    assert fused.flatten().tolist() == pytest.approx([x for part in expected for x in part.values], rel=1e-12)
    assert other.flatten().tolist() == pytest.approx(as_one.values, rel=1e-12)
    assert not torch.allclose(fused, other, rtol=0.01)


@torch.no_grad()
def test_queries_keys_and_values_are_three_matrices_each() -> None:
    encoder = BertEncoder(SIZES)
    names = {parameter: name for name, parameter in encoder.named_parameters()}
    found = {names[parameter]: count for parameter, count in fused_matrices(encoder).items()}
    assert found == {f"blocks.{layer}.attention.query_key_value.weight": 3 for layer in (0, 1)}

    torch.manual_seed(0)
    query, key, value = encoder.blocks[0].attention.query_key_value.weight.chunk(3)
    key *= 10
    before = [matrix.clone() for matrix in (query, key, value)]
    for parameter in encoder.parameters():
        parameter.grad = torch.randn_like(parameter)
    settings = OptimizerSettings(name="lamb", learning_rate=0.01, weight_decay=0)
    build_optimizer(encoder, settings).step()
    for was, now in zip(before, (query, key, value), strict=True):
        # a matrix moves by its own norm times the rate; fp32 rounds the sums of 256 squares to some 1e-6
        assert float((now - was).norm() / was.norm()) == pytest.approx(0.01, rel=1e-4)


def test_a_gradient_of_zero_leaves_a_ratio_of_one() -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.zeros(3)
    Lamb([{"params": [parameter]}, {"params": []}], 0.1, (0.9, 0.999), 1e-6, True, {}).step()
    assert parameter.tolist() == [1, 1, 1]


def test_weights_are_scaled_and_biases_and_norms_are_not() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    optimizer = build_optimizer(module, OptimizerSettings(name="lamb", betas=(0.8, 0.9), bias_correction=False))
    assert isinstance(optimizer, Lamb)
    scaled, plain = optimizer.param_groups
    assert [id(p) for p in scaled["params"]] == [id(module[0].weight)]
    assert (scaled["is_weight"], plain["is_weight"], plain["weight_decay"]) == (True, False, 0.0)
    assert (scaled["betas"], scaled["bias_correction"], scaled["lr"]) == ((0.8, 0.9), False, 1e-4)
