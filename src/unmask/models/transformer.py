"""The Transformer's blocks, on packed tokens (Vaswani et al. 2017, section 3; Devlin et al. 2019, section 3).

Post-norm, as in BERT and GPT-1: each sublayer's output goes through dropout, is added to its input and then normalised.

A row is what a layer computes for one token. On a GPU the rows are the batch's tokens; on the CPU a few rows of padding
may be added, where that is faster: `Layout.enter` adds them, `Layout.leave` removes them.
"""

from __future__ import annotations

from torch import Tensor, nn

from unmask.models.attention import attend
from unmask.models.dropout import add_dropout
from unmask.models.kernels.products import Linear
from unmask.models.kernels.row_layout import Layout
from unmask.models.layers import FeedForward
from unmask.models.settings import EncoderSettings


class SelfAttention(nn.Module):
    """Multi-head self-attention; queries, keys and values come from one matrix product. A `window` is how
    many tokens each token sees on either side; None: all of its sequence."""

    def __init__(self, settings: EncoderSettings, window: int | None = None) -> None:
        super().__init__()
        hidden = settings.hidden_size
        self.query_key_value = Linear(hidden, 3 * hidden, settings.attention_bias)
        self.output = Linear(hidden, hidden, settings.attention_bias)
        self.num_heads = settings.num_attention_heads
        self.dropout_prob = settings.attention_probs_dropout_prob
        self.causal = settings.is_causal
        self.window = window

    def parts(self, hidden: Tensor, layout: Layout) -> Tensor:
        """(rows, 3, heads, head_size): queries, keys and values. (ModernBERT's rotate with the layout's positions.)"""
        parts: Tensor = self.query_key_value(hidden).unflatten(1, (3, self.num_heads, -1))
        return parts

    def forward(self, hidden: Tensor, layout: Layout, wanted: Tensor | None) -> Tensor:
        """(rows, hidden), or (wanted, hidden) where only those are wanted."""
        parts = self.parts(hidden, layout)
        context = attend(parts, layout, self.dropout_prob, self.training, self.causal, self.window).flatten(1)
        output: Tensor = self.output(context if wanted is None else context[wanted])
        return output


class Block(nn.Module):
    """One layer of the encoder: self-attention, then feed-forward."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        hidden, eps = settings.hidden_size, settings.layer_norm_eps
        self.attention = SelfAttention(settings)
        self.attention_norm = nn.LayerNorm(hidden, eps)
        self.feed_forward = FeedForward(hidden, settings.intermediate_size, settings.hidden_act)
        self.feed_forward_norm = nn.LayerNorm(hidden, eps)
        self.dropout_prob = settings.hidden_dropout_prob

    def forward(self, hidden: Tensor, layout: Layout, wanted: Tensor | None = None) -> Tensor:
        """The block's output.

        Args:
            hidden: (rows, hidden) float: the layout's rows.
            wanted: (wanted,) int64: the rows whose output is wanted; None: all. They still attend to all tokens of
                their sequences; outputs that are not wanted are not computed.

        Returns:
            (rows, hidden), or (wanted, hidden).
        """
        attended = self.attention(hidden, layout, wanted)
        if wanted is not None:
            hidden = hidden[wanted]
        hidden = self.attention_norm(add_dropout(hidden, attended, self.dropout_prob, self.training))
        transformed = self.feed_forward(hidden)
        output: Tensor = self.feed_forward_norm(add_dropout(hidden, transformed, self.dropout_prob, self.training))
        return output


def new_blocks(settings: EncoderSettings) -> nn.ModuleList:
    """The blocks of an encoder of these sizes; `initialise` gives them their weights."""
    return nn.ModuleList(Block(settings) for _ in range(settings.num_hidden_layers))
