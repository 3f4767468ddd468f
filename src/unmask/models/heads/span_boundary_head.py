"""SpanBERT's boundary head, and its file beside a saved model (Joshi et al. 2020, section 3.2).

`transformers` has no class for it: the model is saved as a masked LM, which opens there, and the head is in
`span_boundary.safetensors`. The position embeddings are 200 wide whatever the encoder is, as in the released code.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.errors import ModelError
from unmask.io.paths import SPAN_BOUNDARY
from unmask.models.hub.files import read_safetensors, write_weights
from unmask.models.kernels.products import Linear
from unmask.models.kernels.vocabulary_logits import vocabulary_logits
from unmask.models.layers import initialise, new_embedding
from unmask.models.settings import EncoderSettings

POSITION_SIZE = 200
"""Width of the position embeddings (section 4.2)."""

_ROWS_MAY_DIFFER = ("position.weight", "bias")
"""They have one row per place in a span, and one number per vocabulary entry."""


class SpanBoundaryHead(nn.Module):
    """Vocabulary logits of a token inside a span, from the two tokens beside the span and its place in it.

    Two layers of GELU and LayerNorm, then the word embeddings as decoder, with a bias of its own. `forward` is given
    the encoder's word embeddings, and holds no copy.

    Args:
        max_targets: tokens of a span that are predicted, at most.
    """

    def __init__(self, settings: EncoderSettings, max_targets: int) -> None:
        super().__init__()
        hidden, width, eps = settings.hidden_size, settings.embedding_width, settings.layer_norm_eps
        self.position = new_embedding(max_targets, POSITION_SIZE)
        self.dense1 = Linear(2 * hidden + POSITION_SIZE, hidden)
        self.norm1 = nn.LayerNorm(hidden, eps)
        self.dense2 = Linear(hidden, width)
        self.norm2 = nn.LayerNorm(width, eps)
        self.bias = nn.Parameter(torch.zeros(settings.vocab_size))
        initialise(self, settings.initializer_range)

    def forward(self, left: Tensor, right: Tensor, places: Tensor, word_embeddings: Tensor) -> Tensor:
        """The `vocabulary_logits` of each target.

        Args:
            left, right: (targets, hidden) float, the encoder's outputs just before and just after the span.
            places: (targets,) int64, the target's place in its span, from 0 (i - s in the paper's terms).
        """
        inputs = torch.cat([left, right, self.position(places).to(left.dtype)], 1)
        hidden = self.norm1(functional.gelu(self.dense1(inputs)))  # (targets, hidden)
        hidden = self.norm2(functional.gelu(self.dense2(hidden)))  # (targets, decoder_size)
        return vocabulary_logits(hidden, word_embeddings, self.bias)


def write_span_boundary(directory: Path, head: SpanBoundaryHead | None) -> None:
    """Writes the head's file, whole or not at all; without a head, removes what an earlier model left. Raises
    OutputError if the disk is full, or the place cannot be written."""
    if head is None:
        (directory / SPAN_BOUNDARY).unlink(missing_ok=True)
    else:
        write_weights(directory / SPAN_BOUNDARY, head.state_dict())


def restore_span_boundary(directory: Path, head: SpanBoundaryHead) -> None:
    """Loads a model directory's weights, where it has any, into a fresh head; rows that it lacks stay fresh: those of
    new vocabulary entries, which come last, and of places that no span of the earlier run had. Raises ModelError if the
    file is damaged, or its weights are of another encoder."""
    path = directory / SPAN_BOUNDARY
    if not path.is_file():
        return
    weights = read_safetensors(path)
    own = head.state_dict()
    if own.keys() != weights.keys():
        differing = ", ".join(sorted(own.keys() ^ weights.keys()))
        raise ModelError(f"{path}: the weights {differing} are missing or left over: get the directory again")
    for name, weight in weights.items():
        expected = own[name].shape[1:] if name in _ROWS_MAY_DIFFER else own[name].shape
        found = weight.shape[1:] if name in _ROWS_MAY_DIFFER else weight.shape
        if found != expected or weight.ndim == 0 or not weight.is_floating_point():
            raise ModelError(
                f"{path}: {name} is {tuple(weight.shape)} of {weight.dtype}, expected {tuple(own[name].shape)} floats: "
                "the head belongs to another model; get the directory again"
            )
        rows = min(len(weight), len(own[name]))
        own[name][:rows] = weight[:rows]  # the state dictionary shares the head's memory
