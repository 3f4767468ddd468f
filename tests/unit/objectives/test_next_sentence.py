"""Next-sentence prediction: class 0 is IsNext, as in the papers' examples and in `transformers`."""

from __future__ import annotations

import math

import pytest
import torch

from unmask.data.packing import IS_NEXT, NOT_NEXT
from unmask.objectives.next_sentence import next_sentence_scores, next_sentence_term


def test_a_hand_worked_term() -> None:
    # `She cooked pasta / It was delicious` IsNext, `She cooked pasta / He was reading` NotNext (BERT's reviews)
    labels = torch.tensor([IS_NEXT, NOT_NEXT])
    logits = torch.tensor([[math.log(3.0), 0.0], [0.0, math.log(3.0)]])  # 3 to 1 for what is right
    term = next_sentence_term(logits, labels)
    assert (term.name, term.count, term.coefficient) == ("nsp", 2, 1.0)
    assert float(term.total) == pytest.approx(2 * math.log(4 / 3), rel=1e-6)
    swapped = next_sentence_term(logits.flip(1), labels)
    assert float(swapped.total) == pytest.approx(2 * math.log(4), rel=1e-6)


def test_scores_are_sums_and_counts() -> None:
    logits = torch.tensor([[2.0, 1.0], [2.0, 1.0], [0.0, 1.0]])
    scores = next_sentence_scores(logits, torch.tensor([IS_NEXT, NOT_NEXT, NOT_NEXT]))
    total, count = scores["nsp_accuracy"]
    assert (int(total), count) == (2, 3)
    loss, count = scores["nsp_loss"]
    assert (float(loss), count) == (pytest.approx(2 * math.log1p(math.exp(-1)) + math.log1p(math.exp(1)), rel=1e-6), 3)


def test_the_loss_is_summed_in_single_precision_whatever_the_logits_are() -> None:
    logits = torch.tensor([[1.5, -0.25], [0.125, 2.0]], dtype=torch.bfloat16, requires_grad=True)
    term = next_sentence_term(logits, torch.tensor([0, 1]))
    assert term.total.dtype == torch.float32
    term.total.backward()
    assert logits.grad is not None
