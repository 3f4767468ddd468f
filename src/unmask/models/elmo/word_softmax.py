"""The softmax over words that both directions of ELMo's language model share (Peters et al. 2018, section 3.1).

It is tied to nothing: the input is characters.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from unmask.models.elmo.settings import ElmoSettings


class WordSoftmax(nn.Module):
    """Weights and biases of words; they start as in the released code."""

    def __init__(self, settings: ElmoSettings) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(settings.vocab_size, settings.projection_size))
        self.bias = nn.Parameter(torch.zeros(settings.vocab_size))
        nn.init.normal_(self.weight, std=1 / math.sqrt(settings.projection_size))
