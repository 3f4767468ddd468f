"""An LSTM whose output is projected and whose memory and output are clipped (Sak et al. 2014; Peters et al. 2018).

`torch.nn.LSTM` has a projection (`proj_size`) but clips neither: with both clips off it computes the same, given
the forget gate's extra 1 in its bias; with them it cannot be used, on any device. Here one matrix product takes all
inputs, one more per step gives its four gates, and the gradient of each weight is one product over all steps, where
automatic differentiation would add up one matrix per step. Products are in autocast's precision where that is on; what
is carried from step to step, and everything between the products, is in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from unmask.models.layers import compute_dtype, linear

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
        precision = compute_dtype(values)
        with torch.autocast(values.device.type, enabled=False):
            gates = linear(values.to(precision), self.input_weight.to(precision), self.bias.to(precision))
            outputs, last_outputs, last_cells = _Steps.apply(  # type: ignore[no-untyped-call]
                gates,
                self.hidden_weight.to(precision),
                self.projection.to(precision),
                memory.outputs,
                memory.cells,
                tuple(active),
                self.cell_clip,
                self.projection_clip,
            )
        return outputs, Memory(last_outputs, last_cells)


class _Steps(torch.autograd.Function):
    """All steps of the recurrence; no gradient flows through the memory it ends with.

    Of what is kept for the gradient, only what is projected is in the precision of products; the rest is in float32.
    """

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
        size, precision = projection.shape[1], gates.dtype
        cells = first_cells.new_empty(len(gates), size)
        activated = cells.new_empty(gates.shape)  # (tokens, 4 * cell): input, candidate, forget, output
        outputs = first_outputs.new_empty(len(gates), len(projection))
        leaving = gates.new_empty(len(gates), size)  # what is projected
        output, cell = first_outputs.clone(), first_cells.clone()  # of every sequence, the newest
        for rows in _steps(active):
            here = slice(0, rows.stop - rows.start)
            step = activated[rows]
            torch.add(gates[rows].float(), linear(output[here].to(precision), hidden_weight, None), out=step)
            enter, candidate, forget, leave = step.chunk(4, 1)
            enter.sigmoid_()
            candidate.tanh_()
            forget += _FORGET_BIAS
            step[:, 2 * size :].sigmoid_()
            torch.mul(cell[here], forget, out=cells[rows])
            cell[here] = cells[rows].addcmul_(enter, candidate).clamp_(-cell_clip, cell_clip)
            leaving[rows] = torch.tanh(cells[rows]) * leave
            outputs[rows] = linear(leaving[rows], projection, None)
            output[here] = outputs[rows].clamp_(-projection_clip, projection_clip)
        ctx.save_for_backward(activated, cells, leaving, outputs, hidden_weight, projection, first_outputs, first_cells)
        ctx.active, ctx.cell_clip, ctx.projection_clip = active, cell_clip, projection_clip
        ctx.mark_non_differentiable(output, cell)
        return outputs, output, cell

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        activated, cells, leaving, outputs, hidden_weight, projection, first_outputs, first_cells = ctx.saved_tensors
        d_gates, d_projected = leaving.new_empty(activated.shape), leaving.new_empty(outputs.shape)
        hidden_columns, projection_columns = hidden_weight.T.contiguous(), projection.T.contiguous()
        d_output = torch.zeros_like(first_outputs)  # of every sequence, from the step after
        d_cell = torch.zeros_like(first_cells)
        steps = _steps(ctx.active)
        for rows, before in reversed(list(zip(steps, [None, *steps], strict=False))):
            here = slice(0, rows.stop - rows.start)
            cells_before = (first_cells if before is None else cells[before])[here]
            enter, candidate, forget, leave = activated[rows].chunk(4, 1)
            tanh_cells = torch.tanh(cells[rows])
            d_step = gradients[0][rows] + d_output[here]
            d_projected[rows] = d_step * (outputs[rows].abs() < ctx.projection_clip)
            d_leaving = linear(d_projected[rows], projection_columns, None).float()
            d_here = d_cell[here]
            d_here += _through_tanh(d_leaving * leave, tanh_cells)
            d_here *= cells[rows].abs() < ctx.cell_clip
            d_activated = (
                _through_sigmoid(d_here * candidate, enter),
                _through_tanh(d_here * enter, candidate),
                _through_sigmoid(d_here * cells_before, forget),
                _through_sigmoid(d_leaving * tanh_cells, leave),
            )
            torch.cat(d_activated, 1, out=d_gates[rows])
            d_here *= forget
            d_output[here] = linear(d_gates[rows], hidden_columns, None)
        following = zip(steps, ctx.active[1:], strict=False)
        outputs_before = torch.cat(
            [first_outputs[: ctx.active[0]], *(outputs[rows][:count] for rows, count in following)]
        )
        d_hidden_weight = linear(outputs_before.to(leaving.dtype).T, d_gates.T, None).T
        d_projection = linear(d_projected.T, leaving.T, None)
        return d_gates, d_hidden_weight, d_projection, None, None, None, None, None


def _steps(active: tuple[int, ...]) -> list[slice]:
    """The rows of each step."""
    return [slice(start, end) for start, end in pairwise(accumulate(active, initial=0))]


def _through_sigmoid(gradient: Tensor, values: Tensor) -> Tensor:
    """The gradient of x where that of `values` = sigmoid(x) is given."""
    through: Tensor = torch.ops.aten.sigmoid_backward(gradient, values)
    return through


def _through_tanh(gradient: Tensor, values: Tensor) -> Tensor:
    """The gradient of x where that of `values` = tanh(x) is given."""
    through: Tensor = torch.ops.aten.tanh_backward(gradient, values)
    return through
