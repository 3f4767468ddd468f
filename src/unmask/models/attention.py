"""Scaled dot-product attention within each sequence of a packed batch (Vaswani et al. 2017, section 3.2.1).

Only attention needs to know where sequences begin and end. On a GPU, flash attention is given the bounds. Elsewhere,
sequences of equal length need only a reshape; others are sorted into groups of similar length and padded, inside
`attend` only, or from the first layer to the last where the padding is next to nothing. What follows from the bounds is
computed once per batch, in a `Layout`, and used by every layer. A causal encoder's tokens attend to themselves and to
those before them (Radford et al. 2018, section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from unmask.batch import Batch
from unmask.models.dropout import dropout, threshold_of
from unmask.models.kernels.matmul_attention import attend_by_products
from unmask.models.layers import compute_dtype, extend, recurring_rows, reuses_shapes, rounded_up

Backend = Literal["varlen", "matmul", "sdpa"]

_GROUP_SLACK = 16
"""A group includes sequences shorter than its longest by up to this many tokens, or up to an eighth if that is more."""

_SMALL_SHARE = 10
"""Padding of at most one token to this many is carried along: nothing is moved before and after attention then."""


@dataclass(frozen=True)
class Group:
    """Sequences that are attended in one call.

    Attributes:
        num_sequences: how many there are.
        length: the tokens of the longest, or rounded up from that; all are padded to it.
        padding: (sequences, 1, 1, length) bool, True where there is no token; None where no sequence is padded.
    """

    num_sequences: int
    length: int
    padding: Tensor | None


@dataclass(frozen=True)
class Layout:
    """Where the sequences of a batch lie, and how they are grouped, which is computed on demand.

    Attributes:
        bounds: (sequences + 1,) int32, as in `Batch`, on the device where attention will run.
        lengths: (sequences,), their lengths as Python integers; empty for a filled batch, whose lengths only the device
            knows.
        max_length: upper bound on the tokens of a sequence.
        reuses_shapes: True: the numbers of rows and of the groups' sequences and tokens are rounded, so that batch
            after batch has shapes that were there before.
    """

    bounds: Tensor
    lengths: tuple[int, ...]
    max_length: int
    reuses_shapes: bool = False

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

    @cached_property
    def pads(self) -> Tensor:
        """(pads,) int64, the slots that hold no token."""
        assert self.slots is not None, "sequences of one length have no padding"
        is_pad = torch.ones(self.num_slots, dtype=torch.bool, device=self.slots.device)
        return is_pad.index_fill_(0, self.slots, False).nonzero().squeeze(1)

    @cached_property
    def _grouping(self) -> tuple[tuple[Group, ...], Tensor | None]:
        return _group_sequences(self.bounds, self.lengths, self.reuses_shapes)


def lay_out(batch: Batch, embedded: Tensor) -> Layout:
    """The layout of a batch whose embeddings these are."""
    rounds = reuses_shapes(embedded) and bool(batch.lengths)
    return Layout(batch.bounds, batch.lengths, batch.max_length, reuses_shapes=rounds)


def _group_sequences(bounds: Tensor, lengths: tuple[int, ...], rounds: bool) -> tuple[tuple[Group, ...], Tensor | None]:
    """The groups and their slots; lengths are rounded up if that is asked, unless all are the same."""
    longest = max(lengths)
    if min(lengths) == longest:
        return (Group(len(lengths), longest, None),), None
    longest = rounded_up(longest) if rounds else longest
    if _is_small(len(lengths) * longest - sum(lengths), sum(lengths)):
        places = torch.arange(longest) < torch.tensor(lengths)[:, None]  # (sequences, longest)
        group = Group(len(lengths), longest, ~places[:, None, None].to(bounds.device))
        return (group,), places.flatten().nonzero().squeeze(1).to(bounds.device)
    groups = []
    shifts = torch.empty(len(lengths), dtype=torch.int64)  # from a token's place in the batch to its slot
    starts = torch.tensor((0, *lengths)).cumsum(0)
    next_slot = 0
    for members in _group(lengths, in_powers_of_two=rounds):
        length = rounded_up(lengths[members[0]]) if rounds else lengths[members[0]]
        sizes = torch.tensor([lengths[member] for member in members])
        shifts[members] = next_slot + length * torch.arange(len(members)) - starts[members]
        padding = torch.arange(length) >= sizes[:, None, None, None]
        groups.append(Group(len(members), length, padding.to(bounds.device) if int(sizes[-1]) < length else None))
        next_slot += length * len(members)
    slots = torch.arange(sum(lengths)) + torch.repeat_interleave(shifts, torch.tensor(lengths))
    return tuple(groups), slots.to(bounds.device)


def _is_small(num_pads: int, num_tokens: int) -> bool:
    return num_pads * _SMALL_SHARE <= num_tokens


def _group(lengths: tuple[int, ...], in_powers_of_two: bool) -> list[list[int]]:
    """Sequence numbers by descending length, cut where the next would be padded by more than the slack; and then, if so
    wanted, into parts of 1, 2, 4, ... sequences, the largest first."""
    groups: list[list[int]] = []
    for sequence in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        longest = lengths[groups[-1][0]] if groups else 0
        if longest - lengths[sequence] > max(_GROUP_SLACK, longest // 8) or not groups:
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


def attend(
    query_key_value: Tensor,
    layout: Layout,
    dropout_prob: float,
    training: bool,
    causal: bool = False,
) -> Tensor:
    """softmax(Q K^T / sqrt(head_size)) V within each sequence, for each head.

    Args:
        query_key_value: (rows, 3, heads, head_size) float: what the layout's `enter` gave, through layers.
        layout: of the batch.
        dropout_prob: of the attention probabilities, in [0, 1).
        training: False: no dropout.
        causal: True: no token attends to a later one.

    Returns:
        (rows, heads, head_size), as they were given.
    """
    prob = dropout_prob if training else 0.0
    dtype = compute_dtype(query_key_value)
    backend, _ = choose_backend(query_key_value.device, dtype, prob, query_key_value.shape[-1])
    if backend == "varlen":
        return _attend_varlen(query_key_value.to(dtype), layout, prob, causal)
    if not layout.lengths:
        return _attend_masked(query_key_value, layout, prob, causal)
    attend_group = _attend_matmul if backend == "matmul" else _attend_sdpa
    contexts = [
        attend_group(rows, group.padding, prob, causal).flatten(0, 1)
        for group, rows in zip(layout.groups, _split(query_key_value, layout), strict=True)
    ]  # of each group: (sequences x length, heads, head_size)
    joined = torch.cat(contexts) if len(contexts) > 1 else contexts[0]
    if layout.slots is not None and not layout.keeps_padding:
        joined = _Gather.apply(joined, layout.slots)  # type: ignore[no-untyped-call]
    return extend(joined, layout.num_rows)


def _split(rows: Tensor, layout: Layout) -> list[Tensor]:
    """The rows of each group, (sequences, length, 3, heads, head_size)."""
    rows = rows[: layout.num_slots if layout.keeps_padding else sum(layout.lengths)]
    if layout.slots is not None and not layout.keeps_padding:
        rows = layout.spread(rows)
    parts = torch.split(rows, [group.num_sequences * group.length for group in layout.groups])
    return [
        part.view(group.num_sequences, group.length, *rows.shape[1:])
        for part, group in zip(parts, layout.groups, strict=True)
    ]


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


def _attend_sdpa(rows: Tensor, padding: Tensor | None, prob: float, causal: bool) -> Tensor:
    # Padding stands at the end: under the causal mask no token sees it.
    mask = None if padding is None or causal else ~padding
    query, key, value = rows.transpose(1, 3).unbind(2)  # (sequences, heads, length, head_size)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=prob, is_causal=causal
    ).transpose(1, 2)


def _attend_matmul(rows: Tensor, padding: Tensor | None, prob: float, causal: bool) -> Tensor:
    return attend_by_products(rows, padding, threshold_of(prob), causal)


def _attend_masked(query_key_value: Tensor, layout: Layout, prob: float, causal: bool) -> Tensor:
    """Attention of all tokens of a filled batch to all, with other sequences masked: slow, for small tests only."""
    query, key, value = query_key_value.unbind(1)
    places = torch.arange(len(query), device=query.device, dtype=torch.int32)
    sequences = torch.searchsorted(layout.bounds, places, right=True)
    seen = sequences[:, None] == sequences
    if causal:
        seen = seen & (places[:, None] >= places)
    scores = torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5
    probabilities = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)
    return torch.einsum("hqk,khd->qhd", dropout(probabilities, prob, training=True), value)


def _attend_varlen(query_key_value: Tensor, layout: Layout, prob: float, causal: bool) -> Tensor:
    """Flash attention on packed tokens (Dao 2023), by the operator behind `torch.nn.attention.varlen`: it takes a
    dropout probability, which the public function does not."""
    bounds, longest = layout.bounds, layout.max_length
    context, *_ = _varlen_kernel()(*query_key_value.unbind(1), bounds, bounds, longest, longest, prob, causal, False)
    return context


def choose_backend(device: torch.device, dtype: torch.dtype, prob: float, head_size: int) -> tuple[Backend, str]:
    """Which of three backends attention uses, and why.

    Args:
        dtype: the one that attention computes in, autocast included.
        prob: the dropout of the attention probabilities; 0 outside training.
    """
    if device.type == "cpu":
        if dtype == torch.bfloat16:
            return "matmul", "on the CPU in bf16 PyTorch's fused attention is slower, its gradient many times"
        if prob > 0:
            return "matmul", "on the CPU PyTorch's fused attention has no dropout"
        return "sdpa", "fused attention, sequences grouped by length"
    if device.type != "cuda":
        return "sdpa", f"the variable-length kernel is for CUDA, not {device.type}"
    if dtype not in (torch.float16, torch.bfloat16):
        return "sdpa", f"the variable-length kernel is for fp16 and bf16, not {dtype}"
    if head_size % 8 or head_size > 256:
        return "sdpa", f"the variable-length kernel wants heads of a multiple of 8 up to 256, not {head_size}"
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return "sdpa", "the variable-length kernel needs compute capability 8.0 (Ampere) or later"
    if head_size > 192 and capability not in _WIDE_HEADS:
        return "sdpa", f"the gradient of the variable-length kernel with heads of {head_size} wants an A100 or Hopper"
    if not has_varlen_kernel():
        return "sdpa", f"torch {torch.__version__} has no variable-length kernel"
    return "varlen", "flash attention on packed tokens, nothing padded"


def describe_attention(device: torch.device, dtype: torch.dtype, dropout_prob: float, head_size: int) -> str:
    """One line for the log of a run: which backend attention uses in training and outside it, and why."""
    in_training = choose_backend(device, dtype, dropout_prob, head_size)
    outside = choose_backend(device, dtype, 0.0, head_size)
    if in_training == outside:
        return f"attention: {outside[0]} ({outside[1]})"
    return f"attention: {in_training[0]} in training ({in_training[1]}), {outside[0]} otherwise ({outside[1]})"


_WIDE_HEADS = ((8, 0), (9, 0), (10, 0))
"""Compute capabilities with enough shared memory for the gradient of heads over 192."""

_VARLEN_ARGUMENTS = (
    *("query", "key", "value", "cum_seq_q", "cum_seq_k"),
    *("max_q", "max_k", "dropout_p", "is_causal", "return_debug_mask"),
)


def _varlen_kernel() -> Callable[..., tuple[Tensor, ...]]:
    kernel: Callable[..., tuple[Tensor, ...]] = torch.ops.aten._flash_attention_forward.default
    return kernel


@cache
def has_varlen_kernel() -> bool:
    """Whether this build has flash attention, and its operator, which is private, takes the arguments used here."""
    if not torch.backends.cuda.is_flash_attention_available():
        return False
    try:
        schema = torch.ops.aten._flash_attention_forward.default._schema
    except AttributeError:
        return False
    names = tuple(argument.name for argument in schema.arguments if not argument.kwarg_only)
    return names[: len(_VARLEN_ARGUMENTS)] == _VARLEN_ARGUMENTS
