"""A small BERT in pre-training, and gradients for it."""

from __future__ import annotations

import torch
from torch import nn

from support.sizes import small
from unmask.models.bert import BertEncoder
from unmask.objectives.masked_lm import MaskedLMModule
from unmask.objectives.sentence_pairs import SentencePairPart

SIZES = small(vocab=40, width=16, layers=2, heads=2, inner=24)


def new_module() -> MaskedLMModule:
    """With next-sentence prediction, and the same weights every time."""
    torch.manual_seed(0)
    return MaskedLMModule(BertEncoder(SIZES), parts=[SentencePairPart("nsp")])


def give_gradients(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
