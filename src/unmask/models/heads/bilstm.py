"""BiLSTMs: over frozen features (Devlin et al. 2019, section 5.3), and on a left-to-right encoder (section 5.1).

For features the paper says "a randomly initialized two-layer 768-dimensional BiLSTM before the classification layer".
Here that is 768 units in each direction, whatever the size of the encoder, so that the classifier reads 1,536. The
paper says nothing about dropout: here it is between the layers and before the classifier, with the encoder's
probability. Weights start as PyTorch starts an LSTM's. On a GPU, cuDNN repeats itself bit for bit only if
CUBLAS_WORKSPACE_CONFIG is `:4096:8`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.batch import Batch
from unmask.models.dropout import dropout
from unmask.models.encoder import Encoder
from unmask.models.family import HeadKind
from unmask.models.heads.layer_mixture import LayerMixture, find_choice
from unmask.models.kernels.lstm_sequences import read_sequences
from unmask.models.kernels.products import Linear
from unmask.models.layers import initialise
from unmask.models.sizes import Sizes

HIDDEN_SIZE = 768
"""Units of each direction."""
NUM_LAYERS = 2


class BiLstm(nn.Module):
    """Layers of LSTMs that read in both directions, each within its sequence.

    Args:
        hidden_size: units of each direction.
        dropout_prob: between the layers.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = NUM_LAYERS, dropout_prob: float = 0.0
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
    """Tags from frozen features: the mixture of layers if there are several, a BiLSTM or none, a linear classifier.

    Without a BiLSTM it measures what a layer knows of each word (Peters et al. 2018, section 5.3). It computes in
    float32 whatever the precision of the run: PyTorch's LSTM would carry its state in that too.

    Args:
        feature_layers: a name of `find_choice`.
        dropout_prob: between the layers of the BiLSTM and before the classifier, and of ELMo on what the BiLSTM reads
            (Peters et al. 2018, section 3.3); None takes the encoder's.
        hidden_size: units of each direction of the BiLSTM; None: there is none.

    Raises:
        SettingsError: no such layers, or the encoder has too few.
    """

    def __init__(
        self,
        settings: Sizes,
        num_labels: int,
        feature_layers: str,
        dropout_prob: float | None = None,
        hidden_size: int | None = HIDDEN_SIZE,
    ) -> None:
        super().__init__()
        choice = find_choice(feature_layers, settings.num_hidden_layers)
        *layers, width = choice.shape(settings.num_hidden_layers, settings.hidden_size)
        self.dropout_prob = settings.hidden_dropout_prob if dropout_prob is None else dropout_prob
        self.mixture = LayerMixture(*layers) if layers else None
        self.bilstm = None if hidden_size is None else BiLstm(width, hidden_size, dropout_prob=self.dropout_prob)
        self._drops_features = settings.family.reads_words
        self.dense = Linear(width if hidden_size is None else 2 * hidden_size, num_labels)
        self.num_labels = num_labels
        initialise(self.dense, settings.initializer_range)

    def forward(self, features: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """(tokens, labels) float32 from `features` (tokens, width) or (tokens, layers, hidden)."""
        with torch.autocast(features.device.type, enabled=False):
            values = features.float()
            if self.mixture is not None:
                values = self.mixture(values)
            if self.bilstm is not None:
                if self._drops_features:
                    values = dropout(values, self.dropout_prob, self.training)
                values = self.bilstm(values, lengths)
            logits: Tensor = self.dense(dropout(values, self.dropout_prob, self.training))
        return logits


class BiLstmHead(nn.Module):
    """A BiLSTM over all hidden states of an encoder, and a linear classifier, trained with the encoder.

    The paper says only "a randomly initialized BiLSTM on top" of the left-to-right model (section 5.1). Chosen here:
    one layer, 768 units in each direction unless set otherwise, dropout only before the classifier. A whole sequence is
    represented by the state in which each direction ends: the forward state of the last token beside the backward state
    of the first. It computes in float32, as `FeatureHead`.

    Args:
        kind: of tokens (`token_classification`, `question_answering`) or of sequences.
        dropout_prob: before the classifier; None takes the encoder's. Question answering has none, as other heads.
        num_units: of each direction.
    """

    def __init__(
        self,
        kind: HeadKind,
        settings: Sizes,
        num_labels: int,
        dropout_prob: float | None = None,
        num_units: int = HIDDEN_SIZE,
    ) -> None:
        super().__init__()
        prob = settings.hidden_dropout_prob if dropout_prob is None else dropout_prob
        self.bilstm = BiLstm(settings.hidden_size, num_units, num_layers=1)
        self.dense = Linear(2 * num_units, num_labels)
        self.num_labels = num_labels
        self.of_tokens = kind in ("token_classification", "question_answering")
        self.dropout_prob = 0.0 if kind == "question_answering" else prob
        initialise(self.dense, settings.initializer_range)

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


def token_outputs(encoder: Encoder, head: nn.Module, batch: Batch) -> Tensor:
    """(tokens, outputs) of a head on each token, or of a BiLSTM over all of them."""
    outputs: Tensor = head(encoder(batch), batch.lengths) if isinstance(head, BiLstmHead) else head(encoder(batch))
    return outputs
