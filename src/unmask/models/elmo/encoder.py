"""ELMo's encoder on packed batches (Peters et al. 2018, section 3): a character CNN under two stacks of LSTMs.

One stack reads forwards, the other backwards; neither sees the other, and only the vectors of the words are shared.
Each reads a text starting from an empty memory, and the two texts of a pair separately. (The released code, even when
used for features, continues from the memory of what it read last, so that features depend on what was computed before;
here the same text has the same features.)
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.batch import Batch
from unmask.models.dropout import dropout
from unmask.models.elmo.character_cnn import CharacterCnn
from unmask.models.elmo.projected_lstm import LstmState, ProjectedLstm
from unmask.models.elmo.settings import ElmoSettings

FORWARD, BACKWARD = 0, 1
"""The two directions."""


class CharacterLookup(Protocol):
    """From ids of words to their characters: an array with a row per word, or a table that grows with new words."""

    def __getitem__(self, ids: NDArray[np.int64], /) -> NDArray[np.integer]:
        """(ids, characters)."""


class LstmStack(nn.Module):
    """Stacked LSTMs that read in one direction."""

    def __init__(self, settings: ElmoSettings) -> None:
        super().__init__()
        size = settings.projection_size
        self.layers = nn.ModuleList(
            ProjectedLstm(size, settings.cell_size, size, settings.cell_clip, settings.projection_clip)
            for _ in range(settings.num_hidden_layers)
        )
        self.residual = settings.residual
        self.dropout_prob = settings.hidden_dropout_prob

    def forward(self, values: Tensor, active: tuple[int, ...], memory: LstmState) -> tuple[list[Tensor], LstmState]:
        """The outputs of each layer, and their memory; see `ProjectedLstm.forward` for the order of tokens.

        The input that is added to a layer's output has lost the same elements to dropout as the layer's own input, as
        in the released code; the memory holds the layer's output without that addition.
        """
        outputs: list[Tensor] = []
        remembered: list[LstmState] = []
        for number, layer in enumerate(self.layers):
            values = dropout(values, self.dropout_prob, self.training)
            output, last = layer(values, active, LstmState(memory.outputs[number], memory.cells[number]))
            values = output + values if self.residual and number else output
            outputs.append(values)
            remembered.append(last)
        return outputs, LstmState(
            torch.stack([each.outputs for each in remembered]), torch.stack([each.cells for each in remembered])
        )


class ElmoEncoder(nn.Module):
    """The character CNN and both stacks. The characters of words come from the batch, or from `set_words`."""

    reads_words: Literal[True] = True

    def __init__(self, settings: ElmoSettings) -> None:
        super().__init__()
        self.settings = settings
        self.embeddings = CharacterCnn(settings)
        self.blocks = nn.ModuleList(LstmStack(settings) for _ in (FORWARD, BACKWARD))
        self.pooler = None
        self._words: CharacterLookup | None = None

    def set_words(self, words: CharacterLookup) -> None:
        """Sets the characters of the words that `input_ids` name, for batches without the column `characters`.

        The table is looked up at every batch, so one that grows need not be set again. It is not part of the weights.
        """
        self._words = words

    def forward(self, batch: Batch, wanted: Tensor | None = None) -> Tensor:
        """The last hidden states of all tokens or of those `wanted`, (tokens, hidden), both directions side by side; of
        a batch with the column `characters` (tokens, characters), or of words in the table of `set_words`."""
        last = self.hidden_states(batch)[-1]
        return last if wanted is None else last[wanted]

    def summary(self, batch: Batch) -> Tensor:
        """(sequences, hidden): the output of each direction once it has read all of a sequence; of a pair, the last
        text forwards and the first backwards. (Classifiers read all layers: `unmask.models.elmo.classifier`.)"""
        forward, backward = self(batch).chunk(2, 1)
        return torch.cat([forward[batch.last_tokens], backward[batch.first_tokens]], 1)

    def hidden_states(self, batch: Batch) -> list[Tensor]:
        """The words' vectors, twice side by side, then each layer's outputs of both directions; (tokens, hidden)."""
        vectors = self.embeddings(self._characters(batch))
        lengths = text_lengths(batch)
        backwards = _reversed(lengths, vectors.device)
        forward, _ = self.read_in(FORWARD, vectors, lengths)
        backward, _ = self.read_in(BACKWARD, vectors[backwards], lengths)
        both = zip([vectors, *forward], [vectors, *(each[backwards] for each in backward)], strict=True)
        return [torch.cat(states, 1) for states in both]

    def read_in(
        self, direction: int, vectors: Tensor, lengths: tuple[int, ...], memory: LstmState | None = None
    ) -> tuple[list[Tensor], LstmState]:
        """Has one direction read the words of each sequence, `vectors` (tokens, projection) in the order of reading.

        Returns:
            Each layer's outputs, in the same order and shape, and the memory afterwards.
        """
        if memory is None:
            memory = self.empty_memory(len(lengths), vectors.device)
        order, sequences, active = _by_steps(lengths, vectors.device)
        begun = LstmState(memory.outputs[:, sequences], memory.cells[:, sequences])
        outputs, ended = self.blocks[direction](vectors[order], active, begun)
        back, sequences_back = torch.argsort(order), torch.argsort(sequences)
        return (
            [output[back] for output in outputs],
            LstmState(ended.outputs[:, sequences_back], ended.cells[:, sequences_back]),
        )

    def empty_memory(self, num_sequences: int, device: torch.device) -> LstmState:
        """The memory of one direction that has read nothing."""
        layers = self.settings.num_hidden_layers
        return LstmState(
            torch.zeros(layers, num_sequences, self.settings.projection_size, device=device),
            torch.zeros(layers, num_sequences, self.settings.cell_size, device=device),
        )

    def _characters(self, batch: Batch) -> Tensor:
        if "characters" in batch.columns:
            return batch.columns["characters"]
        assert self._words is not None, "a batch without the column `characters` needs `set_words`"
        rows = self._words[batch.input_ids.cpu().numpy()]
        return torch.from_numpy(rows.astype(np.int64)).to(batch.input_ids.device)


def text_lengths(batch: Batch) -> tuple[int, ...]:
    """The length of every text, in tokens: a sequence is one text, or two if it has tokens of segment 1."""
    segments = batch.token_type_ids.cpu().numpy()
    if not segments.any():
        return batch.lengths
    seconds = np.flatnonzero(np.diff(segments, prepend=0) > 0)
    bounds = np.union1d(np.cumsum([0, *batch.lengths]), seconds)
    return tuple(np.diff(bounds).tolist())


def _by_steps(lengths: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """The order of tokens (step by step, the longest sequence first) and of sequences; how many are read at each
    step."""
    sizes = np.array(lengths)
    sequences = np.argsort(-sizes, kind="stable")
    starts = (np.cumsum(sizes) - sizes)[sequences]
    step, sequence = np.nonzero(np.arange(sizes.max())[:, None] < sizes[sequences])
    order = torch.from_numpy(starts[sequence] + step).to(device)
    return order, torch.from_numpy(sequences).to(device), tuple(np.bincount(step).tolist())


def _reversed(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """(tokens,) int64: the places of tokens with each sequence reversed; reversing again restores the order."""
    sizes = np.array(lengths)
    ends = np.cumsum(sizes)
    mirrored = np.repeat(2 * ends - sizes - 1, sizes) - np.arange(int(ends[-1]))
    return torch.from_numpy(mirrored).to(device)
