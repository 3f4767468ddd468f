"""The objectives on two segments: class 0 is IsNext, or in order, as in the papers' examples and in `transformers`."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from unmask.models.kernels.cross_entropy import SummedCrossEntropy
from unmask.objectives.masked_lm import scores_of
from unmask.objectives.sentence_pairs import SentencePairPart
from unmask.packing.pair_formats import IS_NEXT, NOT_NEXT
from unmask.packing.settings import SentenceQuestion

BOTH = pytest.mark.parametrize("name", ["nsp", "sop"])


def summed_loss(name: SentenceQuestion, logits: Tensor, labels: Tensor) -> Tensor:
    return SentencePairPart(name).total(logits, labels, SummedCrossEntropy())


@BOTH
def test_a_hand_worked_term(name: SentenceQuestion) -> None:
    # `She cooked pasta / It was delicious` IsNext, `She cooked pasta / He was reading` NotNext (BERT's reviews)
    labels = torch.tensor([IS_NEXT, NOT_NEXT])
    logits = torch.tensor([[math.log(3.0), 0.0], [0.0, math.log(3.0)]])  # 3 to 1 for what is right
    assert float(summed_loss(name, logits, labels)) == pytest.approx(2 * math.log(4 / 3), rel=1e-6)
    assert float(summed_loss(name, logits.flip(1), labels)) == pytest.approx(2 * math.log(4), rel=1e-6)


@BOTH
def test_loss_and_gradient_are_those_of_the_formula(name: SentenceQuestion) -> None:
    """The sum of -log p(label), p the softmax of two logits; its gradient is p less one at the label."""
    torch.manual_seed(0)
    logits = torch.randn(7, 2, dtype=torch.float64)
    labels = [0, 1, 1, 0, 1, 0, 0]
    expected, gradients = 0.0, []
    for (zero, one), label in zip(logits.tolist(), labels, strict=True):
        total = math.exp(zero) + math.exp(one)
        shares = [math.exp(zero) / total, math.exp(one) / total]
        expected -= math.log(shares[label])
        gradients.append([share - (place == label) for place, share in enumerate(shares)])
    ours = logits.float().requires_grad_()
    summed = summed_loss(name, ours, torch.tensor(labels))
    summed.backward()
    assert float(summed.detach()) == pytest.approx(expected, rel=1e-6)  # a few roundings of fp32
    assert ours.grad is not None
    torch.testing.assert_close(ours.grad, torch.tensor(gradients), rtol=1e-5, atol=1e-6)


@BOTH
def test_scores_are_sums_and_counts(name: SentenceQuestion) -> None:
    logits = torch.tensor([[2.0, 1.0], [2.0, 1.0], [0.0, 1.0]])
    labels = torch.tensor([IS_NEXT, NOT_NEXT, NOT_NEXT])
    scores = scores_of(name, summed_loss(name, logits, labels), logits, labels)
    total, count = scores[f"{name}_accuracy"]
    assert (int(total), count) == (2, 3)
    loss, count = scores[f"{name}_loss"]
    assert (float(loss), count) == (pytest.approx(2 * math.log1p(math.exp(-1)) + math.log1p(math.exp(1)), rel=1e-6), 3)


def test_the_loss_is_summed_in_single_precision_whatever_the_logits_are() -> None:
    logits = torch.tensor([[1.5, -0.25], [0.125, 2.0]], dtype=torch.bfloat16, requires_grad=True)
    summed = summed_loss("nsp", logits, torch.tensor([0, 1]))
    assert summed.dtype == torch.float32
    summed.backward()
    assert logits.grad is not None
