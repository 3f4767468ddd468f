"""An LSTM whose output is projected and whose memory and output are clipped (Sak et al. 2014; Peters et al. 2018).

`torch.nn.LSTM` has a projection (`proj_size`) but clips neither: with both clips off it computes the same, given
the forget gate's extra 1 in its bias; with them it cannot be used, on any device. Here one matrix product takes all
inputs, one more per step gives its four gates, and the gradient of each weight is one product over all steps, where
automatic differentiation would add up one matrix per step. It computes in float32 whatever the precision of the run:
recurrences lose most in a lower one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from unmask.models.layers import linear

_FORGET_BIAS = 1.0
"""Added to the forget gate beside its learned bias, as in the released code's cell."""


@dataclass(frozen=True)
class Memory:
    """What one LSTM, or a stack of them, remembers of each sequence; without a gradient.

    Attributes:
        outputs: (..., sequences, projection) float32, its last outputs, clipped.
        cells: (..., sequences, cell) float32, its cells, clipped.
    """

    outputs: Tensor
    cells: Tensor


class ProjectedLstm(nn.Module):
    """One LSTM in one direction. Weights start uniform within Glorot's bounds, biases at 0, as in the released code.

    Args:
        input_size: of a token's vector.
        cell_size: of the memory.
        projection_size: of the output.
        cell_clip, projection_clip: bounds on the absolute values of memory and output; None sets none.
    """

    def __init__(
        self,
        input_size: int,
        cell_size: int,
        projection_size: int,
        cell_clip: float | None = None,
        projection_clip: float | None = None,
    ) -> None:
        super().__init__()
        # Rows: input gate, candidate, forget gate, output gate.
        self.input_weight = nn.Parameter(torch.empty(4 * cell_size, input_size))
        self.hidden_weight = nn.Parameter(torch.empty(4 * cell_size, projection_size))
        self.bias = nn.Parameter(torch.zeros(4 * cell_size))
        self.projection = nn.Parameter(torch.empty(projection_size, cell_size))
        bound = math.sqrt(6 / (input_size + projection_size + 4 * cell_size))
        nn.init.uniform_(self.input_weight, -bound, bound)
        nn.init.uniform_(self.hidden_weight, -bound, bound)
        nn.init.xavier_uniform_(self.projection)
        self.cell_clip = math.inf if cell_clip is None else cell_clip
        self.projection_clip = math.inf if projection_clip is None else projection_clip

    @property
    def cell_size(self) -> int:
        return self.projection.shape[1]

    def forward(self, values: Tensor, active: Sequence[int], memory: Memory) -> tuple[Tensor, Memory]:
        """Reads sequences.

        Args:
            values: (tokens, inputs) float, step by step: at each step the tokens of the sequences that have not ended,
                the longest sequence first.
            active: how many sequences have not ended at each step; never increasing.
            memory: at the beginning, (sequences, size) each, the longest sequence first.

        Returns:
            (tokens, projection) float32 in the order of `values`, and the memory at the end of each sequence.
        """
        with torch.autocast(values.device.type, enabled=False):
            gates = linear(values.float(), self.input_weight, self._bias())
            outputs, last_outputs, last_cells = _Steps.apply(  # type: ignore[no-untyped-call]
                gates,
                self.hidden_weight,
                self.projection,
                memory.outputs,
                memory.cells,
                tuple(active),
                self.cell_clip,
                self.projection_clip,
            )
        return outputs, Memory(last_outputs, last_cells)

    def _bias(self) -> Tensor:
        forget = torch.zeros_like(self.bias).view(4, -1)
        forget[2] = _FORGET_BIAS
        return self.bias + forget.view(-1)


