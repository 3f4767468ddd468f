"""The BiLSTM put on top of the left-to-right model for fine-tuning (Devlin et al. 2019, section 5.1).

The paper says only "a randomly initialized BiLSTM on top" of the left-to-right model, trained with it. Chosen here: one
layer, 768 units in each direction unless set otherwise, dropout only before the classifier. A whole sequence is
represented by the state in which each direction ends: the forward state of the last token beside the backward state of
the first. It computes in float32 whatever the precision of the run: PyTorch's LSTM would carry its state in that too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.models.dropout import dropout
from unmask.models.heads.bilstm import HIDDEN_SIZE, BiLstm
from unmask.models.heads.heads import HeadKind
from unmask.models.kernels.products import Linear
from unmask.models.layers import initialise
from unmask.models.settings import Sizes


class BiLstmHead(nn.Module):
    """A BiLSTM over all hidden states of an encoder, and a linear classifier.

    Args:
        of_tokens: True classifies each token, False each sequence.
        dropout_prob: before the classifier.
        initializer_range: of the classifier; the BiLSTM's weights start as PyTorch starts them.
        num_units: of each direction.
    """

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        of_tokens: bool,
        dropout_prob: float,
        initializer_range: float,
        num_units: int = HIDDEN_SIZE,
    ) -> None:
        super().__init__()
        self.bilstm = BiLstm(hidden_size, num_units, num_layers=1)
        self.dense = Linear(2 * num_units, num_labels)
        self.of_tokens = of_tokens
        self.dropout_prob = dropout_prob
        initialise(self.dense, initializer_range)

    @property
    def num_labels(self) -> int:
        return self.dense.out_features

    def forward(self, hidden: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """(tokens or sequences, labels) float32 from `hidden` (tokens, hidden), packed."""
        with torch.autocast(hidden.device.type, enabled=False):
            states: Tensor = self.bilstm(hidden.float(), lengths)
            if not self.of_tokens:
                states = _ends(states, lengths)
            logits: Tensor = self.dense(dropout(states, self.dropout_prob, self.training))
        return logits


def _ends(states: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """(sequences, 2 * units): the forward states of the last tokens, the backward states of the first."""
    sizes = torch.tensor(lengths, device=states.device)
    after = sizes.cumsum(0)
    forward, backward = states.chunk(2, dim=1)
    return torch.cat([forward[after - 1], backward[after - sizes]], dim=1)


def bilstm_head(
    kind: HeadKind,
    settings: Sizes,
    num_labels: int,
    dropout_prob: float | None = None,
    num_units: int = HIDDEN_SIZE,
) -> BiLstmHead:
    """A fresh head for an encoder of these sizes; its state dict is what a model directory keeps of it.

    Args:
        kind: of tokens (`token_classification`, `question_answering`) or of sequences.
        dropout_prob: None takes the encoder's; question answering has none, as with the other heads.
        num_units: of each direction.
    """
    prob = settings.hidden_dropout_prob if dropout_prob is None else dropout_prob
    return BiLstmHead(
        settings.hidden_size,
        num_labels,
        of_tokens=kind in ("token_classification", "question_answering"),
        dropout_prob=0.0 if kind == "question_answering" else prob,
        initializer_range=settings.initializer_range,
        num_units=num_units,
    )
