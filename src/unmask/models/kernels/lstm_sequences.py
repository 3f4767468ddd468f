"""One layer of an LSTM, in one direction or both, over the sequences of a packed batch.

On a GPU, cuDNN takes packed sequences as they are. On the CPU, PyTorch's kernel for a whole layer takes sequences of
one length; others it computes step by step, and the gradient of each step begins with zeros for all of them. There the
sequences are padded at their ends, which no state before sees, and for the direction from last to first each is first
reversed within itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence


def read_sequences(layer: nn.LSTM, values: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """The states of each direction after each token, every sequence read from a memory of zeros.

    Args:
        layer: of one layer, without projection, time first.
        values: (tokens, inputs) float, the sequences one after another.
        lengths: of the sequences, all at least 1.

    Returns:
        (tokens, directions * units), forward units first.
    """
    if values.device.type == "cuda":
        packed = pack_sequence(list(torch.split(values, list(lengths))), enforce_sorted=False)
        return torch.cat(unpack_sequence(layer(packed)[0]))
    ahead_weights, *behind_weights = layer.all_weights
    ahead, behind = _slots(lengths, values.device)
    states = [_read(values, ahead_weights, ahead, lengths)]
    if behind_weights:
        states.append(_read(values, behind_weights[0], behind, lengths))
    return torch.cat(states, dim=-1)


def _slots(lengths: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """(tokens,) int64 each: where each token is among (steps x sequences), read ahead, and read from the end."""
    sizes = torch.tensor(lengths)
    sequences = torch.repeat_interleave(torch.arange(len(lengths)), sizes)
    steps = torch.arange(len(sequences)) - (sizes.cumsum(0) - sizes)[sequences]
    reversed_steps = sizes[sequences] - 1 - steps
    ahead, behind = (of_read * len(lengths) + sequences for of_read in (steps, reversed_steps))
    return ahead.to(device), behind.to(device)


def _read(values: Tensor, weights: Sequence[Tensor], slots: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """(tokens, units): the states after the tokens, which are read in the order of their slots."""
    num_units = weights[1].shape[1]
    rows = values.new_zeros(max(lengths) * len(lengths), values.shape[1]).index_copy(0, slots, values)
    start = values.new_zeros(1, len(lengths), num_units)
    steps = rows.view(max(lengths), len(lengths), -1)
    states, *_ = torch.lstm(steps, (start, start), list(weights), True, 1, 0.0, False, False, False)
    return states.flatten(0, 1).index_select(0, slots)
