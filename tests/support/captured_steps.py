"""What a module promises of captured steps and of a device, whether it is an objective's or a task's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from unmask.batch import Batch
from unmask.models.buckets import Shapes, pad_batch
from unmask.training.captured.stepper import CapturedStepper
from unmask.training.device import Compute
from unmask.training.optimizers.optimizer import build_optimizer
from unmask.training.settings import OptimizerSettings
from unmask.training.stepping.choosing import why_not_padded
from unmask.training.stepping.eager import EagerStepper
from unmask.training.stepping.protocol import StepFigures

LONGEST = 32


@dataclass(frozen=True)
class Near:
    """How near captured steps come to those computed as they come, relatively; of weights, also absolutely."""

    sums: float
    norm: float
    weights: float
    weights_by: float


NEAR = {torch.float32: Near(1e-5, 1e-4, 1e-4, 1e-5), torch.bfloat16: Near(3e-2, 1e-1, 1e-1, 1e-2)}
"""fp32: the same sums in another order, some ten roundings of 6e-8; the samples of a generator are another only where
rounding moves the cumulative softmax over their numbers. AdamW divides by the root of a mean square, whose own rounding
counts where a gradient is close to 0. bf16: 8 bits, and hidden states, embeddings and LayerNorms are rounded where
autocast keeps some of them."""


def skip_unless_padded(module: Any) -> None:
    if (why_not := why_not_padded(module)) is not None:
        pytest.skip(why_not)


def assert_captured_alike(
    new_module: Callable[[], Any],
    steps: Callable[[], Iterable[Sequence[Batch]]],
    count: Callable[[Batch], dict[str, int]],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Takes steps as they come, and in padded batches of a few shapes, with two modules that are the same."""
    compute, near = Compute(torch.device("cpu"), dtype, "test"), NEAR[dtype]
    eager, padded = new_module(), new_module()
    skip_unless_padded(eager)
    settings = OptimizerSettings(learning_rate=1e-3, epsilon=1e-4)
    one, other = (build_optimizer(module.train(), settings) for module in (eager, padded))
    by_hand = EagerStepper(eager, one, 0.5, compute)
    captured = CapturedStepper(padded, other, 0.5, 1e9, compute, padded.paddings, LONGEST, compiles=False)
    found: list[list[StepFigures]] = []
    for stepper in (by_hand, captured):
        stepper.restart({})
        figures = []
        for batches in steps():
            counts = [count(batch) for batch in batches]
            stepper.launch(batches, {name: sum(each[name] for each in counts) for name in counts[0]})
            figures += stepper.read(lambda *_: True) if stepper is by_hand else []
        found.append(figures or stepper.read(lambda *_: True))
    assert len(found[0]) == 3
    for first, second in zip(*found, strict=True):
        assert first.coefficients == second.coefficients
        assert first.sums == pytest.approx(second.sums, rel=near.sums)
        assert first.gradient_norm == pytest.approx(second.gradient_norm, rel=near.norm)
    for (name, weight), its in zip(eager.named_parameters(), padded.parameters(), strict=True):
        bounds = {"rtol": near.weights, "atol": near.weights_by}
        torch.testing.assert_close(weight, its, **bounds, msg=lambda told, name=name: name + told)


def assert_filled_alike(module: Any, batch: Batch, device: torch.device) -> None:
    """Computes a batch padded to a shape, and its gradient, on a device."""
    skip_unless_padded(module)
    padded = pad_batch(batch, Shapes(module.paddings, LONGEST).choose(batch), module.paddings)
    assert_gradients(module.to(device), padded.to(device))


def assert_gradients(module: Any, batch: Batch) -> None:
    """Computes a batch and its gradient: whatever learns gets one, where the batch is."""
    torch.stack([term.total for term in module(batch)]).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    assert gradients
    assert {gradient.device for gradient in gradients} == {batch.input_ids.device}
