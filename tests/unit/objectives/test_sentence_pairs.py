"""The objectives on two segments: class 0 is IsNext, or in order, as in the papers' examples and in `transformers`."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from unmask.models.kernels.cross_entropy import SummedCrossEntropy
from unmask.objectives.sentence_pairs import SentencePairPart
from unmask.packing.pair_formats import IS_NEXT, NOT_NEXT


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Of either question: their losses are alike."""
    return SentencePairPart("nsp").total(logits, labels, SummedCrossEntropy())


def test_a_hand_worked_term() -> None:
    # `She cooked pasta / It was delicious` IsNext, `She cooked pasta / He was reading` NotNext (BERT's reviews)
    labels = torch.tensor([IS_NEXT, NOT_NEXT])
    logits = torch.tensor([[math.log(3.0), 0.0], [0.0, math.log(3.0)]])  # 3 to 1 for what is right
    assert float(summed_loss(logits, labels)) == pytest.approx(2 * math.log(4 / 3), rel=1e-6)
    assert float(summed_loss(logits.flip(1), labels)) == pytest.approx(2 * math.log(4), rel=1e-6)


def test_the_loss_is_summed_in_single_precision_whatever_the_logits_are() -> None:
    logits = torch.tensor([[1.5, -0.25], [0.125, 2.0]], dtype=torch.bfloat16, requires_grad=True)
    summed = summed_loss(logits, torch.tensor([0, 1]))
    assert summed.dtype == torch.float32
    summed.backward()
    assert logits.grad is not None
