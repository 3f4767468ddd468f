"""GPT-1's encoder on packed batches (Radford et al. 2018, sections 3.1 and 4.1): a causal Transformer.

It differs from BERT's: every token sees only itself and those before it, the embeddings are those of words and
positions only, without segments or normalisation, and there is no pooler. Blocks are post-norm, as in BERT.
"""

from __future__ import annotations

from torch import Tensor, nn

from unmask.batch import Batch
from unmask.models.dropout import dropout
from unmask.models.encoder import TokenEncoder
from unmask.models.kernels.products import to_autocast
from unmask.models.layers import initialise, new_embedding
from unmask.models.settings import EncoderSettings
from unmask.models.transformer import new_blocks


class Gpt1Embeddings(nn.Module):
    """Word embeddings and, unless the encoder is recurrent, position embeddings: summed, with dropout."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.word = new_embedding(settings.vocab_size, settings.hidden_size)
        num_positions = settings.max_position_embeddings
        self.position = None if settings.family.is_recurrent else new_embedding(num_positions, settings.hidden_size)
        prob = settings.embedding_dropout_prob
        self.dropout_prob = settings.hidden_dropout_prob if prob is None else prob

    def forward(self, batch: Batch) -> Tensor:
        """(tokens, hidden)."""
        summed = self.word(batch.input_ids)
        if self.position is not None:
            summed = summed + self.position(batch.position_ids)
        return dropout(to_autocast(summed), self.dropout_prob, self.training)


class Gpt1Encoder(TokenEncoder):
    """Embeddings and causal blocks; `token_type_ids` of a batch are ignored."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        self.embeddings = Gpt1Embeddings(settings)
        self.blocks = new_blocks(settings)
        initialise(self, settings.initializer_range)
