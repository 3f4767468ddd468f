"""Attention stays within sequences, however they are grouped, and all its backends agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unmask.models import attention
from unmask.models.attention import attend
from unmask.models.kernels import attention_backends, flash_attention
from unmask.models.kernels.attention_backends import Backend, choose_backend, describe_attention, has_varlen_kernel
from unmask.models.kernels.row_layout import Group, Layout

CPU = torch.device("cpu")


def bounds_of(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor((0, *lengths)).cumsum(0).int()


def layout_of(lengths: tuple[int, ...]) -> Layout:
    return Layout(bounds_of(lengths), lengths, max(lengths))


def attend_alone(query: Tensor, key: Tensor, value: Tensor, causal: bool = False) -> Tensor:
    """The formula for one sequence, (length, heads, head_size)."""
    scores = torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5
    if causal:
        places = torch.arange(len(query), device=query.device)
        scores = scores.where(places[:, None] >= places, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)


def attend_each(packed: Iterable[Tensor], lengths: Sequence[int], causal: bool) -> Tensor:
    """`attend_alone` of each sequence of a batch."""
    parts = zip(*(part.split(tuple(lengths)) for part in packed), strict=True)
    return torch.cat([attend_alone(*part, causal) for part in parts])


@pytest.mark.parametrize("reuses_shapes", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", ["sdpa", "matmul"])
@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=9).map(tuple),
    num_heads=st.integers(1, 3),
    head_size=st.sampled_from([1, 3, 7, 8]),
)
def test_each_sequence_attends_to_itself_alone(
    backend: Backend, causal: bool, reuses_shapes: bool, lengths: tuple[int, ...], num_heads: int, head_size: int
) -> None:
    """Values and gradients; tolerance: fp32 sums of at most 90 numbers of order 1, in another order."""
    generator = torch.Generator().manual_seed(sum(lengths))
    packed = torch.randn(4, sum(lengths), num_heads, head_size, generator=generator)
    inputs = [part.clone().requires_grad_() for part in packed[:3]]
    layout = Layout(bounds_of(lengths), lengths, max(lengths), reuses_shapes=reuses_shapes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "choose_backend", lambda *_: (backend, ""))
        rows = layout.enter(torch.stack(inputs, 1))
        found = layout.leave(attend(rows, layout, dropout_prob=0.0, training=False, causal=causal, window=None))
    expected = attend_each(inputs, lengths, causal)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
    gradients = (torch.autograd.grad(context, inputs, packed[3]) for context in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


def real_rows(group: Group) -> Tensor:
    """Which rows of a group are no padding."""
    if group.padding is None:
        return torch.ones(group.num_sequences * group.length, dtype=torch.bool)
    return ~group.padding.flatten()


@given(lengths=st.lists(st.integers(1, 600), min_size=1, max_size=40).map(tuple))
def test_grouping_wastes_little(lengths: tuple[int, ...]) -> None:
    layout = layout_of(lengths)
    assert sum(group.num_sequences for group in layout.groups) == len(lengths)
    if layout.num_slots > 1.1 * sum(lengths):
        for group in layout.groups:
            if group.padding is not None:
                padding = group.padding.flatten(1).sum(1)
                assert int(padding.max()) <= max(16, group.length // 8)
    for longer, shorter in pairwise(layout.groups):
        assert longer.length - shorter.length > 16
    if layout.slots is not None:
        assert len(set(layout.slots.tolist())) == sum(lengths)
        real = torch.cat([real_rows(group) for group in layout.groups])
        assert sorted(layout.slots.tolist()) == real.nonzero().squeeze(1).tolist()


@pytest.mark.parametrize(
    ("lengths", "num_groups", "num_rows"),
    [
        ((40,) * 9 + (4,), 1, 400),  # a tenth of the tokens
        ((40,) * 9 + (3,), 2, 363),  # more: two groups, neither of which has padding
        ((30, 14, 30, 14), 1, 88),  # a group with more: packed tokens
        ((8, 8), 1, 16),
    ],
)
def test_a_little_padding_is_carried_along(lengths: tuple[int, ...], num_groups: int, num_rows: int) -> None:
    layout = layout_of(lengths)
    packed = torch.arange(sum(lengths)).float()[:, None]
    rows = layout.enter(packed)
    assert len(layout.groups) == num_groups
    assert len(rows) == num_rows
    assert (layout.slots is None) == (len(set(lengths)) == 1)  # nothing is moved
    assert torch.equal(layout.leave(rows), packed)
    places = torch.tensor([0, sum(lengths) - 1, 7])
    assert torch.equal(rows[layout.rows_of(places)], packed[places])


@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=40).map(tuple))
def test_shapes_that_return(lengths: tuple[int, ...]) -> None:
    """Few numbers of rows, of sequences and of tokens, whatever the lengths; and every token where it was."""
    layout = Layout(bounds_of(lengths), lengths, max(lengths), reuses_shapes=True)
    packed = torch.arange(sum(lengths)).float()[:, None]
    rows = layout.enter(packed)
    assert len(rows) % (16 if len(rows) <= 256 else 64) == 0
    assert len(rows) <= 1.1 * sum(lengths) + 16 * len(lengths) + 64
    assert torch.equal(layout.leave(rows), packed)
    places = torch.arange(0, sum(lengths), 7)
    assert torch.equal(rows[layout.rows_of(places)][: len(places)], packed[places])
    assert len(layout.rows_of(places)) % 16 == 0
    if min(lengths) < max(lengths):
        assert all(group.length % 16 == 0 for group in layout.groups)
        sizes = [group.num_sequences for group in layout.groups]
        assert len(sizes) == 1 or all(size.bit_count() == 1 for size in sizes)
    else:
        assert layout.groups == (Group(len(lengths), lengths[0], None),)


@pytest.mark.parametrize(
    ("lengths", "causal", "deviation"),
    [
        ((20, 3, 20), False, 1.3),  # at most, in sequences of 3
        ((20, 3), True, 2.0),  # of a first token, which is all its own context: sqrt(0.3 / 0.7) of values up to 3
    ],
)
def test_dropout_in_training_only(lengths: tuple[int, ...], causal: bool, deviation: float) -> None:
    torch.manual_seed(0)
    rows, layout = torch.stack(tuple(torch.randn(3, sum(lengths), 2, 4)), 1), layout_of(lengths)
    steady, again = (attend(rows, layout, 0.3, training=False, causal=causal, window=None) for _ in range(2))
    assert torch.equal(steady, again)
    draws = torch.stack([attend(rows, layout, 0.3, training=True, causal=causal, window=None) for _ in range(400)])
    assert not torch.equal(draws[0], draws[1])
    assert (draws.mean(0) - steady).abs().max() < 5 * deviation / 400**0.5  # five standard errors


def test_under_the_causal_mask_what_comes_later_changes_nothing() -> None:
    """Exactly: the same numbers are summed in the same order."""
    lengths = (6, 2, 9)
    query, key, value = torch.randn(3, 17, 2, 4, generator=torch.Generator().manual_seed(0))
    layout = layout_of(lengths)
    before = attend(torch.stack((query, key, value), 1), layout, 0.0, training=False, causal=True, window=None)
    key[4:6], value[4:6] = 7.0, 8.0  # the last two of the first sequence
    after = attend(torch.stack((query, key, value), 1), layout, 0.0, training=False, causal=True, window=None)
    unseen = [*range(4), *range(6, 17)]
    assert torch.equal(after[unseen], before[unseen])
    assert not torch.equal(after[4:6], before[4:6])
    torch.testing.assert_close(before[0], value[0])  # a first token sees itself alone


def test_the_backend_is_reported_with_its_reason() -> None:
    assert choose_backend(CPU, torch.float32, 0.1, 64)[0] == "matmul"
    assert choose_backend(CPU, torch.float32, 0.0, 64)[0] == "sdpa"
    assert choose_backend(CPU, torch.bfloat16, 0.0, 64)[0] == "matmul"
    message = describe_attention(CPU, torch.float32, 0.1, 64)
    assert "matmul in training" in message
    assert "sdpa otherwise" in message
    assert "otherwise" not in describe_attention(CPU, torch.float32, 0.0, 64)
    assert "otherwise" not in describe_attention(CPU, torch.bfloat16, 0.1, 64)


@pytest.mark.parametrize(
    ("dtype", "prob", "head_size", "reason"),
    [(torch.float32, 0.0, 64, "fp16 and bf16"), (torch.bfloat16, 0.0, 7, "multiple of 8")],
)
def test_cuda_falls_back_where_the_kernel_cannot(dtype: torch.dtype, prob: float, head_size: int, reason: str) -> None:
    backend, why = choose_backend(torch.device("cuda"), dtype, prob, head_size)
    assert backend == "sdpa"
    assert reason in why


@pytest.fixture
def cuda_with_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(attention_backends, "has_varlen_kernel", lambda: True)


@pytest.mark.usefixtures("cuda_with_kernel")
def test_cuda_takes_the_variable_length_kernel_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    assert choose_backend(cuda, torch.bfloat16, 0.0, 64)[0] == "varlen"
    assert choose_backend(cuda, torch.bfloat16, 0.1, 256)[0] == "varlen"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    assert choose_backend(cuda, torch.bfloat16, 0.1, 192)[0] == "varlen"
    assert "heads of 256" in choose_backend(cuda, torch.bfloat16, 0.1, 256)[1]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert "Ampere" in choose_backend(cuda, torch.bfloat16, 0.1, 64)[1]


def test_a_build_without_the_kernel_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    has_varlen_kernel.cache_clear()
    backend, why = choose_backend(torch.device("cuda"), torch.bfloat16, 0.1, 64)
    has_varlen_kernel.cache_clear()
    assert backend == "sdpa"
    assert torch.__version__ in why


def test_the_operator_has_the_arguments_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """This torch's operator, which is not public, on tensors without data."""
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    has_varlen_kernel.cache_clear()
    assert has_varlen_kernel()
    has_varlen_kernel.cache_clear()
    monkeypatch.setattr(attention, "choose_backend", lambda *_: ("varlen", ""))
    monkeypatch.setattr(attention, "compute_dtype", lambda tensor: tensor.dtype)  # which knows no such device
    packed = torch.empty(3, 10, 2, 64, device="meta", dtype=torch.bfloat16, requires_grad=True)
    bounds = torch.empty(3, device="meta", dtype=torch.int32)
    found = attend(packed.transpose(0, 1), Layout(bounds, (), 7), 0.1, training=True, causal=True, window=None)
    assert found.shape == (10, 2, 64)
    (gradient,) = torch.autograd.grad(found.sum(), [packed])
    assert gradient.shape == packed.shape


