"""One LSTM over sequences of several lengths: PyTorch's own packed sequences, which are slow on the CPU, say what is
right."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from unmask.models.kernels.lstm_sequences import read_sequences


def packed_states(layer: nn.LSTM, values: Tensor, lengths: tuple[int, ...]) -> Tensor:
    packed = pack_sequence(list(torch.split(values, list(lengths))), enforce_sorted=False)
    return torch.cat(unpack_sequence(layer(packed)[0]))


@pytest.mark.parametrize("bidirectional", [False, True])
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6).map(tuple))
def test_states_and_gradients_are_those_of_packed_sequences(lengths: tuple[int, ...], bidirectional: bool) -> None:
    torch.manual_seed(sum(lengths))
    layer = nn.LSTM(5, 7, bidirectional=bidirectional)
    values = torch.randn(sum(lengths), 5, requires_grad=True)
    weight = torch.randn(sum(lengths), 14 if bidirectional else 7)
    results = []
    for read in (read_sequences, packed_states):
        states = read(layer, values, lengths)
        gradients = torch.autograd.grad((states * weight).sum(), [values, *layer.parameters()])
        results.append([states, *gradients])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
