"""The weights that a run begins with: those of a model, or random ones, which may differ from those that papers draw so
that a small model learns sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from unmask.errors import SettingsError
from unmask.models.bert import BertEncoder
from unmask.models.elmo.word_softmax import WordSoftmax
from unmask.models.heads.heads import MaskedLMHead
from unmask.models.heads.span_boundary_head import SpanBoundaryHead
from unmask.models.hub.conversion import bert_as_electra, widen_vocabulary, with_dropout
from unmask.models.hub.directory import load_encoder
from unmask.models.modernbert import RESIDUAL_OUTPUTS
from unmask.models.settings import EncoderSettings, ModelSettings
from unmask.objectives.base import Objective, ObjectiveModule, fresh_module
from unmask.pretraining.start import Start, check_positions, given_dropout
from unmask.pretraining.vocabulary import new_entries
from unmask.recipe.tree import PretrainRecipe
from unmask.tokenization.opening import Tokenizer


def build_module(start: Start, objective: Objective, tokenizer: Tokenizer) -> ObjectiveModule:
    """The module to train: with random weights, or with the weights and sizes of `init_from`, and its dropout unless
    `model.*` gives another.

    Entries that the store's tokenizer has beyond those of `init_from` start as the mean of the pieces that the model's
    own tokenizer makes of them, and so do tokens that were added to that tokenizer but not to the model.

    Raises:
        SettingsError: `init_from` has another vocabulary than the store or than the tokenizer beside it, or sizes
            contradict each other.
    """
    recipe = start.recipe
    if start.source is None:
        sizes = recipe.model.resolve(tokenizer.vocab_size, tokenizer.pad_id)
        check_positions(recipe, sizes)
        return fresh_module(objective, sizes)
    dropout, name = given_dropout(recipe.model), str(recipe.init_from)
    encoder = with_dropout(load_encoder(start.source, pooler=objective.needs_pooler).encoder, dropout, name)
    pieces = new_entries(start, tokenizer)
    known, wanted = encoder.settings, start.sizes
    if isinstance(known, EncoderSettings) and isinstance(wanted, EncoderSettings):
        depth, deepen = wanted.num_hidden_layers, known.family.deepen
        if deepen is not None and depth > known.num_hidden_layers:
            encoder = resolve_name(deepen)(encoder, depth)
    if start.family != encoder.settings.family:
        assert isinstance(encoder, BertEncoder), "no other family becomes one"
        encoder = bert_as_electra(encoder)
    module = objective.build(encoder)
    objective.restore_heads(module, start.source)
    for kept in module.saved().values() if pieces else ():
        heads = [head for head in kept.all_heads if isinstance(head, MaskedLMHead | SpanBoundaryHead)]
        assert not kept.encoder.reads_words, "its words have been compared"
        widen_vocabulary(kept.encoder, heads, tokenizer.vocab_size, pieces)
    return module


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
    projections = [weight for name, weight in module.named_parameters() if name.endswith(RESIDUAL_OUTPUTS)]
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