@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_is_given_bounds_and_dropout(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    """A kernel of the same signature, by the formula, in place of the one that needs a CUDA device."""

    def kernel(*arguments: Any) -> tuple[Tensor, ...]:
        query, key, value, bounds_q, bounds_k, max_q, max_k, dropout_prob, is_causal, wants_mask = arguments
        assert torch.equal(bounds_q, bounds_k)
        assert max_q == max_k == 7
        assert (dropout_prob, wants_mask) == (0.1, False)
        return attend_each((query, key, value), bounds_q.diff().tolist(), is_causal), torch.empty(0)

    monkeypatch.setattr(attention, "choose_backend", lambda *_: ("varlen", ""))
    monkeypatch.setattr(flash_attention, "varlen_kernel", lambda: kernel)
    lengths = (3, 7)
    packed = torch.randn(3, 10, 2, 4, generator=torch.Generator().manual_seed(0))
    found = attend(torch.stack(tuple(packed), 1), layout_of(lengths), 0.1, training=True, causal=causal, window=None)
    assert torch.equal(found, attend_each(packed, lengths, causal))


def test_the_kernel_is_given_each_direction_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients, beside attention without the kernel."""

    def kernel(*arguments: Any) -> tuple[Tensor, ...]:
        query, key, value, bounds, _, longest, _, _, is_causal, _ = arguments
        assert longest == max(bounds.diff())
        return attend_each((query, key, value), bounds.diff().tolist(), is_causal), torch.empty(0)

    packed = torch.randn(16, 3, 2, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    layout = Layout(bounds_of((3, 7, 1, 5)), (3, 7, 1, 5), 7, left_to_right=(False, True, True, False))
    expected = attend(packed, layout, 0.0, training=True, causal=False, window=None)
    monkeypatch.setattr(attention, "choose_backend", lambda *_: ("varlen", ""))
    monkeypatch.setattr(flash_attention, "varlen_kernel", lambda: kernel)
    found = attend(packed, layout, 0.0, training=True, causal=False, window=None)
    torch.testing.assert_close(found, expected)
    of_found, of_expected = (torch.autograd.grad(each.square().sum(), packed)[0] for each in (found, expected))
    torch.testing.assert_close(of_found, of_expected)


@pytest.mark.parametrize("causal", [False, True])
def test_sequences_of_unknown_lengths_attend_to_themselves(causal: bool) -> None:
    """A padded batch, one of whose sequences is empty, without the kernel."""
    lengths = (3, 0, 7)
    packed = torch.randn(3, 10, 2, 4, generator=torch.Generator().manual_seed(0))
    found = attend(
        packed.transpose(0, 1), Layout(bounds_of(lengths), (), 8), 0.0, training=True, causal=causal, window=None
    )
    torch.testing.assert_close(found, attend_each(packed, (3, 7), causal), rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_variable_length_kernel_agrees(causal: bool) -> None:
    """Values and gradients. Tolerance: bf16 has 8 bits, values are of order 1."""
    lengths = (5, 128, 1, 77)
    packed = torch.randn(4, sum(lengths), 4, 64, device="cuda", dtype=torch.bfloat16)
    inputs = [part.clone().requires_grad_() for part in packed[:3]]
    layout = Layout(bounds_of(lengths).cuda(), lengths, max(lengths))
    assert choose_backend(packed.device, packed.dtype, 0.0, 64)[0] == "varlen"
    found = attend(torch.stack(inputs, 1), layout, 0.0, training=False, causal=causal, window=None)
    exact = [part.detach().float().requires_grad_() for part in inputs]
    expected = attend_each(exact, lengths, causal)
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)
    ours = torch.autograd.grad(found, inputs, packed[3])
    theirs = torch.autograd.grad(expected, exact, packed[3].float())
    torch.testing.assert_close([our.float() for our in ours], list(theirs), rtol=4e-2, atol=4e-2)


@pytest.mark.gpu
def test_variable_length_kernel_drops_out() -> None:
    """The mean of 400 draws is the value without; each draw is another; the gradient is that of its own draw."""
    lengths = (64, 3)
    layout = Layout(bounds_of(lengths).cuda(), lengths, max(lengths))
    packed = torch.randn(3, 67, 2, 64, device="cuda", dtype=torch.bfloat16)
    steady = attend(packed.transpose(0, 1), layout, 0.0, training=True, causal=False, window=None).float()
    draws = torch.stack(
        [
            attend(packed.transpose(0, 1), layout, 0.3, training=True, causal=False, window=None).float()
            for _ in range(400)
        ]
    )
    assert not torch.equal(draws[0], draws[1])
    # values are of order 1; the shortest sequence averages over 3: its deviation is below 2 * sqrt(.3 / .7)
    assert (draws.mean(0) - steady).abs().max() < 6 * 1.4 / 400**0.5 * 2
