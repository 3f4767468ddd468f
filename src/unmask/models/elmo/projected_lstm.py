"""An LSTM whose output is projected and whose memory and output are clipped (Sak et al. 2014; Peters et al. 2018).

`torch.nn.LSTM` has a projection (`proj_size`) but clips neither: with both clips off it computes the same, given
the forget gate's extra 1 in its bias; with them it cannot be used, on any device. Here one matrix product per step
gives the four gates, and the gradient of each weight is one product over all steps, where automatic differentiation
would add up one matrix per step. Products are in autocast's precision where that is on; what is carried from step to
step, and everything between the products, is in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from unmask.models.kernels.products import compute_dtype, linear

_FORGET_BIAS = 1.0
"""Added to the forget gate beside its learned bias, as in the released code's cell."""


@dataclass(frozen=True)
class LstmState:
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

    def forward(self, values: Tensor, active: Sequence[int], memory: LstmState) -> tuple[Tensor, LstmState]:
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
            outputs, last_outputs, last_cells = _Steps.apply(  # type: ignore[no-untyped-call]
                values.to(precision),
                torch.cat([self.input_weight, self.hidden_weight], 1).to(precision),
                self.bias,
                self.projection.to(precision),
                memory.outputs,
                memory.cells,
                tuple(active),
                self.cell_clip,
                self.projection_clip,
            )
        return outputs, LstmState(last_outputs, last_cells)


class _Steps(torch.autograd.Function):
    """All steps of the recurrence; no gradient flows through the memory it ends with.

    Of what is kept for the gradient, what enters a product is in the precision of products; the rest is in float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        weight: Tensor,
        bias: Tensor,
        projection: Tensor,
        first_outputs: Tensor,
        first_cells: Tensor,
        active: tuple[int, ...],
        cell_clip: float,
        projection_clip: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        tokens, input_size = values.shape
        projection_size, size = projection.shape
        inputs = values.new_empty(tokens, input_size + projection_size)  # of a step: its tokens, the last outputs
        inputs[:, :input_size] = values
        activated = first_cells.new_empty(tokens, 4 * size)  # input, candidate, forget, output
        cells = first_cells.new_empty(tokens, size)
        leaving = values.new_empty(tokens, size)  # what is projected
        outputs = first_outputs.new_empty(tokens, projection_size)
        offsets = bias.clone()
        offsets[2 * size : 3 * size] += _FORGET_BIAS
        output, cell = first_outputs.clone(), first_cells.clone()  # of every sequence, the newest
        for rows in _steps(active):
            here = slice(0, rows.stop - rows.start)
            inputs[rows, input_size:] = output[here]
            step = activated[rows].copy_(linear(inputs[rows], weight, None)).add_(offsets)
            enter, candidate, forget, leave = step.chunk(4, 1)
            enter.sigmoid_()
            candidate.tanh_()
            step[:, 2 * size :].sigmoid_()
            torch.mul(cell[here], forget, out=cells[rows])
            cell[here] = cells[rows].addcmul_(enter, candidate).clamp_(-cell_clip, cell_clip)
            leaving[rows] = torch.tanh(cells[rows]).mul_(leave)
            outputs[rows] = linear(leaving[rows], projection, None)
            output[here] = outputs[rows].clamp_(-projection_clip, projection_clip)
        ctx.save_for_backward(inputs, activated, cells, leaving, outputs, weight, projection, first_cells)
        ctx.active, ctx.cell_clip, ctx.projection_clip = active, cell_clip, projection_clip
        ctx.mark_non_differentiable(output, cell)
        return outputs, output, cell

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, activated, cells, leaving, outputs, weight, projection, first_cells = ctx.saved_tensors
        input_size = inputs.shape[1] - outputs.shape[1]
        d_inputs, d_gates = torch.empty_like(inputs), inputs.new_empty(activated.shape)
        d_projected = inputs.new_empty(outputs.shape)
        d_activated = torch.empty_like(activated[: ctx.active[0]])  # of one step
        d_output = first_cells.new_zeros(len(first_cells), outputs.shape[1])  # of every sequence, from the step after
        d_cell = torch.zeros_like(first_cells)
        steps = _steps(ctx.active)
        for rows, before in reversed(list(zip(steps, [None, *steps], strict=False))):
            here = slice(0, rows.stop - rows.start)
            cells_before = (first_cells if before is None else cells[before])[here]
            enter, candidate, forget, leave = activated[rows].chunk(4, 1)
            d_enter, d_candidate, d_forget, d_leave = d_activated[here].chunk(4, 1)
            tanh_cells = torch.tanh(cells[rows])
            d_projected[rows] = _through_clip(gradients[0][rows] + d_output[here], outputs[rows], ctx.projection_clip)
            d_leaving = linear(d_projected[rows], projection.T, None).float()
            d_here = d_cell[here]
            d_here += _through_tanh(d_leaving * leave, tanh_cells)
            d_here = _through_clip(d_here, cells[rows], ctx.cell_clip)
            _through_sigmoid(d_here * candidate, enter, out=d_enter)
            _through_tanh(d_here * enter, candidate, out=d_candidate)
            _through_sigmoid(d_here * cells_before, forget, out=d_forget)
            _through_sigmoid(d_leaving * tanh_cells, leave, out=d_leave)
            torch.mul(d_here, forget, out=d_cell[here])
            d_gates[rows] = d_activated[here]
            d_inputs[rows] = linear(d_gates[rows], weight.T, None)
            d_output[here] = d_inputs[rows, input_size:]
        ones = inputs.new_ones(1, len(inputs))  # for the biases
        d_columns = linear(torch.cat([inputs.T, ones]), d_gates.T, None)
        d_projection = linear(d_projected.T.contiguous(), leaving.T, None)
        return d_inputs[:, :input_size], d_columns[:-1].T, d_columns[-1].float(), d_projection, *[None] * 5


def _steps(active: tuple[int, ...]) -> list[slice]:
    """The rows of each step."""
    return [slice(start, end) for start, end in pairwise(accumulate(active, initial=0))]


def _through_sigmoid(gradient: Tensor, values: Tensor, out: Tensor) -> None:
    """Writes into `out` the gradient of x where that of `values` = sigmoid(x) is given."""
    torch.ops.aten.sigmoid_backward.grad_input(gradient, values, grad_input=out)


def _through_tanh(gradient: Tensor, values: Tensor, out: Tensor | None = None) -> Tensor:
    """The gradient of x where that of `values` = tanh(x) is given; written into `out` where that is given."""
    out = torch.empty_like(gradient) if out is None else out
    through: Tensor = torch.ops.aten.tanh_backward.grad_input(gradient, values, grad_input=out)
    return through


def _through_clip(gradient: Tensor, values: Tensor, bound: float) -> Tensor:
    """The gradient of x where that of `values` = clamp(x) is given: 0 where x was clipped."""
    through: Tensor = torch.ops.aten.hardtanh_backward(gradient, values, -bound, bound)
    return through
