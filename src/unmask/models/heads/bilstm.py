"""The two-layer BiLSTM that reads frozen features and tags each token (Devlin et al. 2019, section 5.3).

The paper says "a randomly initialized two-layer 768-dimensional BiLSTM before the classification layer". Here that is
768 units in each direction, whatever the size of the encoder, so that the classifier reads 1,536. The paper says
nothing about dropout: here it is between the layers and before the classifier, with the encoder's probability. Weights
start as PyTorch starts an LSTM's. On a GPU, cuDNN repeats itself bit for bit only if CUBLAS_WORKSPACE_CONFIG is
`:4096:8`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.models.dropout import dropout
from unmask.models.heads.layer_mixture import LayerMixture, find_choice
from unmask.models.kernels.lstm_sequences import read_sequences
from unmask.models.kernels.products import Linear
from unmask.models.layers import initialise
from unmask.models.settings import Sizes

HIDDEN_SIZE = 768
"""Units of each direction."""
NUM_LAYERS = 2


class BiLstm(nn.Module):
    """Layers of LSTMs that read in both directions, each within its sequence.

    Args:
        input_size: width of the features.
        hidden_size: units of each direction.
        dropout_prob: between the layers.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int = HIDDEN_SIZE,
        num_layers: int = NUM_LAYERS,
        dropout_prob: float = 0.0,
    ) -> None:
        super().__init__()
        # One module a layer: cuDNN's own dropout between layers keeps a state that no checkpoint holds.
        self.layers = nn.ModuleList(
            nn.LSTM(2 * hidden_size if layer else input_size, hidden_size, bidirectional=True)
            for layer in range(num_layers)
        )
        self.dropout_prob = dropout_prob

    def forward(self, values: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """The states of the last layer.

        Args:
            values: (tokens, inputs) float, the sequences one after another.
            lengths: of the sequences, all at least 1.

        Returns:
            (tokens, 2 * hidden_size), forward units first.
        """
        for number, layer in enumerate(self.layers):
            if number:
                values = dropout(values, self.dropout_prob, self.training)
            assert isinstance(layer, nn.LSTM)
            values = read_sequences(layer, values, lengths)
        return values


class FeatureHead(nn.Module):
    """Tags from frozen features: the mixture of layers if there are several, the BiLSTM, a linear classifier.

    It computes in float32 whatever the precision of the run: PyTorch's LSTM would carry its state in that too.

    Args:
        shape: of one token's features: (width,), or (layers, hidden) where they are mixed.
        dropout_prob: between the layers of the BiLSTM and before the classifier.
        initializer_range: of the classifier.
        hidden_size: units of each direction of the BiLSTM.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        num_labels: int,
        dropout_prob: float,
        initializer_range: float,
        hidden_size: int = HIDDEN_SIZE,
    ) -> None:
        super().__init__()
        self.mixture = LayerMixture(shape[0]) if len(shape) == 2 else None
        self.bilstm = BiLstm(shape[-1], hidden_size, dropout_prob=dropout_prob)
        self.dense = Linear(2 * hidden_size, num_labels)
        self.dropout_prob = dropout_prob
        initialise(self.dense, initializer_range)

    @property
    def num_labels(self) -> int:
        return self.dense.out_features

    def forward(self, features: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """(tokens, labels) float32 from `features` (tokens, width) or (tokens, layers, hidden)."""
        with torch.autocast(features.device.type, enabled=False):
            values = features.float()
            if self.mixture is not None:
                values = self.mixture(values)
            states = self.bilstm(values, lengths)
            logits: Tensor = self.dense(dropout(states, self.dropout_prob, self.training))
        return logits


def feature_head(
    settings: Sizes,
    num_labels: int,
    feature_layers: str,
    dropout_prob: float | None = None,
    hidden_size: int = HIDDEN_SIZE,
) -> FeatureHead:
    """A fresh head for the features of an encoder of these sizes; its state dict is what a model directory keeps of it.

    Args:
        feature_layers: a key of `CHOICES`.
        dropout_prob: None takes the encoder's.
        hidden_size: units of each direction of the BiLSTM.

    Raises:
        SettingsError: no such layers, or the encoder has too few.
    """
    choice = find_choice(feature_layers, settings.num_hidden_layers)
    prob = settings.hidden_dropout_prob if dropout_prob is None else dropout_prob
    shape = choice.shape(settings.num_hidden_layers, settings.hidden_size)
    return FeatureHead(shape, num_labels, prob, settings.initializer_range, hidden_size)
