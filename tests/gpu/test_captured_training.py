"""Captured steps of real models in bfloat16 compute the same as ever: losses, chance, compiled blocks.

What does not need a GPU runs on the CPU as well with `--run-slow`: nothing is captured and the same is computed. On a
GPU steps are captured as CUDA graphs: `pytest -m gpu` takes some two minutes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.captured_toy import read_all
from support.gpu_training import (
    OBJECTIVE_VARIANTS,
    TASKS,
    begin_training,
    count_targets,
    losses_of,
    merge,
    new_compute,
    take_steps,
    work_of_objective,
)
from unmask.training.captured.stepper import CapturedStepper

SLOW_ON_THE_CPU = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]
)


def steps_on(device: str, number: int) -> int:
    """So many on a GPU; half on the CPU, which is slow in bf16 and captures nothing that later steps replay."""
    return number if device == "cuda" else number // 2


# The same as ever


@pytest.mark.parametrize(
    ("work", "device"),
    [
        *(pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in (*OBJECTIVE_VARIANTS, *TASKS)),
        ("ModernBERT by Muon", "cpu"),  # tests/contracts has the others
    ],
    indirect=["work"],
)
def test_steps_are_those_computed_as_they_come(work: Any, device: str) -> None:
    """Steps in bf16, dropout off, beside autocast: 1e-2 of each loss, some roundings of 2^-8 through two layers.

    Terms alone are within 2e-2, and the norm of the gradient, each part of which is rounded by itself, within 5e-2.
    """
    compute = new_compute(device)
    eager, captured = begin_training(work, compute, "eager"), begin_training(work, compute, "captured")
    number = steps_on(device, 6)
    one, other = (take_steps(work, each, range(number)) for each in (eager, captured))
    assert losses_of(work, one) == pytest.approx(losses_of(work, other), rel=1e-2)
    for first, second in zip(one, other, strict=True):
        assert first.coefficients == second.coefficients
        assert first.sums == pytest.approx(second.sums, rel=2e-2)
        assert first.gradient_norm == pytest.approx(second.gradient_norm, rel=5e-2)
    assert {parameter.dtype for parameter in captured.module.parameters()} == {torch.float32}
    # a step is 1e-3 at most, whatever the gradient: after six of them, those that are rounded to the other side of 0
    torch.testing.assert_close(eager.weights(), captured.weights(), rtol=0, atol=1.3e-2)


@SLOW_ON_THE_CPU
def test_a_curve_of_200_steps_ends_where_that_of_fp32_does(store: Path, device: str) -> None:
    """The mean of the last fifty losses is within half a per cent of fp32's, and of autocast's."""
    small = work_of_objective("masked LM and NSP", store, batch_size=4)
    bf16, fp32 = new_compute(device), new_compute(device, torch.float32)
    ends = []
    for compute, kind in ((fp32, "eager"), (bf16, "eager"), (bf16, "captured")):
        curve = losses_of(small, take_steps(small, begin_training(small, compute, kind), range(200)))
        assert sum(curve[-50:]) < 0.9 * sum(curve[:50])  # it learns
        ends.append(sum(curve[-50:]) / 50)
    assert ends == pytest.approx([ends[0]] * 3, rel=5e-3)


# Chance


@SLOW_ON_THE_CPU
def test_every_step_draws_new_dropout_and_the_same_after_the_generator_is_put_back(masked_lm: Any, device: str) -> None:
    def state() -> Tensor:
        return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()

    def put_back(random: Tensor) -> None:
        torch.cuda.set_rng_state(random) if device == "cuda" else torch.set_rng_state(random)

    trained = begin_training(masked_lm, new_compute(device), "captured", dropout_prob=0.3)
    for group in trained.optimizer.param_groups:
        group["lr"] = 0.0  # so that dropout is all that differs
    begins = state()
    first, second = take_steps(masked_lm, trained, iter([0, 0]))
    assert first.sums != second.sums
    put_back(begins)
    assert take_steps(masked_lm, trained, iter([0, 0])) == [first, second]
    take_steps(masked_lm, trained, range(3))  # other shapes have been captured since
    put_back(begins)
    assert take_steps(masked_lm, trained, iter([0, 0])) == [first, second]


@SLOW_ON_THE_CPU
def test_a_run_that_continues_is_bit_for_bit_one_that_never_stopped(masked_lm: Any, device: str) -> None:
    """With dropout; the one that continues has seen none of the shapes before."""
    compute = new_compute(device)
    whole = begin_training(masked_lm, compute, "captured", dropout_prob=0.1)
    first, last = steps_on(device, 5), steps_on(device, 15)
    take_steps(masked_lm, whole, range(first))
    weights = {name: value.clone() for name, value in whole.module.state_dict().items()}
    kept = whole.optimizer.state_dict()
    states = {number: {name: v.cpu().clone() for name, v in state.items()} for number, state in kept["state"].items()}
    random = torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()
    figures = take_steps(masked_lm, whole, range(first, last))
    second = begin_training(masked_lm, compute, "captured", dropout_prob=0.1, seed=77)
    second.module.load_state_dict(weights)
    second.optimizer.load_state_dict({"state": states, "param_groups": second.optimizer.state_dict()["param_groups"]})
    torch.cuda.set_rng_state(random) if device == "cuda" else torch.set_rng_state(random)
    second.stepper.restart({})
    assert take_steps(masked_lm, second, range(first, last)) == figures
    assert torch.equal(whole.weights(), second.weights())


# Compiled


@SLOW_ON_THE_CPU
@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler about itself
def test_compiled_blocks_compute_the_same_and_are_compiled_once(masked_lm: Any, device: str) -> None:
    """On the CPU in fp32: 1e-4 of each loss; on a GPU in bf16. Numbers of tokens, sequences and targets that have not
    been there before compile nothing once two shapes have been seen."""
    from torch._dynamo.utils import counters

    compute = new_compute(device, torch.bfloat16 if device == "cuda" else torch.float32)
    plain = begin_training(masked_lm, compute, "captured")
    compiled = begin_training(masked_lm, compute, "captured", compiles=True)
    expected, found = (losses_of(masked_lm, take_steps(masked_lm, each, range(3))) for each in (plain, compiled))
    assert found == pytest.approx(expected, rel=1e-2 if device == "cuda" else 1e-4)
    programs = counters["stats"]["unique_graphs"]
    assert programs > 0
    long = [batch for step in masked_lm.steps for batch in step]
    others = [[batch] for batch in long[:4]] + [[merge(long[:number])] for number in (3, 5)]
    assert isinstance(compiled.stepper, CapturedStepper)
    before = compiled.stepper.num_graphs
    for batches in others:
        compiled.stepper.launch(batches, count_targets(masked_lm, batches))
        plain.stepper.launch(batches, count_targets(masked_lm, batches))
    found, expected = ([figures.gradient_norm for figures in each.stepper.read(read_all)] for each in (compiled, plain))
    assert found == pytest.approx(expected, rel=5e-2 if device == "cuda" else 1e-3)
    assert compiled.stepper.num_graphs > before
    assert counters["stats"]["unique_graphs"] == programs
