"""What every way of choosing targets uses: random draws by token, ranks within a sequence, budgets; and sampling from a
softmax over a large vocabulary by numbers drawn beforehand (Clark et al. 2020, section 2).

All of it works on whole batches at once: to be sorted, packed values are laid out as a table with a row for each
sequence. What is read for every token is read by `index_select`, which takes a third of the time of indexing by a
tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unmask.batch import Batch
from unmask.chance import uniform

NOT_DRAWN = 2.0
"""The draw of a token that takes no part; real ones are below 1."""


@dataclass(frozen=True)
class TokenTable:
    """A batch's tokens as the places of a table with a row for each sequence.

    Attributes:
        sequence: (tokens,) int64, each token's row.
        position: (tokens,) int64, each token's column.
        place: (tokens,) int64, each token's place in the flattened table.
        keys: (sequences,) int64.
        special: (tokens,) bool, the tokens that are never targets.
        lengths: (sequences,) float64.
        width: columns, as many as the longest sequence has tokens.
    """

    sequence: Tensor
    position: Tensor
    place: Tensor
    keys: Tensor
    special: Tensor
    lengths: Tensor
    width: int

    def draw(self, stream: int, tokens: Tensor | None = None) -> Tensor:
        """Numbers in [0, 1) from the sequences' keys and the tokens' positions, so the same in any batch.

        Args:
            stream: of chance, see `unmask.chance.uniform`.
            tokens: (n,) int64, those to draw for; None: all.

        Returns:
            (tokens,) or (n,) float64.
        """
        if tokens is None:
            return uniform(self.of_sequence(self.keys), self.position, stream)
        return uniform(self.keys[self.sequence[tokens]], self.position[tokens], stream)

    def of_sequence(self, values: Tensor) -> Tensor:
        """(tokens,): for every token the value, among `values` (sequences,), of its sequence."""
        return values.index_select(0, self.sequence)

    def spread(self, values: Tensor, fill: float) -> Tensor:
        """(sequences, width): `values` (tokens,) as a table, with `fill` after the end of a sequence."""
        table = values.new_full((len(self.keys) * self.width,), fill)
        return table.scatter_(0, self.place, values).view(-1, self.width)

    def collect(self, table: Tensor) -> Tensor:
        """(tokens,): the entries of a table (sequences, width)."""
        return table.reshape(-1).index_select(0, self.place)

    def order(self, draws: Tensor) -> Tensor:
        """(sequences, width) int64: each sequence's positions by ascending draw, padding last.

        By numpy, which sorts short rows several times as fast as PyTorch.
        """
        return torch.from_numpy(np.argsort(self.spread(draws, fill=NOT_DRAWN).numpy(), axis=1))

    def ranks(self, draws: Tensor) -> Tensor:
        """(tokens,) int64: the place of each token's draw among those of its sequence, from 0."""
        order = self.order(draws)
        columns = torch.arange(self.width, device=order.device).expand_as(order)
        return self.collect(torch.empty_like(order).scatter_(1, order, columns))

    def budgets(self, target_prob: float) -> Tensor:
        """(sequences,) int64: how many targets each sequence gets: this share of its tokens, rounded, at least one."""
        return torch.floor(self.lengths * target_prob + 0.5).long().clamp(min=1)

    def take_in_turn(self, turns: Tensor, target_prob: float) -> Tensor:
        """Takes tokens until each sequence's budget is spent, or all but the special ones are taken.

        Args:
            turns: (tokens,) int64: lower ones are taken first, tokens of one turn from left to right.
            target_prob: share of a sequence's tokens, special ones counted.

        Returns:
            (tokens,) bool, True for a token that is taken.
        """
        never = torch.iinfo(torch.int64).max
        order = (turns * self.width + self.position).masked_fill(self.special, never)  # distinct for ordinary tokens
        budgets = self.budgets(target_prob)
        earliest = torch.topk(self.spread(order, fill=never), int(budgets.max()), dim=1, largest=False).values
        last = earliest.gather(1, budgets[:, None] - 1).squeeze(1)
        return (order <= self.of_sequence(last)) & ~self.special


def token_table(batch: Batch) -> TokenTable:
    """The table of a batch on the CPU, with keys and the column `special_tokens_mask`."""
    assert batch.keys is not None, "masks are drawn from the batch's keys"
    width = max(batch.lengths)
    sequence = batch.sequence_of_token()
    return TokenTable(
        sequence,
        batch.position_ids,
        sequence * width + batch.position_ids,
        batch.keys,
        batch.columns["special_tokens_mask"],
        (batch.bounds[1:] - batch.bounds[:-1]).double(),
        width,
    )


_ROWS = 32
"""Rows taken together on the CPU: the probabilities of all rows are larger than any cache."""

_BELOW_ONE = 1 - 2.0**-24
"""The largest float32 below 1."""


@torch.no_grad()
def sample_from_softmax(logits: Tensor, uniforms: Tensor) -> Tensor:
    """One class per row, drawn from softmax(logits) by inverting its cumulative sum; no gradient goes through it.

    The released code of ELECTRA adds Gumbel noise to all logits and takes the largest, which gives the same
    distribution; here one number per row decides, so that the draw can be keyed by the place in the text.

    Args:
        logits: (rows, classes) float; softmax and sums are computed in float32.
        uniforms: (rows,) float, each in [0, 1).

    Returns:
        (rows,) int64: the first class whose cumulative probability is over the row's number; never one of probability
        0. A row whose logits are NaN or infinite has no probabilities, and gets some class.
    """
    size = _ROWS if logits.device.type == "cpu" else max(1, len(logits))
    fractions = uniforms.to(torch.float32).clamp(max=_BELOW_ONE)  # rounded up to 1, it would be over every sum
    drawn = []
    for rows, its_fractions in zip(torch.split(logits, size), torch.split(fractions, size), strict=True):
        cumulative = torch.softmax(rows, -1, dtype=torch.float32).cumsum(-1)
        thresholds = its_fractions[:, None] * cumulative[:, -1:]  # the last sum is 1 but for rounding
        drawn.append(torch.searchsorted(cumulative, thresholds, right=True).squeeze(1))
    # In a row of NaN no sum exceeds the number: the index found is past the last class, where there is no embedding. It
    # is clamped so that the run gets to its loss, which shows that it has diverged.
    return torch.cat(drawn).clamp_(max=logits.shape[-1] - 1)