class _Steps(torch.autograd.Function):
    """All steps of the recurrence; no gradient flows through the memory it ends with."""

    @staticmethod
    def forward(
        ctx: Any,
        gates: Tensor,
        hidden_weight: Tensor,
        projection: Tensor,
        first_outputs: Tensor,
        first_cells: Tensor,
        active: tuple[int, ...],
        cell_clip: float,
        projection_clip: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        activated = gates.clone()  # (tokens, 4 * cell): input, candidate, forget, output
        cells = gates.new_empty(len(gates), projection.shape[1])
        outputs = gates.new_empty(len(gates), projection.shape[0])
        output, cell = first_outputs.clone(), first_cells.clone()  # of every sequence, the newest
        for start, end in pairwise(accumulate(active, initial=0)):
            count = end - start
            step = activated[start:end]
            step += linear(output[:count], hidden_weight, None)
            enter, candidate, forget, leave = step.chunk(4, 1)
            enter.sigmoid_()
            candidate.tanh_()
            step[:, 2 * cells.shape[1] :].sigmoid_()
            torch.mul(cell[:count], forget, out=cells[start:end])
            cells[start:end].addcmul_(enter, candidate).clamp_(-cell_clip, cell_clip)
            cell[:count] = cells[start:end]
            projected = linear(torch.tanh(cells[start:end]) * leave, projection, None)
            outputs[start:end] = projected.clamp_(-projection_clip, projection_clip)
            output[:count] = outputs[start:end]
        ctx.save_for_backward(activated, cells, outputs, hidden_weight, projection, first_outputs, first_cells)
        ctx.active, ctx.cell_clip, ctx.projection_clip = active, cell_clip, projection_clip
        ctx.mark_non_differentiable(output, cell)
        return outputs, output, cell

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        activated, cells, outputs, hidden_weight, projection, first_outputs, first_cells = ctx.saved_tensors
        size = cells.shape[1]
        cells_before = _before(cells, first_cells, ctx.active)
        tanh_cells = torch.tanh(cells)
        d_projected = gradients[0].clone()
        d_gates = torch.empty_like(activated)
        hidden_columns, projection_columns = hidden_weight.T.contiguous(), projection.T.contiguous()
        d_output = torch.zeros_like(first_outputs)  # of every sequence, from the step after
        d_cell = torch.zeros_like(first_cells)
        for start, end in reversed(list(pairwise(accumulate(ctx.active, initial=0)))):
            count = end - start
            enter, candidate, forget, leave = activated[start:end].chunk(4, 1)
            d_enter, d_candidate, d_forget, d_leave = d_gates[start:end].chunk(4, 1)
            d_step = d_projected[start:end]
            d_step += d_output[:count]
            d_step *= outputs[start:end].abs() < ctx.projection_clip
            d_hidden = linear(d_step, projection_columns, None)
            torch.mul(d_hidden, tanh_cells[start:end], out=d_leave)
            d_here = d_cell[:count]
            d_here += d_hidden * leave * (1 - tanh_cells[start:end].square())
            d_here *= cells[start:end].abs() < ctx.cell_clip
            torch.mul(d_here, candidate, out=d_enter)
            torch.mul(d_here, enter * (1 - candidate.square()), out=d_candidate)
            torch.mul(d_here, cells_before[start:end], out=d_forget)
            d_here *= forget
            d_enter *= enter * (1 - enter)
            passed = activated[start:end, 2 * size :]
            d_gates[start:end, 2 * size :] *= passed * (1 - passed)
            d_output[:count] = linear(d_gates[start:end], hidden_columns, None)
        d_hidden_weight = linear(_before(outputs, first_outputs, ctx.active).T, d_gates.T, None).T
        d_projection = linear(d_projected.T, (tanh_cells * activated[:, 3 * size :]).T, None)
        return d_gates, d_hidden_weight, d_projection, None, None, None, None, None


def _before(values: Tensor, first: Tensor, active: tuple[int, ...]) -> Tensor:
    """(tokens, size): the value that each sequence had a step before."""
    bounds = list(pairwise(accumulate(active, initial=0)))
    steps = [values[start : start + count] for (start, _), count in zip(bounds, active[1:], strict=False)]
    return torch.cat([first[: active[0]], *steps])
