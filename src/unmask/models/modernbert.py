"""ModernBERT's encoder on packed batches (Warner et al. 2024, section 2.1).

It differs from BERT's in its blocks: the norm is before each sublayer and one more is behind the last block (the first
block has none before its attention, since the embeddings end in one); positions are rotary; the feed-forward is gated;
there are no biases, no segments and no pooler; and only every n-th block attends to the whole sequence, the others to a
window around each token. Its decoder is the same, read from left to right.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.batch import Batch
from unmask.models.dropout import add_dropout, dropout
from unmask.models.encoder import TokenEncoder
from unmask.models.kernels.gated_gelu import gated_gelu
from unmask.models.kernels.products import Linear, to_autocast
from unmask.models.kernels.rotary import rotate
from unmask.models.kernels.row_layout import Layout
from unmask.models.layers import ACTIVATIONS, initialise, new_embedding
from unmask.models.settings import EncoderSettings
from unmask.models.transformer import SelfAttention

RESIDUAL_OUTPUTS = ("attention.output.weight", "feed_forward.down.weight")
"""Weights whose outputs are added to the hidden states. Fresh ones are divided by sqrt(2 x layers), so that their
variance does not grow with the depth (section 2.2, after Megatron)."""


class ModernBertEmbeddings(nn.Module):
    """Word embeddings: normalised, dropped out; `token_type_ids` are ignored."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.word = new_embedding(settings.vocab_size, settings.hidden_size, settings.pad_token_id)
        self.norm = nn.LayerNorm(settings.hidden_size, settings.layer_norm_eps, bias=settings.norm_bias)
        prob = settings.embedding_dropout_prob
        self.dropout_prob = settings.hidden_dropout_prob if prob is None else prob

    def forward(self, batch: Batch) -> Tensor:
        """(tokens, hidden)."""
        return dropout(to_autocast(self.norm(self.word(batch.input_ids))), self.dropout_prob, self.training)


class RotaryAttention(SelfAttention):
    """BERT's, with rotary positions.

    Args:
        window: how many tokens each token sees on either side; None: all of its sequence.
        theta: of the rotary positions.
    """

    def __init__(self, settings: EncoderSettings, window: int | None, theta: float) -> None:
        super().__init__(settings, window)
        self.theta = theta

    def parts(self, hidden: Tensor, layout: Layout) -> Tensor:
        """(rows, 3, heads, head_size): queries, keys and values, the first two turned by their positions."""
        return rotate(super().parts(hidden, layout), layout, self.theta)


class GatedFeedForward(nn.Module):
    """down(activation(a) x b), where [a, b] = up(hidden) (Shazeer 2020)."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.up = Linear(settings.hidden_size, 2 * settings.intermediate_size, settings.mlp_bias)
        self.down = Linear(settings.intermediate_size, settings.hidden_size, settings.mlp_bias)
        self.activation = ACTIVATIONS[settings.hidden_act]
        self.dropout_prob = settings.hidden_dropout_prob

    def forward(self, hidden: Tensor) -> Tensor:
        """(rows, hidden)."""
        values = self.up(hidden)
        if self.activation is functional.gelu:
            gated = gated_gelu(values)
        else:
            inputs, gates = values.chunk(2, -1)
            gated = self.activation(inputs) * gates
        output: Tensor = self.down(dropout(gated, self.dropout_prob, self.training))
        return output


class ModernBertBlock(nn.Module):
    """One layer: norm and attention, then norm and feed-forward, each added to its input."""

    def __init__(self, settings: EncoderSettings, number: int) -> None:
        super().__init__()
        hidden, eps, bias = settings.hidden_size, settings.layer_norm_eps, settings.norm_bias
        is_global = number % settings.global_attn_every_n_layers == 0
        # as in `transformers`: an encoder's token sees half of the window on either side, and a decoder's half in all
        reach = settings.local_attention // 2 - settings.is_causal
        window = None if is_global else reach
        theta = settings.global_rope_theta if is_global else settings.local_rope_theta
        self.attention_norm = nn.LayerNorm(hidden, eps, bias=bias) if number else nn.Identity()
        self.attention = RotaryAttention(settings, window, theta)
        self.feed_forward_norm = nn.LayerNorm(hidden, eps, bias=bias)
        self.feed_forward = GatedFeedForward(settings)
        self.dropout_prob = settings.attention_probs_dropout_prob  # as in the released code, of attention's output too

    def forward(self, hidden: Tensor, layout: Layout, wanted: Tensor | None = None) -> Tensor:
        """The block's output; as `unmask.models.transformer.Block.forward`."""
        attended = self.attention(to_autocast(self.attention_norm(hidden)), layout, wanted)
        if wanted is not None:
            hidden = hidden[wanted]
        hidden = add_dropout(hidden, attended, self.dropout_prob, self.training)
        output: Tensor = hidden + self.feed_forward(to_autocast(self.feed_forward_norm(hidden)))
        return output


class ModernBertEncoder(TokenEncoder):
    """Embeddings, blocks and the norm behind them."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        self.embeddings = ModernBertEmbeddings(settings)
        self.blocks = nn.ModuleList(ModernBertBlock(settings, number) for number in range(settings.num_hidden_layers))
        self.final_norm = nn.LayerNorm(settings.hidden_size, settings.layer_norm_eps, bias=settings.norm_bias)
        initialise(self, settings.initializer_range)
        with torch.no_grad():
            for name, weight in self.blocks.named_parameters():
                if name.endswith(RESIDUAL_OUTPUTS):
                    weight.div_(math.sqrt(2 * settings.num_hidden_layers))

    def forward(self, batch: Batch, wanted: Tensor | None = None) -> Tensor:
        """The last hidden states, normalised, as `TokenEncoder.forward`."""
        hidden: Tensor = self.final_norm(super().forward(batch, wanted))
        return hidden

    def summary(self, batch: Batch) -> Tensor:
        """(sequences, hidden): the first token, or with `classifier_pooling` "mean" the mean of all tokens; of
        a decoder the last one."""
        if self.settings.is_causal or self.settings.classifier_pooling == "cls":
            return super().summary(batch)
        hidden = self(batch)
        sums = hidden.new_zeros(batch.num_sequences, hidden.shape[1], dtype=torch.float32)  # of up to 8,192 numbers
        sums = sums.index_add(0, batch.sequence_of_token(), hidden.float())
        lengths = (batch.bounds[1:] - batch.bounds[:-1]).clamp(min=1)  # a padded batch has empty sequences
        means: Tensor = sums / lengths[:, None]
        return means.to(hidden.dtype)

    def hidden_states(self, batch: Batch) -> list[Tensor]:
        """The embeddings' output, then each block's, the last one normalised, the same as `forward`'s; each (tokens,
        hidden)."""
        *states, last = super().hidden_states(batch)
        return [*states, self.final_norm(last)]
