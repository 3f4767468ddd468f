"""What stands on the encoder: the masked-LM head, next-sentence prediction, sequence classification.

Devlin et al. 2019, sections 3.1 and 4.1. Every head sees only the hidden states that it needs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.models.layers import ACTIVATIONS, Linear, dropout, initialise, linear
from unmask.models.settings import Activation


class MaskedLMHead(nn.Module):
    """Vocabulary logits: dense, activation, LayerNorm, then the word embeddings as decoder, with a bias of its own.

    The decoder is tied: `forward` is given the encoder's word embeddings, and holds no copy.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        activation: Activation,
        layer_norm_eps: float,
        initializer_range: float,
    ) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.activation = ACTIVATIONS[activation]
        initialise(self, initializer_range)

    def forward(self, hidden_at_targets: Tensor, word_embeddings: Tensor) -> Tensor:
        """Logits at the targets alone.

        Args:
            hidden_at_targets: (targets, hidden) float, the encoder's output gathered at the masked positions.
            word_embeddings: (vocab, hidden) float, `encoder.word_embeddings`.

        Returns:
            (targets, vocab), in autocast's precision where that is on.
        """
        transformed = self.norm(self.activation(self.dense(hidden_at_targets)))  # (targets, hidden)
        return linear(transformed, word_embeddings, self.bias)


class NextSentenceHead(nn.Module):
    """Two logits from the pooled first token; class 0 is IsNext, 1 a random sentence, as in Google's code."""

    def __init__(self, hidden_size: int, initializer_range: float) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, 2)
        initialise(self, initializer_range)

    def forward(self, pooled: Tensor) -> Tensor:
        """(sequences, 2) from `pooled` (sequences, hidden)."""
        logits: Tensor = self.dense(pooled)
        return logits


class SequenceClassifier(nn.Module):
    """softmax(C W^T)'s logits from the pooled first token, dropped out (section 4.1); one label is a regression."""

    def __init__(self, hidden_size: int, num_labels: int, dropout_prob: float, initializer_range: float) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, num_labels)
        self.dropout_prob = dropout_prob
        initialise(self, initializer_range)

    @property
    def num_labels(self) -> int:
        return self.dense.out_features

    def forward(self, pooled: Tensor) -> Tensor:
        """(sequences, labels) from `pooled` (sequences, hidden)."""
        logits: Tensor = self.dense(dropout(pooled, self.dropout_prob, self.training))
        return logits
