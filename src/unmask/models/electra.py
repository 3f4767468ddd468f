"""ELECTRA's encoder on packed batches (Clark et al. 2020, sections 2 and 3.2).

BERT's encoder, except that the embeddings may be narrower than the blocks and are then projected, and that there is no
pooler. Discriminator and generator are both of this kind; their heads differ, and usually their widths.
"""

from __future__ import annotations

from torch import Tensor, nn

from unmask.batch import Batch
from unmask.models.encoder import TokenEncoder
from unmask.models.kernels.products import Linear
from unmask.models.layers import Embeddings, initialise
from unmask.models.settings import EncoderSettings
from unmask.models.transformer import new_blocks


class ElectraEmbeddings(nn.Module):
    """BERT's embeddings, projected if their size is not that of the hidden states (section 3.2)."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.narrow = Embeddings(settings, settings.embedding_width)
        is_projected = settings.embedding_width != settings.hidden_size
        self.projection = Linear(settings.embedding_width, settings.hidden_size) if is_projected else None

    def forward(self, batch: Batch) -> Tensor:
        """(tokens, hidden)."""
        embedded: Tensor = self.narrow(batch)
        return embedded if self.projection is None else self.projection(embedded)


class ElectraEncoder(TokenEncoder):
    """Embeddings and blocks."""

    embeddings: ElectraEmbeddings

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        self.embeddings = ElectraEmbeddings(settings)
        self.blocks = new_blocks(settings)
        initialise(self, settings.initializer_range)

    @property
    def word_embeddings(self) -> Tensor:
        """(vocab, embedding_size): the decoder of the generator's head is tied to it."""
        return self.embeddings.narrow.word.weight


def generator_settings(settings: EncoderSettings, size: float, tied: bool) -> EncoderSettings:
    """The sizes of a generator: as deep as its discriminator, and `size` times as wide.

    The width is rounded to whole attention heads of the discriminator's head size (in the paper 64); if it is less than
    one such head, there is one head of that width. The ratio of feed-forward size to width, and dropout, are those of
    the discriminator. So Small with 1/4 has 64 dimensions in 1 head, Base with 1/3 and Large with 1/4 have 256 in 4
    heads, as in the released code, which differs where the width is not a whole number of heads.

    Args:
        size: the generator's share of that width, over 0 and at most 1; 1 makes all sizes the same.
        tied: True: the generator's embeddings are the discriminator's, and as wide; False: they are its own, and as
            wide as its blocks.
    """
    if size == 1:
        return settings
    width = settings.hidden_size * size
    num_heads = int(width / settings.head_size + 0.5) if width >= settings.head_size else 1
    hidden_size = num_heads * settings.head_size if width >= settings.head_size else max(1, round(width))
    return settings.model_copy(
        update={
            "embedding_size": settings.embedding_width if tied else hidden_size,
            "hidden_size": hidden_size,
            "num_attention_heads": num_heads,
            "intermediate_size": max(1, round(settings.intermediate_size * hidden_size / settings.hidden_size)),
        }
    )


def share_embeddings(generator: ElectraEncoder, discriminator: ElectraEncoder) -> None:
    """Gives the generator the discriminator's embeddings, as the same parameters: words, positions, segments and the
    LayerNorm after them (section 3.2, and the released code for the LayerNorm). The projection stays its own."""
    assert generator.settings.embedding_width == discriminator.settings.embedding_width, "embeddings of two sizes"
    generator.embeddings.narrow = discriminator.embeddings.narrow
