"""BERT's encoder and pooler on packed batches (Devlin et al. 2019, section 3).

With `causal` it is the left-to-right model that section 5.1 compares with BERT, different only in its mask: `[CLS]`
would see only itself, so the last token represents a sequence there, as in GPT-1, and there is no pooler.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.errors import SettingsError
from unmask.models.encoder import TokenEncoder
from unmask.models.kernels.products import Linear
from unmask.models.layers import Embeddings, initialise
from unmask.models.settings import EncoderSettings
from unmask.models.transformer import new_blocks


class Pooler(nn.Module):
    """A dense layer with tanh on the first token of each sequence."""

    def __init__(self, hidden_size: int, initializer_range: float) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size)
        initialise(self, initializer_range)

    def forward(self, first_hidden: Tensor) -> Tensor:
        """(sequences, hidden) from the hidden states of the first tokens, in the same shape."""
        return torch.tanh(self.dense(first_hidden))


class BertEncoder(TokenEncoder):
    """Embeddings and blocks, and beside them the pooler, which the heads that read the first token call.

    RoBERTa's is the same (Liu et al. 2019), except that its positions are counted from `pad_token_id` + 1, as in
    fairseq. Here a padding token inside a sequence has a position like any other; fairseq leaves it out of the count.

    Args:
        pooler: False leaves `encoder.pooler` None, for uses that read tokens only.

    Raises:
        SettingsError: a pooler is requested for a causal encoder.
    """

    def __init__(self, settings: EncoderSettings, pooler: bool = True) -> None:
        super().__init__(settings)
        if pooler and settings.causal:
            raise SettingsError(
                "model.causal is true, and a pooler reads [CLS], the first token, which sees only itself then: take an "
                "objective without one (objective.name=causal_lm, or objective.sentence_objective=none), or leave out "
                "model.causal"
            )
        self.embeddings = Embeddings(settings, settings.hidden_size)
        self.blocks = new_blocks(settings)
        initialise(self, settings.initializer_range)
        if pooler:
            self.pooler = Pooler(settings.hidden_size, settings.initializer_range)
