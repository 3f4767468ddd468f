"""Where the sequences of a packed batch lie, and the rows that layers compute for them on the processor.

There, sequences of equal length need only a reshape; others are sorted into groups of similar length and padded:
inside attention only, or from the first layer to the last where the padding is next to nothing. What follows from the
bounds is computed once per batch, in a `Layout`, and used by every layer.

An example: sequences of 5, 4 and 30 tokens make two groups, the longest first: one of 30, and one of two that are
padded to 5. Its `slots` say where each of the 39 tokens is among the 30 + 2 x 5 = 40 padded rows:

>>> layout = Layout(torch.tensor([0, 5, 9, 39]), (5, 4, 30), max_length=30)
>>> [(group.num_sequences, group.length) for group in layout.groups]
[(1, 30), (2, 5)]
>>> layout.slots[:9].tolist()  # the first two sequences come after the 30 rows of the third
[30, 31, 32, 33, 34, 35, 36, 37, 38]
>>> layout.slots[9:12].tolist()  # the third begins at row 0
[0, 1, 2]
>>> layout.pads.tolist()  # the second has a fifth row
[39]
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from unmask.batch import Batch
from unmask.models.kernels.products import extend, recurring_rows, reuses_shapes, rounded_up

_GROUP_SLACK = 16
"""A group includes sequences shorter than its longest by up to this many tokens, or up to an eighth if that is more."""

_SMALL_SHARE = 10
"""Padding of at most one token to this many is carried along: nothing is moved before and after attention then."""


@dataclass(frozen=True)
class Group:
    """Sequences that are attended in one call.

    Attributes:
        length: the tokens of the longest, or rounded up from that; all are padded to it.
        padding: (sequences, 1, 1, length) bool, True where there is no token; None where no sequence is padded.
        causal: whether they are read from left to right, whatever the encoder.
    """

    num_sequences: int
    length: int
    padding: Tensor | None
    causal: bool = False


@dataclass(frozen=True)
class Layout:
    """Where the sequences of a batch lie, and how they are grouped, which is computed on demand.

    Attributes:
        bounds: (sequences + 1,) int32, as in `Batch`, on the device where attention will run.
        lengths: (sequences,), their lengths as Python integers; empty for a batch padded to a bucket, whose lengths
            only the device has.
        max_length: upper bound on the tokens of a sequence.
        position_ids: (tokens,) int64, as in `Batch`; None where no layer needs them.
        left_to_right: (sequences,), as in `Batch`; empty: all are read as the encoder reads.
        reuses_shapes: True: the numbers of rows and of the groups' sequences and tokens are rounded, so that batch
            after batch has shapes that were there before.
        angles: of rotary positions, kept for all layers; see `unmask.models.kernels.rotary`.
    """

    bounds: Tensor
    lengths: tuple[int, ...]
    max_length: int
    _: KW_ONLY
    position_ids: Tensor | None = None
    left_to_right: tuple[bool, ...] = ()
    reuses_shapes: bool = False
    angles: dict[tuple[float, int, torch.dtype], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[Group, ...]:
        """In the order of their slots."""
        return self._grouping[0]

    @property
    def slots(self) -> Tensor | None:
        """(tokens,) int64, the place of each token among the groups' padded rows; None where all sequences have one
        length, so that the tokens are in place already."""
        return self._grouping[1]

    @property
    def num_slots(self) -> int:
        return sum(group.num_sequences * group.length for group in self.groups)

    @cached_property
    def directions(self) -> list[tuple[bool, Tensor, Layout]]:
        """The sequences read as the encoder reads, and those read from left to right: whether they are the latter,
        their tokens, (tokens,) int64, and their layout. Found once, by the lengths."""
        assert self.lengths, "a padded batch is read in one direction"
        sizes, reads_on = torch.tensor(self.lengths), torch.tensor(self.left_to_right)
        device, parts = self.bounds.device, []
        for is_causal in (False, True):
            chosen = reads_on == is_causal
            tokens = chosen.repeat_interleave(sizes).nonzero().squeeze(1)
            lengths = sizes[chosen]
            bounds = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()
            layout = Layout(bounds.to(device), tuple(lengths.tolist()), int(lengths.max()))
            parts.append((is_causal, tokens.to(device), layout))
        return parts

    @cached_property
    def keeps_padding(self) -> bool:
        """Whether layers compute the groups' padded rows, padding included, in place of the packed tokens."""
        if self.bounds.device.type != "cpu" or not self.lengths or self.slots is None:
            return False
        return _is_small(self.num_slots - len(self.slots), len(self.slots))

    @cached_property
    def num_rows(self) -> int:
        """How many rows layers compute: tokens, padding if it is kept, and with `reuses_shapes` a few of zeros."""
        used = self.num_slots if self.keeps_padding else sum(self.lengths)
        return recurring_rows(used) if self.reuses_shapes else used

    def enter(self, packed: Tensor) -> Tensor:
        """The rows that layers compute, (rows, ...), from those of the packed tokens, (tokens, ...)."""
        if not self.lengths:
            return packed
        return extend(self.spread(packed) if self.keeps_padding else packed, self.num_rows)

    def leave(self, rows: Tensor) -> Tensor:
        """The packed tokens' rows, (tokens, ...), of those that layers compute, (rows, ...)."""
        if not self.keeps_padding:
            return rows[: sum(self.lengths)] if self.lengths else rows
        return _Gather.apply(rows, self.slots)  # type: ignore[no-untyped-call, no-any-return]

    def rows_of(self, tokens: Tensor) -> Tensor:
        """(positions,) int64: where these tokens of the batch are among the rows that layers compute; with
        `reuses_shapes` then a few times the first row."""
        rows = self.slots[tokens] if self.keeps_padding and self.slots is not None else tokens
        return extend(rows, recurring_rows(len(rows))) if self.reuses_shapes else rows

    def spread(self, packed: Tensor) -> Tensor:
        """(slots, ...), each token in its slot, zero where there is padding."""
        assert self.slots is not None, "sequences of one length are in place"
        spread = packed.new_empty((self.num_slots, *packed.shape[1:])).index_fill_(0, self.pads, 0)
        return spread.index_copy_(0, self.slots, packed)

    def split(self, rows: Tensor) -> list[tuple[Group, Tensor]]:
        """Each group with its rows, (sequences, length, ...), of those that layers compute, (rows, ...)."""
        rows = rows[: self.num_slots if self.keeps_padding else sum(self.lengths)]
        if self.slots is not None and not self.keeps_padding:
            rows = self.spread(rows)
        parts = torch.split(rows, [group.num_sequences * group.length for group in self.groups])
        return [
            (group, part.view(group.num_sequences, group.length, *rows.shape[1:]))
            for group, part in zip(self.groups, parts, strict=True)
        ]

    def join(self, parts: list[Tensor]) -> Tensor:
        """The rows that layers compute, (rows, ...), from those of each group, (sequences, length, ...)."""
        flat = [part.flatten(0, 1) for part in parts]
        joined = torch.cat(flat) if len(flat) > 1 else flat[0]
        if self.slots is not None and not self.keeps_padding:
            joined = _Gather.apply(joined, self.slots)  # type: ignore[no-untyped-call]
        return extend(joined, self.num_rows)

    @cached_property
    def pads(self) -> Tensor:
        """(pads,) int64, the slots that hold no token."""
        assert self.slots is not None, "sequences of one length have no padding"
        is_pad = torch.ones(self.num_slots, dtype=torch.bool, device=self.slots.device)
        return is_pad.index_fill_(0, self.slots, False).nonzero().squeeze(1)

    @cached_property
    def _grouping(self) -> tuple[tuple[Group, ...], Tensor | None]:
        return _group_sequences(self.bounds, self.lengths, self.reuses_shapes, self.left_to_right)


