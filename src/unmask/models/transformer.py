"""The Transformer encoder's blocks, on packed tokens (Vaswani et al. 2017, section 3; Devlin et al. 2019, section 3).

Post-norm, as in BERT: each sublayer's output is dropped out, added to its input and then normalised.
"""

from __future__ import annotations

from torch import Tensor, nn

from unmask.models.attention import Layout, attend
from unmask.models.layers import FeedForward, Linear, dropout
from unmask.models.settings import Activation


class SelfAttention(nn.Module):
    """Multi-head self-attention; queries, keys and values come from one matrix product."""

    def __init__(self, hidden_size: int, num_heads: int, dropout_prob: float) -> None:
        super().__init__()
        self.query_key_value = Linear(hidden_size, 3 * hidden_size)
        self.output = Linear(hidden_size, hidden_size)
        self.num_heads = num_heads
        self.dropout_prob = dropout_prob

    def forward(self, hidden: Tensor, layout: Layout, positions: Tensor | None) -> Tensor:
        """(tokens, hidden), or (positions, hidden) where only those are asked for."""
        parts = self.query_key_value(hidden).unflatten(1, (3, self.num_heads, -1))  # (tokens, 3, heads, head_size)
        query, key, value = parts.unbind(1)
        context = attend(query, key, value, layout, self.dropout_prob, self.training).flatten(1)  # (tokens, hidden)
        output: Tensor = self.output(context if positions is None else context[positions])
        return output


class Block(nn.Module):
    """One layer of the encoder: self-attention, then feed-forward."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        intermediate_size: int,
        activation: Activation,
        attention_dropout_prob: float,
        hidden_dropout_prob: float,
        layer_norm_eps: float,
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(hidden_size, num_heads, attention_dropout_prob)
        self.attention_norm = nn.LayerNorm(hidden_size, layer_norm_eps)
        self.feed_forward = FeedForward(hidden_size, intermediate_size, activation)
        self.feed_forward_norm = nn.LayerNorm(hidden_size, layer_norm_eps)
        self.dropout_prob = hidden_dropout_prob

    def forward(self, hidden: Tensor, layout: Layout, positions: Tensor | None = None) -> Tensor:
        """The block's output.

        Args:
            hidden: (tokens, hidden) float, packed.
            layout: of the batch.
            positions: (positions,) int64: the tokens whose output is wanted, where it is not all of them. They still
                attend to all tokens of their sequences; what nobody reads is not computed.

        Returns:
            (tokens, hidden), or (positions, hidden).
        """
        attended = dropout(self.attention(hidden, layout, positions), self.dropout_prob, self.training)
        if positions is not None:
            hidden = hidden[positions]
        hidden = self.attention_norm(hidden + attended)
        transformed = dropout(self.feed_forward(hidden), self.dropout_prob, self.training)
        output: Tensor = self.feed_forward_norm(hidden + transformed)
        return output
