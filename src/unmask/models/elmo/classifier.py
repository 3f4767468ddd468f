"""Classifies texts by ELMo's layers: mixes the layers, pools each text's words, and compares the texts of a pair.

Peters et al. 2018 mix the layers by learned weights (section 3.2), put dropout on the mixture (section 3.3), and leave
the rest to each task's own model. Chosen here: a text is the mean and the maximum, side by side, of its words' vectors
or, on request, of a BiLSTM's over them (Conneau et al. 2017, "Supervised Learning of Universal Sentence Representations
from Natural Language Inference Data"), and two texts u and v are compared as in that paper, by [u; v; |u - v|; u * v].
For a single text, v is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.batch import Batch
from unmask.models.dropout import dropout
from unmask.models.elmo.encoder import text_lengths
from unmask.models.heads.bilstm import BiLstm
from unmask.models.heads.layer_mixture import ELMOS, LayerMixture, find_choice
from unmask.models.kernels.products import Linear
from unmask.models.layers import initialise
from unmask.models.sizes import Sizes

_COMPARED = 4
"""u, v, their difference and their product."""


class ElmoClassifier(nn.Module):
    """One answer for each text or pair of texts.

    It computes in float32 whatever the precision of the run: PyTorch's LSTM would carry its state in that too.

    Args:
        num_labels: 1 for a regression.
        dropout_prob: on the mixture, or the layers in its place, and before the classifier; None takes the encoder's.
        bilstm_size: units of each direction of the BiLSTM; None: there is none.
        feature_layers: what is read of the encoder, a name of `unmask.models.heads.layer_mixture.find_choice`.

    Raises:
        SettingsError: no such layers, or the encoder has too few.
    """

    def __init__(
        self,
        settings: Sizes,
        num_labels: int,
        dropout_prob: float | None = None,
        bilstm_size: int | None = None,
        feature_layers: str = ELMOS,
    ) -> None:
        super().__init__()
        self._choice = find_choice(feature_layers, settings.num_hidden_layers)
        *layers, width = self._choice.shape(settings.num_hidden_layers, settings.hidden_size)
        self.mixture = LayerMixture(*layers) if layers else None
        self.bilstm = None if bilstm_size is None else BiLstm(width, bilstm_size, num_layers=1)
        width = width if bilstm_size is None else 2 * bilstm_size
        self.dense = Linear(_COMPARED * 2 * width, num_labels)
        self.num_labels = num_labels
        self.dropout_prob = settings.hidden_dropout_prob if dropout_prob is None else dropout_prob
        initialise(self.dense, settings.initializer_range)

    def forward(self, states: list[Tensor], batch: Batch) -> Tensor:
        """(sequences, labels) float32 from the hidden states of a batch, the token layer's first."""
        lengths = text_lengths(batch)
        with torch.autocast(states[0].device.type, enabled=False):
            words = self._choice.select(states).float()
            words = words if self.mixture is None else self.mixture(words)
            words = dropout(words, self.dropout_prob, self.training)
            if self.bilstm is not None:
                words = self.bilstm(words, lengths)
            compared = _compared(_pooled(words, lengths), batch)
            logits: Tensor = self.dense(dropout(compared, self.dropout_prob, self.training))
        return logits


def _pooled(words: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """(texts, 2 * width): the mean and the maximum over the words of each text."""
    sizes = torch.tensor(lengths, device=words.device)
    means = torch.segment_reduce(words, "mean", lengths=sizes)
    largest = torch.segment_reduce(words, "max", lengths=sizes)
    return torch.cat([means, largest], 1)


def _compared(texts: Tensor, batch: Batch) -> Tensor:
    """(sequences, 4 * width) from (texts, width): a sequence has one text, or two."""
    is_pair = batch.token_type_ids[batch.last_tokens] > 0  # its last token is of the second text
    last = torch.cumsum(is_pair.long() + 1, 0) - 1
    first = last - is_pair.long()
    u, v = texts[first], texts[last] * is_pair[:, None]
    return torch.cat([u, v, (u - v).abs(), u * v], 1)
