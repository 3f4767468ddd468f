"""The LSTM with projection and clipping: against the formulas step by step, gradients included, and against PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unmask.models.elmo.projected_lstm import LstmState, ProjectedLstm

CLIP = 0.25
"""Low enough for many memories and outputs of these tests to be clipped."""


def slow(lstm: ProjectedLstm, sequence: Tensor, output: Tensor, cell: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    """One sequence by the formulas, a step at a time."""
    outputs = []
    for values in sequence:
        gates = lstm.input_weight @ values + lstm.hidden_weight @ output + lstm.bias
        enter, candidate, forget, leave = gates.chunk(4)
        cell = torch.sigmoid(forget + 1) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
        cell = cell.clamp(-lstm.cell_clip, lstm.cell_clip)
        output = lstm.projection @ (torch.sigmoid(leave) * torch.tanh(cell))
        output = output.clamp(-lstm.projection_clip, lstm.projection_clip)
        outputs.append(output)
    return outputs, output, cell


def by_steps(sequences: list[Tensor]) -> tuple[Tensor, list[int]]:
    """Sequences, the longest first, step after step."""
    longest = len(sequences[0])
    active = [sum(len(sequence) > step for sequence in sequences) for step in range(longest)]
    values = [sequences[number][step] for step in range(longest) for number in range(active[step])]
    return torch.stack(values), active


def test_outputs_memory_and_gradients_are_those_of_the_formulas() -> None:
    torch.manual_seed(0)
    lstm = ProjectedLstm(5, 7, 3, cell_clip=CLIP, projection_clip=CLIP / 2)
    for parameter in lstm.parameters():
        nn.init.normal_(parameter)
    sequences = [torch.randn(length, 5, requires_grad=True) for length in (6, 4, 4, 1)]
    memory = LstmState(torch.randn(4, 3).clamp(-0.1, 0.1), torch.randn(4, 7).clamp(-CLIP, CLIP))
    weights = [torch.randn(len(sequence), 3) for sequence in sequences]

    values, active = by_steps(sequences)
    outputs, ended = lstm(values, active, memory)
    flat_weights, _ = by_steps(weights)
    (outputs * flat_weights).sum().backward()
    ours = [parameter.grad for parameter in (*lstm.parameters(), *sequences)]
    lstm.zero_grad()
    for sequence in sequences:
        sequence.grad = None

    total, clipped, expected = torch.zeros(()), 0, []
    for number, sequence in enumerate(sequences):
        its_outputs, output, cell = slow(lstm, sequence, memory.outputs[number], memory.cells[number])
        expected.append(torch.stack(its_outputs))
        total = total + (expected[-1] * weights[number]).sum()
        torch.testing.assert_close(ended.outputs[number], output)
        torch.testing.assert_close(ended.cells[number], cell)
        clipped += int((expected[-1].abs() == CLIP / 2).sum()) + int((cell.abs() == CLIP).sum())
    assert clipped > 10, "nothing is clipped: the test shows nothing of it"
    torch.testing.assert_close(outputs, by_steps(expected)[0])
    total.backward()
    theirs = [parameter.grad for parameter in (*lstm.parameters(), *sequences)]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)  # float32 sums of some 100 terms, in another order


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_without_clipping_it_is_the_lstm_of_pytorch() -> None:
    """Its gates stand in another order, its biases are two, and the 1 of the forget gate goes into one of them."""
    torch.manual_seed(1)
    ours = ProjectedLstm(4, 6, 3)
    theirs = nn.LSTM(4, 6, proj_size=3)

    def reordered(weight: Tensor) -> Tensor:
        enter, candidate, forget, leave = weight.detach().chunk(4)
        return torch.cat([enter, forget, candidate, leave])

    theirs.weight_ih_l0.data = reordered(ours.input_weight)
    theirs.weight_hh_l0.data = reordered(ours.hidden_weight)
    theirs.bias_ih_l0.data = reordered(ours.bias) + torch.cat([torch.zeros(6), torch.ones(6), torch.zeros(12)])
    theirs.bias_hh_l0.data.zero_()
    theirs.weight_hr_l0.data = ours.projection.detach().clone()
    values = torch.randn(5, 2, 4)  # (steps, sequences, inputs)
    outputs, memory = ours(values.reshape(10, 4), [2] * 5, LstmState(torch.zeros(2, 3), torch.zeros(2, 6)))
    expected, (last, cells) = theirs(values)
    torch.testing.assert_close(outputs, expected.reshape(10, 3))
    torch.testing.assert_close(memory.outputs, last[0])
    torch.testing.assert_close(memory.cells, cells[0])


def test_what_is_remembered_carries_on_as_if_there_had_been_no_break() -> None:
    torch.manual_seed(2)
    lstm = ProjectedLstm(4, 6, 3, 3.0, 3.0)
    nothing = LstmState(torch.zeros(2, 3), torch.zeros(2, 6))
    values = torch.randn(8, 4)  # four steps of two sequences
    whole, ended = lstm(values, [2] * 4, nothing)
    first, between = lstm(values[:4], [2] * 2, nothing)
    second, last = lstm(values[4:], [2] * 2, between)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(last.outputs, ended.outputs)
    torch.testing.assert_close(last.cells, ended.cells)
    assert not between.outputs.requires_grad
    assert not between.cells.requires_grad


def test_under_autocast_only_products_are_rounded() -> None:
    torch.manual_seed(3)
    lstm = ProjectedLstm(8, 12, 6, 3.0, 3.0)  # never reached: what is clipped differs once values are rounded
    nothing = LstmState(torch.zeros(2, 6), torch.zeros(2, 12))
    results = []
    for rounded in (False, True):
        lstm.zero_grad()
        values = torch.linspace(-2, 2, 160).view(20, 8).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
            outputs, ended = lstm(values, [2] * 8 + [1] * 4, nothing)
        outputs.square().sum().backward()
        results.append([outputs, ended.outputs, ended.cells, values.grad, *(each.grad for each in lstm.parameters())])
    for exact, near in zip(*results, strict=True):
        assert near.dtype == torch.float32
        assert 0 < (near - exact).norm() < 0.02 * exact.norm()
