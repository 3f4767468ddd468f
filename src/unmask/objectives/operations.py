"""The floating-point operations of pre-training, worked out from sizes: what every objective adds up.

Only necessary operations count, two for a multiply-add, the backward pass as twice the forward pass; element-wise work
is left out. In the last block, keys and values are needed for every token, the rest only at the places that a head
reads. A token of a causal model attends to half of its sequence on average.
"""

from __future__ import annotations

from unmask.models.settings import EncoderSettings


def vocabulary_head(sizes: EncoderSettings) -> float:
    """The forward pass of a masked-LM head, per target: 2 (h e + e V)."""
    width = sizes.embedding_width
    return 2 * (sizes.hidden_size * width + width * sizes.vocab_size)


def encoder(sizes: EncoderSettings, length: float, read: float) -> float:
    """The forward pass of an encoder, per token. A full block: 2 (4 h^2 + 2 h f) per token (3 h f if the feed-forward
    is gated), and 4 h for each token that it attends to.

    Args:
        length: the mean number of tokens in a sequence.
        read: share of the tokens whose output is read, at most 1.
    """
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    if sizes.family.is_recurrent:
        first = 2 * 4 * inner * (hidden + inner) + (2 * inner * hidden if inner != hidden else 0)
        return sizes.num_hidden_layers * first
    matrices = 3 if sizes.family.is_gated else 2
    block = 2 * (4 * hidden**2 + matrices * hidden * inner) + 4 * sizes.attended(length) * hidden
    keys_and_values = 4 * hidden**2
    last_block = keys_and_values + min(1.0, read) * (block - keys_and_values)
    width = sizes.embedding_width
    projection = 2 * width * hidden if width != hidden else 0
    return projection + (sizes.num_hidden_layers - 1) * block + last_block
