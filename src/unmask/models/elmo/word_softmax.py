"""The softmax over words that both directions of ELMo's language model share (Peters et al. 2018, section 3.1).

It is tied to nothing: the input is characters.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.models.elmo.settings import ElmoSettings


class WordSoftmax(nn.Module):
    """Weights and biases of words; they start as in the released code."""

    def __init__(self, settings: ElmoSettings) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(settings.vocab_size, settings.projection_size))
        self.bias = nn.Parameter(torch.zeros(settings.vocab_size))
        nn.init.normal_(self.weight, std=1 / math.sqrt(settings.projection_size))

    def forward(self, hidden: Tensor) -> Tensor:
        """(rows, vocabulary) logits of `hidden` (rows, projection)."""
        return functional.linear(hidden, self.weight, self.bias)