def layout_for(batch: Batch, embedded: Tensor) -> Layout:
    """The layout of a batch whose embeddings these are."""
    rounds = reuses_shapes(embedded) and bool(batch.lengths)
    return Layout(
        batch.bounds,
        batch.lengths,
        batch.max_length,
        position_ids=batch.position_ids,
        left_to_right=batch.left_to_right,
        reuses_shapes=rounds,
    )


def _group_sequences(
    bounds: Tensor, lengths: tuple[int, ...], rounds: bool, left_to_right: tuple[bool, ...]
) -> tuple[tuple[Group, ...], Tensor | None]:
    """The groups and their slots; lengths are rounded up if `rounds`, unless all are the same."""
    longest = max(lengths)
    is_mixed = len(set(left_to_right)) > 1
    causal = any(left_to_right) and not is_mixed
    if min(lengths) == longest and not is_mixed:
        return (Group(len(lengths), longest, None, causal),), None
    longest = rounded_up(longest) if rounds else longest
    if _is_small(len(lengths) * longest - sum(lengths), sum(lengths)) and not is_mixed:
        places = torch.arange(longest) < torch.tensor(lengths)[:, None]  # (sequences, longest)
        group = Group(len(lengths), longest, ~places[:, None, None].to(bounds.device), causal)
        return (group,), places.flatten().nonzero().squeeze(1).to(bounds.device)
    groups = []
    shifts = torch.empty(len(lengths), dtype=torch.int64)  # from a token's place in the batch to its slot
    starts = torch.tensor((0, *lengths)).cumsum(0)
    next_slot = 0
    directions = left_to_right or (False,) * len(lengths)
    for members in _group(lengths, directions, in_powers_of_two=rounds):
        length = rounded_up(lengths[members[0]]) if rounds else lengths[members[0]]
        sizes = torch.tensor([lengths[member] for member in members])
        shifts[members] = next_slot + length * torch.arange(len(members)) - starts[members]
        padding = torch.arange(length) >= sizes[:, None, None, None]
        is_padded = int(sizes[-1]) < length
        groups.append(
            Group(len(members), length, padding.to(bounds.device) if is_padded else None, directions[members[0]])
        )
        next_slot += length * len(members)
    slots = torch.arange(sum(lengths)) + torch.repeat_interleave(shifts, torch.tensor(lengths))
    return tuple(groups), slots.to(bounds.device)


