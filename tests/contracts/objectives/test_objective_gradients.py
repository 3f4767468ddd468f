"""What every pre-training objective promises of its gradients: by micro-batches, in captured steps, and on a device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from support.captured_steps import NEAR, assert_captured_alike, assert_filled_alike, assert_gradients
from unmask.batch import Batch
from unmask.models.elmo.encoder import ElmoEncoder
from unmask.models.lstm import LstmEncoder


def gradients(case: Any, *steps: Sequence[Batch]) -> dict[str, Tensor]:
    """Of the last one of these steps, as the loop takes it, by a module that has read those before it."""
    module = case.module()
    for step in steps:
        module.zero_grad()
        counts: dict[str, int] = {}
        for batch in step:
            for name, count in case.objective.counts(batch).items():
                counts[name] = counts.get(name, 0) + count
        for batch in step:
            terms = module(batch)
            torch.stack([term.coefficient * term.total / max(1, counts[term.name]) for term in terms]).sum().backward()  # type: ignore[no-untyped-call]
    return {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """As a share of the largest gradient."""
    assert one.keys() == other.keys()
    largest = max(float(gradient.abs().max()) for gradient in one.values())
    return max(float((gradient - other[name]).abs().max()) for name, gradient in one.items()) / largest


def test_the_gradient_does_not_depend_on_the_micro_batches(case: Any) -> None:
    """Nor do the generator's samples: one is another only where rounding moves the cumulative softmax over its number,
    a chance of some 1e-7 for each of a hundred samples, and the numbers of this seed are none of those.

    The gradient is that of a second step: a stream is cut between its lanes, each of which goes on from what its own
    micro-batch has read in the first.
    """
    whole = gradients(case, *islice(case.steps(), 2))
    cut = gradients(case, *islice(case.steps(micro_batch_size=3), 2))
    # fp32: sums of a few hundred products in another order, some ten roundings of 6e-8 of the largest
    assert largest_difference(whole, cut) < 1e-6


def test_the_gradient_of_a_stream_is_of_what_its_lanes_remember(case: Any) -> None:
    first, second = islice(case.steps(), 2)
    difference = largest_difference(gradients(case, first, second), gradients(case, second))
    assert difference > 1e-3 if case.reads_on else difference == 0


def test_the_gradient_of_a_mean_of_means_would_be_seen(case: Any) -> None:
    whole = gradients(case, case.batches())
    first, *rest = case.batches(micro_batch_size=1)
    parts = [gradients(case, part) for part in ([first], rest)]
    means = {name: torch.stack([part[name] for part in parts]).mean(0) for name in whole}
    assert largest_difference(whole, means) > 1e-3


def test_only_what_is_frozen_gets_no_gradient(case: Any) -> None:
    """In each of two stages one of the two learns; elsewhere everything does."""
    module = case.module()
    learning = gradients(case, case.batches()).keys()
    frozen = {name for name, _ in module.named_parameters() if name not in learning}
    if case.stage is None:
        assert frozen == set()
    else:
        frozen_parts = (("encoder.", "discriminator_head."), ("generator.", "generator_head."))[case.stage]
        assert frozen == {name for name, _ in module.named_parameters() if name.startswith(frozen_parts)}


@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_padded_batches_and_captured_steps_change_nothing(case: Any, dtype: torch.dtype) -> None:
    """Three steps in two micro-batches each, as they come and in padded batches of one shape; dropout is off."""
    steps = list(islice(case.steps(micro_batch_size=4), 3))
    assert_captured_alike(case.module, lambda: steps, case.objective.counts, dtype)


# On a device


def test_a_batch_as_it_comes_is_computed_on_the_device_alone(case: Any, counting: torch.device) -> None:
    """No value of it is waited for, but how many targets there are."""
    if isinstance(case.module().encoder, ElmoEncoder | LstmEncoder):
        pytest.skip("PyTorch's LSTM has no meta kernel, and ELMo's waits for the number of lanes")
    assert_gradients(case.module().to(counting), case.batch().to(counting))


def test_a_filled_batch_waits_for_no_value_of_the_device(case: Any, valueless: torch.device) -> None:
    assert_filled_alike(case.module(), case.batch(), valueless)
