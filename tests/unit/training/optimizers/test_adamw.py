"""AdamW against PyTorch's own, against BERT's formula written out, and switched off on the device."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.tensors import assert_equal, give_gradients
from unmask.training.optimizers.adamw import AdamW, OnDevice
from unmask.training.optimizers.optimizer import clipping_divisor

RATE, BETAS, EPSILON, DECAY = 0.01, (0.9, 0.999), 1e-6, 0.1


def parameters() -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=draw)) for shape in ((4, 3), (5,), ())]


def groups(of: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": of[:1], "weight_decay": DECAY}, {"params": of[1:], "lr": RATE / 2}]


def optimizer(of: list[nn.Parameter], bias_correction: bool = True) -> AdamW:
    return AdamW(groups(of), RATE, BETAS, EPSILON, bias_correction)


def test_with_corrected_moments_it_is_that_of_pytorch() -> None:
    ours, theirs = parameters(), parameters()
    one = optimizer(ours)
    other = torch.optim.AdamW(groups(theirs), RATE, BETAS, EPSILON, weight_decay=0.0, foreach=False)
    for step in range(30):
        for of, each in ((ours, one), (theirs, other)):
            give_gradients(of, step)
            each.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)  # fp32, thirty steps of some roundings
    states = [one.state[parameter] for parameter in ours], [other.state[parameter] for parameter in theirs]
    torch.testing.assert_close(*states, rtol=1e-5, atol=1e-7)


def test_with_moments_as_they_are_it_is_that_of_berts_released_code() -> None:
    """`AdamWeightDecayOptimizer`: m and v as averages from 0, the decay added to the update before the rate."""
    ours = parameters()
    theirs = [parameter.detach().double() for parameter in ours]
    one = optimizer(ours, bias_correction=False)
    m, v = ([torch.zeros_like(value) for value in theirs] for _ in range(2))
    for step in range(30):
        give_gradients(ours, step)
        for number, (decay, rate) in enumerate(((DECAY, RATE), (0.0, RATE / 2), (0.0, RATE / 2))):
            gradient = ours[number].grad
            m[number] = 0.9 * m[number] + 0.1 * gradient
            v[number] = 0.999 * v[number] + 0.001 * gradient.double() ** 2
            update = m[number] / (v[number].sqrt() + EPSILON) + decay * theirs[number]
            theirs[number] = theirs[number] - rate * update
        one.step()
    torch.testing.assert_close([each.double() for each in ours], theirs, rtol=1e-5, atol=1e-6)  # ours in fp32
    assert all(one.state[parameter].keys() == {"exp_avg", "exp_avg_sq"} for parameter in ours)


@pytest.mark.parametrize("bias_correction", [True, False])
def test_told_of_a_fault_it_does_nothing(bias_correction: bool) -> None:
    ours = parameters()
    one = optimizer(ours, bias_correction)
    for step in range(3):
        give_gradients(ours, step)
        one.step()
    before, state = copy.deepcopy((ours, one.state_dict()["state"]))
    one.on_device = OnDevice(torch.ones(()), torch.ones(()), [torch.tensor(group["lr"]) for group in one.param_groups])
    give_gradients(ours, 3)
    for parameter in ours:
        parameter.grad.fill_(torch.nan)
    one.step()
    assert_equal(ours, before)
    assert_equal(one.state_dict()["state"], state)
    one.on_device.found_inf.zero_()
    give_gradients(ours, 3)
    one.step()
    assert not any(torch.equal(a, b) for a, b in zip(ours, before, strict=True))


@pytest.mark.parametrize("bias_correction", [True, False])
def test_scaled_gradients_and_rates_on_the_device_are_what_they_are_elsewhere(bias_correction: bool) -> None:
    ours, theirs = parameters(), parameters()
    one, other = optimizer(ours, bias_correction), optimizer(theirs, bias_correction)
    one.on_device = OnDevice(torch.zeros(()), torch.tensor(4.0), [torch.tensor(0.02), torch.tensor(0.03)])
    for group, rate in zip(other.param_groups, (0.02, 0.03), strict=True):
        group["lr"] = rate
    for step in range(5):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        for parameter in theirs:
            assert parameter.grad is not None
            parameter.grad /= 4
        one.step()
        other.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)  # the rates are rounded to fp32


@pytest.mark.parametrize("bias_correction", [True, False])
def test_gradients_far_over_the_norm_are_scaled_down_to_it(bias_correction: bool) -> None:
    """With an epsilon that outweighs the second moment: otherwise the first step is the same at every scale."""
    ours, theirs = parameters(), parameters()
    one, other = (AdamW(groups(of), RATE, BETAS, 10.0, bias_correction) for of in (ours, theirs))
    for of in (ours, theirs):
        give_gradients(of, 0)
    gradients = [[parameter.grad for parameter in of if parameter.grad is not None] for of in (ours, theirs)]
    torch._foreach_mul_(gradients[0], 100)
    norm = nn.utils.get_total_norm(gradients[0])
    torch._foreach_mul_(gradients[1], 100 * 0.5 / float(norm))
    one.grad_scale = clipping_divisor(norm, 0.5)
    one.step()
    other.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bias_correction", [True, False])
def test_what_has_no_gradient_is_left_alone(bias_correction: bool) -> None:
    ours = parameters()
    one = AdamW([*groups(ours), {"params": []}], RATE, BETAS, EPSILON, bias_correction)
    give_gradients(ours[:1], 0)
    before = ours[1].clone()
    one.step()
    assert torch.equal(ours[1], before)
    assert ours[1] not in one.state


def test_a_state_that_is_loaded_lies_where_the_parameters_are() -> None:
    """The number of steps as well: PyTorch leaves it on the CPU but for optimizers that are called fused."""
    ours = parameters()
    one = optimizer(ours)
    give_gradients(ours, 0)
    one.step()
    elsewhere = [nn.Parameter(torch.empty_like(parameter, device="meta")) for parameter in ours]
    other = optimizer(elsewhere)
    other.load_state_dict(one.state_dict())
    tensors: list[Tensor] = [value for state in other.state.values() for value in state.values()]
    assert len(tensors) == 9
    assert {tensor.device.type for tensor in tensors} == {"meta"}
