"""A small BERT in pre-training."""

from __future__ import annotations

import torch

from support.sizes import small
from unmask.models.bert import BertEncoder
from unmask.objectives.masked_lm import MaskedLMModule
from unmask.objectives.sentence_pairs import SentencePairPart

SIZES = small(vocab=40, width=16, layers=2, heads=2, inner=24)


def new_module() -> MaskedLMModule:
    """With next-sentence prediction, and the same weights every time."""
    torch.manual_seed(0)
    return MaskedLMModule(BertEncoder(SIZES), parts=[SentencePairPart("nsp")])
