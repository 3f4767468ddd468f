"""Scaled dot-product attention within each sequence of a packed batch (Vaswani et al. 2017, section 3.2.1).

Attention alone needs to know where sequences begin and end. What follows from the bounds is worked out once a batch, in
a `Layout`, and used by every layer. Sequences of one length are a reshape; ragged ones are sorted into groups of like
length and padded, inside `attend` only. A causal encoder's tokens attend to themselves and to those before them
(Radford et al. 2018, section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from unmask.models.layers import dropout

Backend = Literal["varlen", "matmul", "sdpa"]

_GROUP_SLACK = 16
"""A group takes in sequences shorter than its longest by this many tokens, or by an eighth where that is more."""


@dataclass(frozen=True)
class Group:
    """Sequences that are attended in one call.

    Attributes:
        num_sequences: how many there are.
        length: the tokens of the longest; the others are padded to it.
        padding: (sequences, 1, 1, length) bool, True where there is no token; None where no sequence is padded.
    """

    num_sequences: int
    length: int
    padding: Tensor | None


@dataclass(frozen=True)
class Layout:
    """How the sequences of a batch lie, and how they are grouped.

    Attributes:
        bounds: (sequences + 1,) int32, as in `Batch`.
        max_length: of the longest sequence, in tokens.
        groups: in the order of their slots.
        slots: (tokens,) int64, the place of each token among the groups' padded rows; None where all sequences have one
            length, so that the tokens are in place already.
    """

    bounds: Tensor
    max_length: int
    groups: tuple[Group, ...]
    slots: Tensor | None

    @property
    def num_slots(self) -> int:
        return sum(group.num_sequences * group.length for group in self.groups)


def lay_out(bounds: Tensor, lengths: tuple[int, ...]) -> Layout:
    """Groups the sequences of a batch.

    Args:
        bounds: (sequences + 1,) int32, on the device where attention will run.
        lengths: (sequences,), the same as Python integers.
    """
    longest = max(lengths)
    if min(lengths) == longest:
        return Layout(bounds, longest, (Group(len(lengths), longest, None),), None)
    groups = []
    shifts = torch.empty(len(lengths), dtype=torch.int64)  # from a token's place in the batch to its slot
    starts = torch.tensor((0, *lengths)).cumsum(0)
    next_slot = 0
    for members in _group(lengths):
        length = lengths[members[0]]
        sizes = torch.tensor([lengths[member] for member in members])
        shifts[members] = next_slot + length * torch.arange(len(members)) - starts[members]
        padding = torch.arange(length) >= sizes[:, None, None, None]
        groups.append(Group(len(members), length, padding.to(bounds.device) if int(sizes[-1]) < length else None))
        next_slot += length * len(members)
    slots = torch.arange(sum(lengths)) + torch.repeat_interleave(shifts, torch.tensor(lengths))
    return Layout(bounds, longest, tuple(groups), slots.to(bounds.device))


def _group(lengths: tuple[int, ...]) -> list[list[int]]:
    """Sequence numbers by falling length, cut where the next would be padded by more than the slack."""
    groups: list[list[int]] = []
    for sequence in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        longest = lengths[groups[-1][0]] if groups else 0
        if longest - lengths[sequence] > max(_GROUP_SLACK, longest // 8) or not groups:
            groups.append([])
        groups[-1].append(sequence)
    return groups


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    dropout_prob: float,
    training: bool,
    causal: bool = False,
) -> Tensor:
    """softmax(Q K^T / sqrt(head_size)) V within each sequence, for each head.

    Args:
        query, key, value: (tokens, heads, head_size) float, packed.
        layout: of the batch.
        dropout_prob: of the attention probabilities, in [0, 1).
        training: False: no dropout.
        causal: True: no token attends to a later one.

    Returns:
        (tokens, heads, head_size), packed.
    """
    prob = dropout_prob if training else 0.0
    backend, _ = choose_backend(query.device, _compute_dtype(query), prob, query.shape[-1])
    if backend == "varlen":
        return _attend_varlen(query, key, value, layout, causal)
    attend_group = _attend_matmul if backend == "matmul" else _attend_sdpa
    parts = zip(layout.groups, *(_spread(packed, layout) for packed in (query, key, value)), strict=True)
    contexts = [
        attend_group(
            rows_q.transpose(1, 2), rows_k.transpose(1, 2), rows_v.transpose(1, 2), group.padding, prob, causal
        )
        .transpose(1, 2)
        .flatten(0, 1)
        for group, rows_q, rows_k, rows_v in parts
    ]  # of each group: (sequences x length, heads, head_size)
    if layout.slots is None:
        return contexts[0]
    return _Gather.apply(torch.cat(contexts), layout.slots)  # type: ignore[no-untyped-call, no-any-return]


def _spread(packed: Tensor, layout: Layout) -> list[Tensor]:
    """The rows of each group, (sequences, length, heads, head_size), zero where there is padding."""
    if layout.slots is not None:
        packed = packed.new_zeros((layout.num_slots, *packed.shape[1:])).index_copy(0, layout.slots, packed)
    rows = torch.split(packed, [group.num_sequences * group.length for group in layout.groups])
    return [
        part.view(group.num_sequences, group.length, *packed.shape[1:])
        for part, group in zip(rows, layout.groups, strict=True)
    ]


class _Gather(torch.autograd.Function):
    """Takes rows of which none is taken twice: the gradient is copied to its rows, where PyTorch would add."""

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


def _attend_sdpa(
    query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, prob: float, causal: bool
) -> Tensor:
    # Padding stands at the end: under the causal mask no token sees it.
    mask = None if padding is None or causal else ~padding
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=prob, is_causal=causal)


def _attend_matmul(
    query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, prob: float, causal: bool
) -> Tensor:
    """The formula as it stands, for (sequences, heads, length, head_size): PyTorch's own is slower with dropout."""
    sequences, heads, length, head_size = query.shape
    query, key, value = (part.flatten(0, 1) for part in (query, key, value))  # (sequences x heads, length, head_size)
    if causal:
        later = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        bias = query.new_zeros(1, length, length).masked_fill(later, float("-inf"))
    elif padding is None:
        bias = query.new_zeros(1)
    else:
        penalties = query.new_zeros(padding.shape).masked_fill(padding, float("-inf"))
        bias = penalties.expand(-1, heads, -1, -1).flatten(0, 1)  # (sequences x heads, 1, length)
    beta = 0 if padding is None and not causal else 1
    scores = torch.baddbmm(bias, query, key.transpose(1, 2), beta=beta, alpha=head_size**-0.5)
    probabilities = dropout(torch.softmax(scores, dim=-1), prob, training=True)
    return torch.bmm(probabilities, value).view(sequences, heads, length, head_size)


