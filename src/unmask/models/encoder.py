"""What every encoder offers to objectives and tasks, whatever its family."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any, Literal, cast, overload

from torch import Tensor, nn

from unmask.batch import Batch
from unmask.models.elmo.encoder import ElmoEncoder
from unmask.models.elmo.settings import ElmoSettings
from unmask.models.kernels.row_layout import Layout, layout_for
from unmask.models.layers import check_lengths
from unmask.models.settings import EncoderSettings
from unmask.models.sizes import Sizes


class TokenEncoder(nn.Module):
    """An encoder of token ids: embeddings, which take a batch to (tokens, hidden), and blocks over them.

    A family's own class makes both, draws their weights, and says what else differs.

    Attributes:
        pooler: what the heads that read the first token call; None where there is none.
    """

    reads_words: Literal[False] = False
    embeddings: Any
    blocks: nn.ModuleList

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.settings = settings
        self.pooler: nn.Module | None = None

    @property
    def word_embeddings(self) -> Tensor:
        """(vocab, hidden): the decoder of a language model is tied to it."""
        weight: Tensor = self.embeddings.word.weight
        return weight

    def forward(self, batch: Batch, wanted: Tensor | None = None) -> Tensor:
        """The last hidden states.

        Args:
            batch: no sequence longer than `settings.num_positions`.
            wanted: (wanted,) int64: the tokens whose hidden states are wanted, such as `batch.first_tokens`; None: all.
                The last block then computes only those, with the same result (which saves a tenth of a pre-training
                step of BERT-Small).

        Returns:
            (tokens, hidden), or (wanted, hidden).
        """
        hidden, layout = self._embed(batch)
        *lower, last = self.blocks
        for block in lower:
            hidden = block(hidden, layout)
        if wanted is None:
            return layout.leave(last(hidden, layout))
        output: Tensor = last(hidden, layout, layout.rows_of(wanted))
        return output[: len(wanted)]  # `rows_of` may have repeated row 0 to round their number

    def summary(self, batch: Batch) -> Tensor:
        """(sequences, hidden): what represents each whole sequence: the first token, pooled if there is a pooler; where
        tokens see only those before them the last one, which sees all of it (Radford et al. 2018, section 3.2)."""
        if self.settings.is_causal:
            last: Tensor = self(batch, batch.last_tokens)
            return last
        first: Tensor = self(batch, batch.first_tokens)
        return first if self.pooler is None else self.pooler(first)

    def hidden_states(self, batch: Batch) -> list[Tensor]:
        """The embeddings' output, then each block's, the last one the same as `forward`'s; each (tokens, hidden)."""
        hidden, layout = self._embed(batch)
        states = [hidden]
        for block in self.blocks:
            states.append(block(states[-1], layout))
        return [layout.leave(state) for state in states]

    def _embed(self, batch: Batch) -> tuple[Tensor, Layout]:
        check_lengths(batch, self.settings)
        embedded = self.embeddings(batch)
        layout = layout_for(batch, embedded)
        return layout.enter(embedded), layout


Encoder = TokenEncoder | ElmoEncoder
"""Any encoder: `settings`, `embeddings`, `blocks`, `pooler`, `summary`, `hidden_states`. One with
`reads_words`, ELMo's alone, reads the characters of words, from `set_words`, and has no `word_embeddings`."""


@overload
def new_encoder(settings: EncoderSettings, pooler: bool = True) -> TokenEncoder: ...
@overload
def new_encoder(settings: ElmoSettings, pooler: bool = True) -> ElmoEncoder: ...
@overload
def new_encoder(settings: Sizes, pooler: bool = True) -> Encoder: ...


def new_encoder(settings: Sizes, pooler: bool = True) -> Encoder:
    """A fresh encoder of these sizes, its weights drawn from PyTorch's default generator.

    Args:
        pooler: whether it gets a pooler, if its family has them: BERT and RoBERTa.

    Raises:
        SettingsError: a pooler is requested for BERT's left-to-right model.
    """
    family = settings.family
    given = (settings, pooler) if family.has("pooler") else (settings,)
    return cast(Encoder, resolve_name(family.encoder)(*given))
