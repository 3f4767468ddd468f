"""The LSTM that replaces the Transformer in GPT-1's ablation (Radford et al. 2018, section 5, table 5).

The paper says only "a single layer 2048 unit LSTM", and its code was not released. Chosen here: word embeddings as wide
as GPT-1's (768), the LSTM with 2,048 units, and a linear projection of its output back to that width, so that the word
embeddings are the decoder, as in GPT-1; with as many units as that, there is no projection. Everything else that a task
or an objective needs of an encoder is as in GPT-1: the last token represents a sequence, there are no segments and no
pooler. There are no positions either. The LSTM's weights start as PyTorch starts them. `transformers` has no such
model: its directories are in a layout of our own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.batch import Batch
from unmask.models.dropout import dropout
from unmask.models.encoder import TokenEncoder
from unmask.models.gpt1 import Gpt1Embeddings
from unmask.models.kernels.lstm_sequences import read_sequences
from unmask.models.kernels.products import Linear, to_autocast
from unmask.models.layers import check_lengths, initialise
from unmask.models.settings import EncoderSettings


class LstmLayer(nn.Module):
    """An LSTM that reads each sequence from its beginning, and the projection of its output.

    The recurrence computes in float32 whatever the precision of the run: PyTorch's would carry its state in that too.
    """

    def __init__(self, hidden_size: int, num_units: int, dropout_prob: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(hidden_size, num_units)
        self.projection = Linear(num_units, hidden_size) if num_units != hidden_size else None
        self.dropout_prob = dropout_prob

    def forward(self, hidden: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """(tokens, hidden) from the same shape, packed."""
        with torch.autocast(hidden.device.type, enabled=False):
            states = read_sequences(self.lstm, hidden.float(), lengths)  # (tokens, units)
        states = to_autocast(states)
        output = states if self.projection is None else self.projection(states)
        return dropout(output, self.dropout_prob, self.training)


class LstmEncoder(TokenEncoder):
    """Embeddings and stacked LSTMs of `intermediate_size` units; `token_type_ids` and `position_ids` of a batch are
    ignored."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        self.embeddings = Gpt1Embeddings(settings)
        self.blocks = nn.ModuleList(
            LstmLayer(settings.hidden_size, settings.intermediate_size, settings.hidden_dropout_prob)
            for _ in range(settings.num_hidden_layers)
        )
        initialise(self, settings.initializer_range)

    def forward(self, batch: Batch, wanted: Tensor | None = None) -> Tensor:
        """The last hidden states, as `TokenEncoder.forward`."""
        hidden = self.hidden_states(batch)[-1]
        return hidden if wanted is None else hidden[wanted]

    def hidden_states(self, batch: Batch) -> list[Tensor]:
        """The embeddings' output, then each layer's; each (tokens, hidden)."""
        check_lengths(batch, self.settings)
        states = [self.embeddings(batch)]
        for layer in self.blocks:
            states.append(layer(states[-1], batch.lengths))
        return states
