"""Draws from a softmax: by hand, by their distribution, at the edges."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import chisquare

from unmask.chance import uniform
from unmask.objectives.masks.drawing import sample_from_softmax


def test_the_cumulative_softmax_is_inverted() -> None:
    logits = torch.tensor([0.5, 0.25, 0.25]).log().expand(7, 3)
    uniforms = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76, 0.99, 1 - 2.0**-53], dtype=torch.float64)
    assert sample_from_softmax(logits, uniforms).tolist() == [0, 0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_has_no_probability_is_never_drawn(dtype: torch.dtype) -> None:
    logits = torch.tensor([-1e9, 2.0, -1e9, 1.0, -1e9], dtype=dtype).expand(3, 5)
    uniforms = torch.tensor([0.0, 0.8, 1 - 2.0**-53], dtype=torch.float64)
    assert sample_from_softmax(logits, uniforms).tolist() == [1, 3, 3]


def test_sums_that_end_below_one_leave_nothing_to_a_class_without_probability() -> None:
    """The probabilities of so many classes add up to 1 but for rounding."""
    logits = torch.randn(64, 32_768, generator=torch.Generator().manual_seed(0))
    logits[:, -1] = -math.inf
    sums = torch.softmax(logits, -1).cumsum(-1)[:, -1]
    assert (sums < 1).any()
    drawn = sample_from_softmax(logits, torch.full((64,), 1 - 2.0**-24))
    assert (drawn < 32_767).all()


def test_draws_follow_the_softmax_and_are_not_the_likeliest_class() -> None:
    number, num_classes = 20_000, 11
    row = torch.randn(num_classes, generator=torch.Generator().manual_seed(0)) * 1.5
    uniforms = uniform(torch.zeros(number, dtype=torch.int64), torch.arange(number), stream=7)
    drawn = sample_from_softmax(row.expand(number, num_classes), uniforms)
    counts = torch.bincount(drawn, minlength=num_classes)
    expected = torch.softmax(row.double(), 0) * number
    # The draws are fixed; right ones would be under 0.001 once in a thousand choices of them, wrong ones are far below.
    assert chisquare(counts.numpy(), expected.numpy()).pvalue > 0.001
    tempered = torch.softmax(row.double() / 1.1, 0) * number
    assert chisquare(counts.numpy(), tempered.numpy()).pvalue < 1e-9
    assert counts.max() < 0.9 * number


def test_rows_do_not_depend_on_one_another() -> None:
    """The rows are taken in groups: a batch of many gives what each row gives alone."""
    generator = torch.Generator().manual_seed(1)
    logits, uniforms = torch.randn(70, 300, generator=generator), torch.rand(70, generator=generator)
    together = sample_from_softmax(logits, uniforms)
    alone = [sample_from_softmax(logits[row : row + 1], uniforms[row : row + 1]) for row in range(70)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("spoiling", [math.nan, math.inf, -math.inf])
def test_a_diverged_row_still_gets_a_class_and_leaves_the_others_alone(spoiling: float) -> None:
    logits = torch.tensor([0.5, 0.25, 0.25]).log().repeat(3, 1)
    logits[1] = spoiling
    drawn = sample_from_softmax(logits, torch.tensor([0.6, 0.6, 0.9]))
    assert (drawn[0], drawn[2]) == (1, 2)
    assert 0 <= drawn[1] < 3


def test_no_rows_and_no_gradient() -> None:
    assert sample_from_softmax(torch.zeros(0, 5), torch.zeros(0)).shape == (0,)
    logits = torch.zeros(2, 5, requires_grad=True)
    assert not sample_from_softmax(logits, torch.zeros(2)).requires_grad
