"""Words from their characters: convolutions, highway layers and a projection (Peters et al. 2018, section 3.4; Kim et
al. 2016; Jozefowicz et al. 2016).

A word's vector depends on its characters alone, so each word of a batch is computed once, however often it occurs, and
only up to the length of the longest word.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.chance import key
from unmask.models.elmo_settings import NUM_CHARACTERS, ElmoSettings
from unmask.models.layers import Linear

PADDING = NUM_CHARACTERS - 1
"""The id of the character that fills a word up; the last one, as in the released model."""
_CONVOLUTION_BOUND = 0.05
_CARRY_BIAS = -2.0


class Highway(nn.Module):
    """carry * relu(W x) + (1 - carry) * x, where carry = sigmoid(V x) (Srivastava et al. 2015).

    As in the released code, the carry gate is the share of the new value, not of what is carried over.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.carry = Linear(size, size)
        self.transform = Linear(size, size)
        for part, bias in ((self.carry, _CARRY_BIAS), (self.transform, 0.0)):
            nn.init.normal_(part.weight, std=1 / math.sqrt(size))
            nn.init.constant_(part.bias, bias)

    def forward(self, values: Tensor) -> Tensor:
        """(rows, size)."""
        carry = torch.sigmoid(self.carry(values))
        return torch.lerp(values, torch.relu(self.transform(values)), carry)


class CharacterCnn(nn.Module):
    """Turns the characters of words into vectors. Weights start as in the released code.

    Args:
        settings: filters, highway layers, projection.
    """

    def __init__(self, settings: ElmoSettings) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(NUM_CHARACTERS, settings.character_size))
        self.convolutions = nn.ModuleList(
            nn.Conv1d(settings.character_size, number, width) for width, number in settings.filters
        )
        self.highways = nn.ModuleList(Highway(settings.num_filters) for _ in range(settings.num_highway_layers))
        self.projection = Linear(settings.num_filters, settings.projection_size)
        self._activation = torch.relu if settings.activation == "relu" else torch.tanh
        self._widest = max(width for width, _ in settings.filters)
        nn.init.uniform_(self.embedding, -1.0, 1.0)
        for (width, _), convolution in zip(settings.filters, self.convolutions, strict=True):
            assert isinstance(convolution, nn.Conv1d)
            if settings.activation == "relu":
                nn.init.uniform_(convolution.weight, -_CONVOLUTION_BOUND, _CONVOLUTION_BOUND)
            else:
                nn.init.normal_(convolution.weight, std=1 / math.sqrt(width * settings.character_size))
            assert convolution.bias is not None
            nn.init.zeros_(convolution.bias)
        nn.init.normal_(self.projection.weight, std=1 / math.sqrt(settings.num_filters))
        nn.init.zeros_(self.projection.bias)

    def forward(self, characters: Tensor) -> Tensor:
        """The vector of each word.

        Args:
            characters: (tokens, characters) int64, the ids of each word's characters, filled up with `PADDING`.

        Returns:
            (tokens, projection) float.
        """
        words, place = distinct_rows(characters)
        return self._vectors(words)[place]

    def _vectors(self, words: Tensor) -> Tensor:
        embedded = functional.embedding(self._cropped(words), self.embedding).transpose(1, 2)  # (words, size, chars)
        largest = [convolution(embedded).max(-1).values for convolution in self.convolutions]
        values = self._activation(torch.cat(largest, 1))  # after the maximum: the same, as both functions increase
        for highway in self.highways:
            values = highway(values)
        projected: Tensor = self.projection(values)
        return projected

    def _cropped(self, words: Tensor) -> Tensor:
        """The characters without the padding common to all words, except as much as one filter sees: the maximum over
        places stays the same, since places that are all padding are alike."""
        longest = int((words != PADDING).sum(1).amax()) if len(words) else 0
        return words[:, : longest + self._widest]


def distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows without repetitions, and where each of the given rows is among them.

    Rows are told apart by a hash of 64 bits, and the result is compared with the input: if two different rows ever have
    the same hash, all rows are returned as they are.

    Args:
        rows: (n, columns) int64.

    Returns:
        (distinct, columns) int64 and (n,) int64.
    """
    factors = torch.tensor([key(column) | 1 for column in range(rows.shape[1])], device=rows.device)
    _, place = torch.unique((rows * factors).sum(1), return_inverse=True)  # products wrap around
    distinct = rows.new_empty(int(place.amax()) + 1 if len(place) else 0, rows.shape[1])
    distinct[place] = rows
    if torch.equal(distinct[place], rows):
        return distinct, place
    return rows, torch.arange(len(rows), device=rows.device)