def _is_small(num_pads: int, num_tokens: int) -> bool:
    return num_pads * _SMALL_SHARE <= num_tokens


def _group(lengths: tuple[int, ...], directions: tuple[bool, ...], in_powers_of_two: bool) -> list[list[int]]:
    """Sequence numbers by direction and descending length, cut where the next would be padded by more than the slack;
    and then, if so wanted, into parts of 1, 2, 4, ... sequences, the largest first."""
    groups: list[list[int]] = []
    for sequence in sorted(range(len(lengths)), key=lambda number: (directions[number], -lengths[number])):
        first = groups[-1][0] if groups else sequence
        longest = lengths[first]
        is_too_short = longest - lengths[sequence] > max(_GROUP_SLACK, longest // 8)
        if not groups or is_too_short or directions[first] != directions[sequence]:
            groups.append([])
        groups[-1].append(sequence)
    return [part for group in groups for part in _powers_of_two(group)] if in_powers_of_two else groups


def _powers_of_two(group: list[int]) -> list[list[int]]:
    parts = []
    while group:
        size = 1 << (len(group).bit_length() - 1)
        parts.append(group[:size])
        group = group[size:]
    return parts


class _Gather(torch.autograd.Function):
    """Selects rows, none of them twice, so that the gradient can be copied to its rows where PyTorch would add it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.num_rows = rows.shape[0]
        return rows.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        gradient = gradients[0]
        return gradient.new_zeros((ctx.num_rows, *gradient.shape[1:])).index_copy_(0, places, gradient), None
