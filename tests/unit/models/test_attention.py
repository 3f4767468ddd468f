"""Attention stays within sequences, however they are grouped, and all its backends agree."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unmask.models import attention
from unmask.models.attention import attend, choose_backend, describe_attention, lay_out

CPU = torch.device("cpu")


def bounds_of(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor((0, *lengths)).cumsum(0).int()


def attend_alone(query: Tensor, key: Tensor, value: Tensor, causal: bool = False) -> Tensor:
    """The formula for one sequence, (length, heads, head_size)."""
    scores = torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5
    if causal:
        places = torch.arange(len(query), device=query.device)
        scores = scores.where(places[:, None] >= places, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", ["sdpa", "matmul"])
@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=9).map(tuple),
    num_heads=st.integers(1, 3),
    head_size=st.sampled_from([1, 3, 7, 8]),
)
def test_each_sequence_attends_to_itself_alone(
    backend: attention.Backend, causal: bool, lengths: tuple[int, ...], num_heads: int, head_size: int
) -> None:
    """Values and gradients; tolerance: fp32 sums of at most 90 numbers of order 1, in another order."""
    generator = torch.Generator().manual_seed(sum(lengths))
    packed = torch.randn(4, sum(lengths), num_heads, head_size, generator=generator)
    inputs = [part.clone().requires_grad_() for part in packed[:3]]
    layout = lay_out(bounds_of(lengths), lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "choose_backend", lambda *_: (backend, ""))
        found = attend(*inputs, layout, dropout_prob=0.0, training=False, causal=causal)
    expected = torch.cat(
        [attend_alone(*parts, causal) for parts in zip(*(part.split(lengths) for part in inputs), strict=True)]
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
    for ours, theirs in zip(
        torch.autograd.grad(found, inputs, packed[3]), torch.autograd.grad(expected, inputs, packed[3]), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@given(lengths=st.lists(st.integers(1, 600), min_size=1, max_size=40).map(tuple))
def test_grouping_wastes_little(lengths: tuple[int, ...]) -> None:
    layout = lay_out(bounds_of(lengths), lengths)
    assert sum(group.num_sequences for group in layout.groups) == len(lengths)
    for group in layout.groups:
        if group.padding is not None:
            padding = group.padding.flatten(1).sum(1)
            assert int(padding.max()) <= max(16, group.length // 8)
    for longer, shorter in pairwise(layout.groups):
        assert longer.length - shorter.length > 16
    if layout.slots is not None:
        assert len(set(layout.slots.tolist())) == sum(lengths)
        real = torch.cat(
            [
                torch.ones(group.num_sequences * group.length, dtype=torch.bool)
                if group.padding is None
                else ~group.padding.flatten()
                for group in layout.groups
            ]
        )
        assert sorted(layout.slots.tolist()) == real.nonzero().squeeze(1).tolist()


def test_sequences_of_one_length_are_not_moved() -> None:
    layout = lay_out(bounds_of((8, 8, 8)), (8, 8, 8))
    assert layout.slots is None
    assert len(layout.groups) == 1
    assert layout.groups[0].padding is None


def test_dropout_in_training_only() -> None:
    torch.manual_seed(0)
    lengths = (20, 3, 20)
    query, key, value = torch.randn(3, 43, 2, 4)
    layout = lay_out(bounds_of(lengths), lengths)
    steady = attend(query, key, value, layout, 0.3, training=False)
    assert torch.equal(steady, attend(query, key, value, layout, 0.3, training=False))
    draws = torch.stack([attend(query, key, value, layout, 0.3, training=True) for _ in range(400)])
    assert not torch.equal(draws[0], draws[1])
    # the mean over 400 draws of values whose deviation is at most 1.3 (sequences of 3): 5 standard errors
    assert (draws.mean(0) - steady).abs().max() < 5 * 1.3 / 400**0.5


def test_under_the_causal_mask_what_comes_later_changes_nothing() -> None:
    """Exactly: the same numbers are summed in the same order."""
    lengths = (6, 2, 9)
    query, key, value = torch.randn(3, 17, 2, 4, generator=torch.Generator().manual_seed(0))
    layout = lay_out(bounds_of(lengths), lengths)
    before = attend(query, key, value, layout, 0.0, training=False, causal=True)
    key[4:6], value[4:6] = 7.0, 8.0  # the last two of the first sequence
    after = attend(query, key, value, layout, 0.0, training=False, causal=True)
    unseen = [*range(4), *range(6, 17)]
    assert torch.equal(after[unseen], before[unseen])
    assert not torch.equal(after[4:6], before[4:6])
    torch.testing.assert_close(before[0], value[0])  # a first token sees itself alone


def test_causal_attention_drops_out_too() -> None:
    torch.manual_seed(0)
    lengths = (20, 3)
    query, key, value = torch.randn(3, 23, 2, 4)
    layout = lay_out(bounds_of(lengths), lengths)
    steady = attend(query, key, value, layout, 0.3, training=False, causal=True)
    draws = torch.stack([attend(query, key, value, layout, 0.3, training=True, causal=True) for _ in range(400)])
    # as above, for a first token that is all its own context: its deviation is sqrt(0.3 / 0.7) of values up to 3
    assert (draws.mean(0) - steady).abs().max() < 5 * 2.0 / 400**0.5


def test_the_backend_is_told_with_its_reason() -> None:
    assert choose_backend(CPU, torch.float32, 0.1, 64)[0] == "matmul"
    assert choose_backend(CPU, torch.float32, 0.0, 64)[0] == "sdpa"
    told = describe_attention(CPU, torch.bfloat16, 0.1, 64)
    assert "matmul in training" in told
    assert "sdpa otherwise" in told
    assert "otherwise" not in describe_attention(CPU, torch.bfloat16, 0.0, 64)


@pytest.mark.parametrize(
    ("dtype", "prob", "head_size", "reason"),
    [
        (torch.bfloat16, 0.1, 64, "no dropout"),
        (torch.float32, 0.0, 64, "fp16 and bf16"),
        (torch.bfloat16, 0.0, 7, "multiple of 8"),
    ],
)
def test_cuda_falls_back_where_the_kernel_cannot(dtype: torch.dtype, prob: float, head_size: int, reason: str) -> None:
    backend, why = choose_backend(torch.device("cuda"), dtype, prob, head_size)
    assert backend == "sdpa"
    assert reason in why


def test_cuda_takes_the_variable_length_kernel_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert choose_backend(torch.device("cuda"), torch.bfloat16, 0.0, 64)[0] == "varlen"
    monkeypatch.setattr(attention, "_varlen_kernel", lambda: None)
    assert choose_backend(torch.device("cuda"), torch.bfloat16, 0.0, 64)[0] == "sdpa"


@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_is_called_as_its_documentation_says(monkeypatch: pytest.MonkeyPatch, causal: bool) -> None:
    """A kernel of the same signature, by the formula, in place of the one that needs a CUDA device."""

    def kernel(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bounds_q: Tensor,
        bounds_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        window_size: tuple[int, int] = (-1, -1),
    ) -> Tensor:
        assert torch.equal(bounds_q, bounds_k)
        assert max_q == max_k == 7
        sizes = bounds_q.diff().tolist()
        parts = zip(query.split(sizes), key.split(sizes), value.split(sizes), strict=True)
        return torch.cat([attend_alone(*part, window_size == (-1, 0)) for part in parts])

    monkeypatch.setattr(attention, "choose_backend", lambda *_: ("varlen", ""))
    monkeypatch.setattr(attention, "_varlen_kernel", lambda: kernel)
    lengths = (3, 7)
    packed = torch.randn(3, 10, 2, 4, generator=torch.Generator().manual_seed(0))
    found = attend(*packed, lay_out(bounds_of(lengths), lengths), 0.0, training=False, causal=causal)
    parts = zip(*(part.split(lengths) for part in packed), strict=True)
    assert torch.equal(found, torch.cat([attend_alone(*part, causal) for part in parts]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("causal", [False, True])
def test_variable_length_kernel_agrees(causal: bool) -> None:
    """Tolerance: bf16 has 8 bits, values are of order 1."""
    lengths = (5, 128, 1, 77)
    packed = torch.randn(3, sum(lengths), 4, 64, device="cuda", dtype=torch.bfloat16)
    layout = lay_out(bounds_of(lengths).cuda(), lengths)
    assert choose_backend(packed.device, packed.dtype, 0.0, 64)[0] == "varlen"
    found = attend(*packed, layout, 0.0, training=False, causal=causal)
    expected = torch.cat(
        [attend_alone(*parts, causal) for parts in zip(*(part.float().split(lengths) for part in packed), strict=True)]
    )
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)
