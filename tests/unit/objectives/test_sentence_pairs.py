"""The objectives on two segments: class 0 is IsNext, or in order, as in the papers' examples and in `transformers`."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from support.sizes import tiny
from support.tensors import assert_equal
from unmask.batch import Batch, pack
from unmask.models.encoder import new_encoder
from unmask.models.heads.heads import MaskedLMHead, NextSentenceHead
from unmask.models.hub.directory import load_model, save_model
from unmask.models.kernels.cross_entropy import SummedCrossEntropy
from unmask.objectives.base import Saved
from unmask.objectives.sentence_pairs import SentencePairPart
from unmask.packing.pair_formats import IS_NEXT, NOT_NEXT
from unmask.packing.settings import LABEL_COLUMNS, SentenceQuestion


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


def three_to_one(question: SentenceQuestion) -> Batch:
    """Four pairs, three with the label 0 and one with 1."""
    return pack([[2, 5, 3]] * 4).with_columns(**{LABEL_COLUMNS[question]: torch.tensor([0, 0, 0, 1])})


@pytest.mark.parametrize("question", ["nsp", "sop"])
def test_the_more_frequent_label_is_the_floor_of_the_accuracy(question: SentenceQuestion) -> None:
    floors = SentencePairPart(question).floors(np.ones(9, dtype=np.int64), [three_to_one(question)])
    majority = {floor.name: floor.value for floor in floors}[f"{question}-majority-floor"]
    assert majority == pytest.approx(0.75)


@pytest.mark.parametrize(("question", "first"), [("nsp", "IsNext"), ("sop", "in order")])
def test_batches_are_described_by_the_share_of_label_0(question: SentenceQuestion, first: str) -> None:
    rows = SentencePairPart(question).describe_batches([three_to_one(question)])
    assert rows == [(f"pairs that are {first}", "75.0%")]


@pytest.mark.parametrize("of", ["nsp", "sop"])
@pytest.mark.parametrize("question", ["nsp", "sop"])
def test_a_head_is_restored_for_the_question_that_it_was_trained_for(
    tmp_path: Path, of: SentenceQuestion, question: SentenceQuestion
) -> None:
    sizes = tiny(20)
    encoder, trained, fresh = new_encoder(sizes, pooler=True), NextSentenceHead(sizes), NextSentenceHead(sizes)
    saved = SentencePairPart(of).saved(trained, Saved(encoder, {"masked_lm_head": MaskedLMHead(sizes)}))
    save_model(tmp_path, saved.encoder, saved.heads, extra_config=saved.extra_config)
    restored = SentencePairPart(question).restored(fresh, load_model(tmp_path), tmp_path)
    assert (restored is fresh) == (of != question)
    if of == question:
        assert_equal(dict(restored.state_dict()), dict(trained.state_dict()))
