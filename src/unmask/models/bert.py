"""BERT's encoder and pooler on packed batches (Devlin et al. 2019, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.batch import Batch
from unmask.models.attention import lay_out
from unmask.models.heads import MaskedLMHead, NextSentenceHead, SequenceClassifier
from unmask.models.layers import Embeddings, Linear, initialise
from unmask.models.settings import EncoderSettings
from unmask.models.transformer import Block


class Pooler(nn.Module):
    """A dense layer with tanh on the first token of each sequence."""

    def __init__(self, hidden_size: int, initializer_range: float) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size)
        initialise(self, initializer_range)

    def forward(self, first_hidden: Tensor) -> Tensor:
        """(sequences, hidden) from the hidden states of the first tokens, in the same shape."""
        return torch.tanh(self.dense(first_hidden))


class BertEncoder(nn.Module):
    """Embeddings and blocks, and beside them the pooler, which the heads that read the first token call.

    Args:
        settings: every size; kept as `encoder.settings`.
        pooler: False leaves `encoder.pooler` None, for what reads tokens only.
    """

    def __init__(self, settings: EncoderSettings, pooler: bool = True) -> None:
        super().__init__()
        self.settings = settings
        self.embeddings = Embeddings(
            settings.vocab_size,
            settings.hidden_size,
            settings.max_position_embeddings,
            settings.type_vocab_size,
            settings.pad_token_id,
            settings.hidden_dropout_prob,
            settings.layer_norm_eps,
        )
        self.blocks = nn.ModuleList(
            Block(
                settings.hidden_size,
                settings.num_attention_heads,
                settings.intermediate_size,
                settings.hidden_act,
                settings.attention_probs_dropout_prob,
                settings.hidden_dropout_prob,
                settings.layer_norm_eps,
            )
            for _ in range(settings.num_hidden_layers)
        )
        initialise(self, settings.initializer_range)
        self.pooler = Pooler(settings.hidden_size, settings.initializer_range) if pooler else None

    @property
    def word_embeddings(self) -> Tensor:
        """(vocab, hidden): the decoder of the masked-LM head is tied to it."""
        return self.embeddings.word.weight

    def forward(self, batch: Batch, positions: Tensor | None = None) -> Tensor:
        """The last hidden states.

        Args:
            batch: no sequence longer than `max_position_embeddings`.
            positions: (positions,) int64: the tokens whose hidden states are wanted, where it is not all of them: the
                last block then computes those alone, with the same result (a tenth of a pre-training step of
                BERT-Small is saved). The first tokens are `batch.first_tokens`.

        Returns:
            (tokens, hidden), or (positions, hidden).
        """
        *lower, last = self.blocks
        layout = lay_out(batch.bounds, batch.lengths)
        hidden = self._embed(batch)
        for block in lower:
            hidden = block(hidden, layout)
        output: Tensor = last(hidden, layout, positions)
        return output

    def hidden_states(self, batch: Batch) -> list[Tensor]:
        """The embeddings' output, then each block's, the last one the same as `forward`'s; each (tokens, hidden)."""
        layout = lay_out(batch.bounds, batch.lengths)
        states = [self._embed(batch)]
        for block in self.blocks:
            states.append(block(states[-1], layout))
        return states

    def _embed(self, batch: Batch) -> Tensor:
        limit = self.settings.max_position_embeddings
        assert max(batch.lengths) <= limit, f"a sequence of {max(batch.lengths)} tokens, and {limit} positions"
        hidden: Tensor = self.embeddings(batch.input_ids, batch.token_type_ids, batch.position_ids)
        return hidden


def new_masked_lm_head(settings: EncoderSettings) -> MaskedLMHead:
    """A fresh masked-LM head for an encoder of these sizes."""
    return MaskedLMHead(
        settings.hidden_size,
        settings.vocab_size,
        settings.hidden_act,
        settings.layer_norm_eps,
        settings.initializer_range,
    )


def new_next_sentence_head(settings: EncoderSettings) -> NextSentenceHead:
    """A fresh next-sentence head for an encoder of these sizes."""
    return NextSentenceHead(settings.hidden_size, settings.initializer_range)


def new_classifier(settings: EncoderSettings, num_labels: int, dropout_prob: float | None = None) -> SequenceClassifier:
    """A fresh classifier for an encoder of these sizes; its dropout is the encoder's unless given."""
    prob = settings.hidden_dropout_prob if dropout_prob is None else dropout_prob
    return SequenceClassifier(settings.hidden_size, num_labels, prob, settings.initializer_range)