def _attend_varlen(query: Tensor, key: Tensor, value: Tensor, layout: Layout, causal: bool) -> Tensor:
    varlen = _varlen_kernel()
    assert varlen is not None, "choose_backend looked"
    dtype = _compute_dtype(query)
    bounds, longest = layout.bounds, layout.max_length
    window = {"window_size": (-1, 0)} if causal else {}  # how many tokens before and after are seen; -1: all
    context: Tensor = varlen(
        query.to(dtype), key.to(dtype), value.to(dtype), bounds, bounds, longest, longest, **window
    )
    return context


def choose_backend(device: torch.device, dtype: torch.dtype, prob: float, head_size: int) -> tuple[Backend, str]:
    """Which of three ways attention takes, and why.

    Args:
        dtype: that attention computes in, autocast considered.
        prob: the dropout of the attention probabilities; 0 outside training.
    """
    if device.type == "cpu":
        if prob > 0:
            return "matmul", "on the CPU PyTorch's fused attention has no dropout"
        return "sdpa", "fused attention, sequences grouped by length"
    if device.type != "cuda":
        return "sdpa", f"the variable-length kernel is for CUDA, not {device.type}"
    if prob > 0:
        return "sdpa", "the variable-length kernel has no dropout"
    if dtype not in (torch.float16, torch.bfloat16):
        return "sdpa", f"the variable-length kernel is for fp16 and bf16, not {dtype}"
    if head_size % 8 or head_size > 256:
        return "sdpa", f"the variable-length kernel wants heads of a multiple of 8 up to 256, not {head_size}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "sdpa", "the variable-length kernel needs compute capability 8.0 (Ampere) or later"
    if _varlen_kernel() is None:
        return "sdpa", f"torch {torch.__version__} has no variable-length kernel"
    return "varlen", "flash attention on packed tokens, nothing padded"


def describe_attention(device: torch.device, dtype: torch.dtype, dropout_prob: float, head_size: int) -> str:
    """One line for the log of a run: which backend attention takes in training and outside it, and why."""
    in_training = choose_backend(device, dtype, dropout_prob, head_size)
    outside = choose_backend(device, dtype, 0.0, head_size)
    if in_training == outside:
        return f"attention: {outside[0]} ({outside[1]})"
    return f"attention: {in_training[0]} in training ({in_training[1]}), {outside[0]} otherwise ({outside[1]})"


def _varlen_kernel() -> Callable[..., Any] | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


def _compute_dtype(tensor: Tensor) -> torch.dtype:
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype
