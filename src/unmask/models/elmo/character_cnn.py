"""Words from their characters: convolutions, highway layers and a projection (Peters et al. 2018, section 3.4; Kim et
al. 2016; Jozefowicz et al. 2016).

A word's vector depends on its characters alone, so each word of a batch is computed once, however often it occurs. Some
hundred words of like length at a time go through the filters, so that short words do not pay for long ones.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.models.elmo.settings import NUM_CHARACTERS, ElmoSettings
from unmask.models.kernels.products import Linear, compute_dtype, linear

PADDING = NUM_CHARACTERS - 1
"""The id of the character that pads a word; the last one, as in the released model."""
_WORDS = 512
"""Words that go through the filters at once: few enough that the responses of some 500 filters stay in the cache."""
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
    """Turns the characters of words into vectors. Weights start as in the released code."""

    def __init__(self, settings: ElmoSettings) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(NUM_CHARACTERS, settings.character_size))
        self.convolutions = nn.ModuleList(
            nn.Conv1d(settings.character_size, number, width) for width, number in settings.filters
        )
        self.highways = nn.ModuleList(Highway(settings.num_filters) for _ in range(settings.num_highway_layers))
        self.projection = Linear(settings.num_filters, settings.projection_size)
        self._activation = torch.relu if settings.activation == "relu" else torch.tanh
        self._filters = settings.filters
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
        """(tokens, projection) from the ids of each word's characters, (tokens, characters) padded with `PADDING`."""
        words, place = torch.unique(characters, dim=0, return_inverse=True)
        return self._vectors(words)[place]

    def _vectors(self, words: Tensor) -> Tensor:
        lengths = (words != PADDING).sum(1)
        order = torch.argsort(lengths, stable=True)
        pieces = zip(torch.split(words[order], _WORDS), torch.split(lengths[order], _WORDS), strict=True)
        largest = [self._largest(some, int(of_some[-1]) if len(some) else 0) for some, of_some in pieces]
        values = torch.cat(largest)[torch.argsort(order)]
        for highway in self.highways:
            values = highway(values)
        projected: Tensor = self.projection(values)
        return projected

    def _largest(self, words: Tensor, longest: int) -> Tensor:
        """(words, filters): the largest response of each filter to words of at most `longest` characters.

        Of the padding as much is read as one filter sees: the maximum over places stays the same, since places that are
        all padding are alike. Bias and activation come after the maximum: the same, as both functions increase.
        """
        embedded = functional.embedding(words[:, : longest + self._widest], self.embedding)
        weights, biases = [], []
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            assert convolution.bias is not None
            weight = convolution.weight.transpose(1, 2)  # (filters, width, size)
            weights.append(functional.pad(weight, (0, 0, 0, self._widest - weight.shape[1])))
            biases.append(convolution.bias)
        precision = compute_dtype(embedded)
        with torch.autocast(words.device.type, enabled=False):
            largest: Tensor = _LargestResponses.apply(  # type: ignore[no-untyped-call]
                embedded.to(precision), torch.cat(weights).flatten(1).to(precision), self._filters
            )
            return self._activation(largest + torch.cat(biases).to(precision))


class _LargestResponses(torch.autograd.Function):
    """The largest response of each filter over the places of each word.

    One product computes all filters at all places, and their gradients go to the places of the largest responses. (By
    PyTorch's convolution and maximum a word takes nearly twice as long on a CPU.)
    """

    @staticmethod
    def forward(ctx: Any, embedded: Tensor, weight: Tensor, filters: tuple[tuple[int, int], ...]) -> Tensor:
        """(words, filters) from `embedded` (words, characters, size) and `weight` (filters, widest * size), whose rows
        end in zeros where a filter is narrower."""
        words, characters, size = embedded.shape
        widest = weight.shape[1] // size
        padded = functional.pad(embedded, (0, 0, 0, widest - 1))
        windows = padded.as_strided((words, characters, widest * size), (padded.stride(0), size, 1))
        windows = windows.reshape(words * characters, weight.shape[1])
        responses = linear(windows, weight, None).view(words, characters, len(weight))
        of_widths = torch.split(responses, [number for _, number in filters], 2)
        largest, places = zip(
            *(
                of_width[:, : characters - width + 1].max(1)
                for of_width, (width, _) in zip(of_widths, filters, strict=True)
            ),
            strict=True,
        )
        ctx.shape = embedded.shape
        ctx.save_for_backward(windows, weight, torch.cat(places, 1))
        return torch.cat(largest, 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        windows, weight, places = ctx.saved_tensors
        words, characters, size = ctx.shape
        widest = weight.shape[1] // size
        d_responses = weight.new_zeros(words, characters, len(weight))
        d_responses.scatter_(1, places[:, None], gradients[0][:, None])
        d_responses = d_responses.view(words * characters, len(weight))
        d_windows = linear(d_responses, weight.T, None).view(words, characters, widest, size).float()
        d_embedded = d_windows.new_zeros(words, characters + widest - 1, size)
        for offset in range(widest):
            d_embedded[:, offset : offset + characters] += d_windows[:, :, offset]
        return d_embedded[:, :characters].to(weight.dtype), linear(d_responses.T, windows.T, None), None
