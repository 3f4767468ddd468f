"""How random weights may differ from those that papers draw, so that a small model learns sooner."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from unmask.errors import SettingsError
from unmask.models.elmo.word_softmax import WordSoftmax
from unmask.models.heads.heads import MaskedLMHead
from unmask.models.heads.span_boundary_head import SpanBoundaryHead
from unmask.models.settings import ModelSettings
from unmask.objectives.base import ObjectiveModule
from unmask.recipe.tree import PretrainRecipe

_PROJECTIONS = ("attention.output.weight", "feed_forward.down.weight")
"""The matrices in a block whose outputs are added to its input."""


def adjust_random_weights(
    module: ObjectiveModule, recipe: PretrainRecipe, count: Callable[[], NDArray[np.int64]]
) -> None:
    """Does what a recipe says of random weights; see the functions below.

    Args:
        count: returns how often each entry of the vocabulary can be a target.
    """
    if isinstance(recipe.model, ModelSettings) and recipe.model.zero_output_projections:
        zero_output_projections(module)
    if recipe.objective.output_bias == "log_frequency":
        begin_output_bias(module, count())


@torch.no_grad()
def zero_output_projections(module: nn.Module) -> None:
    """Makes every block's output its input at first, as in modded-nanogpt's speedruns and in Fixup (Zhang et al. 2019).

    Raises:
        SettingsError: the encoder has no such blocks.
    """
    projections = [weight for name, weight in module.named_parameters() if name.endswith(_PROJECTIONS)]
    if not projections:
        raise SettingsError("model.zero_output_projections: an LSTM has no such projections: leave it out")
    for weight in projections:
        weight.zero_()


@torch.no_grad()
def begin_output_bias(module: nn.Module, counts: NDArray[np.int64]) -> None:
    """Begins the bias of every output layer over the vocabulary at the entries' log frequencies, so that frequencies
    need not be learnt by the hidden states (Meister et al. 2022).

    Args:
        counts: (vocabulary,) how often each entry can be a target; each counts once more.

    Raises:
        SettingsError: no output layer has a bias.
    """
    frequencies = torch.from_numpy((counts + 1) / (counts + 1).sum()).log()
    heads = [part for part in module.modules() if isinstance(part, MaskedLMHead | SpanBoundaryHead | WordSoftmax)]
    biases = [head.bias for head in heads if head.bias is not None]
    if not biases:
        raise SettingsError(
            "objective.output_bias=log_frequency: the output layer of this model has no bias: leave it out, or set "
            "model.decoder_bias=true where the family has that"
        )
    for bias in biases:
        bias.copy_(frequencies)
