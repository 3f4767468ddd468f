"""The small parts of an encoder on packed tokens: activations, initialisation, embeddings, feed-forward.

Devlin et al. 2019, section 3, and Vaswani et al. 2017, section 3.3. Weights start from the normal distribution cut at
two standard deviations, as in Google's BERT code (`transformers` uses the uncut one); biases from 0, LayerNorm from 1
and 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.batch import Batch
from unmask.models.dropout import dropout
from unmask.models.family import Activation
from unmask.models.kernels.products import Linear, activated, to_autocast
from unmask.models.settings import EncoderSettings

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "swish": functional.silu,
    "mish": functional.mish,
    "tanh": torch.tanh,
}


def initialise(module: nn.Module, initializer_range: float) -> None:
    """Gives fresh weights to every Linear, Embedding and LayerNorm in `module`, from PyTorch's default generator."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            draw_truncated_normal(part.weight, initializer_range)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


@torch.no_grad()
def draw_truncated_normal(weight: Tensor, std: float) -> None:
    """Normal values, drawn again while any is more than two standard deviations from zero.

    `nn.init.trunc_normal_` gives other values for the same seed from one version of PyTorch to the next.
    """
    if weight.is_meta:
        return
    weight.normal_(0, std)
    while bool((is_outside := weight.abs() > 2 * std).any()):
        weight.copy_(torch.where(is_outside, torch.empty_like(weight).normal_(0, std), weight))


class Embeddings(nn.Module):
    """Word, position and segment embeddings: summed, normalised, dropped out (section 3, figure 2)."""

    def __init__(self, settings: EncoderSettings, width: int) -> None:
        super().__init__()
        self.word = new_embedding(settings.vocab_size, width, settings.pad_token_id)
        self.position = new_embedding(settings.max_position_embeddings, width)
        self.token_type = new_embedding(settings.type_vocab_size, width)
        self.norm = nn.LayerNorm(width, settings.layer_norm_eps)
        self.dropout_prob = settings.hidden_dropout_prob
        self.first_position = settings.first_position

    def forward(self, batch: Batch) -> Tensor:
        """The first hidden states, (tokens, width).

        Under autocast they have autocast's precision. On a CPU so do all hidden states after them, with no casts
        between the layers; on a GPU autocast makes the outputs of a LayerNorm float32, except in captured steps, which
        do not use autocast. LayerNorm computes in fp32 whatever it is given.
        """
        positions = batch.position_ids + self.first_position if self.first_position else batch.position_ids
        summed = self.word(batch.input_ids) + self.token_type(batch.token_type_ids) + self.position(positions)
        return dropout(to_autocast(self.norm(summed)), self.dropout_prob, self.training)


def new_embedding(num_entries: int, hidden_size: int, padding_idx: int | None = None) -> nn.Embedding:
    """An embedding whose weights `initialise` draws. PyTorch's own would draw them too, and on the meta device, where
    models are built whose weights come from a file, that draw alone spends a second on imports."""
    weight = torch.empty(num_entries, hidden_size)
    embedding: nn.Embedding = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
        weight, freeze=False, padding_idx=padding_idx
    )
    return embedding


class FeedForward(nn.Module):
    """Two linear layers with the activation between, on each token by itself (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: Activation) -> None:
        super().__init__()
        self.up = Linear(hidden_size, intermediate_size)
        self.down = Linear(intermediate_size, hidden_size)
        self.activation = ACTIVATIONS[activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """down(activation(up(hidden))), (rows, hidden)."""
        output: Tensor = self.down(activated(self.up, hidden, self.activation))
        return output


def check_lengths(batch: Batch, settings: EncoderSettings) -> None:
    """Asserts that no sequence is longer than the positions: longer texts are cut or refused where they are read."""
    longest, limit = batch.max_length, settings.num_positions
    assert longest <= limit, f"a sequence of {longest} tokens, and {limit} positions"
