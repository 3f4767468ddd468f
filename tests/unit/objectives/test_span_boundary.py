"""The span boundary objective against a slow reference written from SpanBERT's section 3.2."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from support.sizes import small
from unmask.batch import Batch, pack
from unmask.models.encoder import new_encoder
from unmask.objectives.masked_lm import MaskedLMModule
from unmask.objectives.span_boundary import SpanBoundary, with_boundaries

CLS, SEP, SIZE = 2, 3, 40

TOLERANCE = 1e-5
"""Some hundred roundings of fp32 (6e-8 each) on figures of order 1, gradients taken relative to their largest entry; a
boundary token off by one is some hundred times more (`test_the_tolerance_can_fail`)."""


def small_batch(
    lengths: tuple[int, ...] = (22, 9, 30), share: float = 0.5, with_special: bool = True
) -> tuple[Batch, Tensor]:
    """Sequences with special tokens at both ends and in the middle or without any, labels, and a share of targets in
    runs."""
    chance = random.Random(0)
    rows = [[CLS, *(chance.randrange(5, SIZE) for _ in range(length - 2)), SEP] for length in lengths]
    for row in rows:
        row[len(row) // 2] = SEP
    if not with_special:
        rows = [[max(token, 5) for token in row] for row in rows]
    batch = pack(rows)
    special = batch.input_ids < 5
    chosen = torch.tensor([chance.random() < share for _ in range(batch.num_tokens)]) & ~special
    labels, targets = torch.where(chosen, batch.input_ids, -100), chosen.nonzero().squeeze(1)
    return batch.with_columns(special_tokens_mask=special, labels=labels, target_positions=targets), chosen


def boundaries_slowly(batch: Batch, chosen: Tensor, most: int) -> list[tuple[int, int, int, int]]:
    """Of each target: its place, the places of x_(s-1) and x_(e+1), and i - s + 1."""
    special, flags, begins = batch.columns["special_tokens_mask"].tolist(), chosen.tolist(), set(batch.bounds.tolist())
    found = []
    for start in range(batch.num_tokens):
        if not flags[start] or (start not in begins and flags[start - 1]):
            continue
        end = start
        while end + 1 not in begins and flags[end + 1]:
            end += 1
        at_edge = start in begins or end + 1 in begins or special[start - 1] or special[end + 1]
        for place in range(start, end + 1):
            if not at_edge and place - start < most:
                found.append((place, start - 1, end + 1, place - start + 1))
    return found


LENGTHS = st.lists(st.integers(3, 30), min_size=1, max_size=5).map(tuple)


def columns_of(batch: Batch) -> list[tuple[int, int, int, int]]:
    columns = batch.columns
    left, right = (columns["boundary_positions"][columns[f"boundary_{side}"]] for side in ("left", "right"))
    found = columns["boundary_targets"], left, right, columns["boundary_places"] + 1
    return list(zip(*(each.tolist() for each in found), strict=True))


@given(LENGTHS, st.floats(0, 1), st.sampled_from([1, 2, 20]), st.booleans())
def test_boundaries_are_those_of_a_slow_reference(
    lengths: tuple[int, ...], share: float, most: int, with_special: bool
) -> None:
    batch, chosen = small_batch(lengths, share, with_special)
    found = with_boundaries(batch, chosen, most)
    assert columns_of(found) == boundaries_slowly(batch, chosen, most)
    positions = found.columns["boundary_positions"].tolist()
    assert positions == sorted(set(positions))  # each evaluated once
    assert not chosen[positions].any()
    assert not batch.columns["special_tokens_mask"][positions].any()


def boundaries_of(first: int, last: int, most: int) -> list[tuple[int, int, int, int]]:
    """Of one span in twelve tokens: Super Bowl 50 was an American football game to determine the champion."""
    batch = pack([[CLS, *range(5, 17), SEP]])
    batch = batch.with_columns(special_tokens_mask=batch.input_ids < 5)
    chosen = torch.zeros(14, dtype=torch.bool)
    chosen[first : last + 1] = True
    return columns_of(with_boundaries(batch, chosen, most))


def test_a_worked_example() -> None:
    """SpanBERT's figure 1, `an American football game` masked: x_4 and x_9 predict, `football` by p_3; [CLS] is 0."""
    found = boundaries_of(5, 8, 20)
    assert found == [(5, 4, 9, 1), (6, 4, 9, 2), (7, 4, 9, 3), (8, 4, 9, 4)]
    assert boundaries_of(5, 8, 3) == found[:3]


@pytest.mark.parametrize("span", [(1, 3), (10, 12), (1, 12)])
def test_a_span_at_an_edge_has_no_boundary_loss(span: tuple[int, int]) -> None:
    assert boundaries_of(*span, 20) == []


@pytest.mark.parametrize("place", [3, 5])
def test_a_token_at_the_edge_of_a_text_without_special_tokens_has_no_boundary_loss(place: int) -> None:
    """Beside the first one and the last one of the second row are tokens of other texts."""
    batch = pack([[5, 6, 7], [8, 9, 10], [11, 12, 13]])
    batch = batch.with_columns(special_tokens_mask=torch.zeros(9, dtype=torch.bool))
    assert columns_of(with_boundaries(batch, torch.arange(9) == place, 20)) == []
    assert columns_of(with_boundaries(batch, torch.arange(9) == 4, 20)) == [(4, 3, 5, 1)]


def small_module(architecture: str = "bert") -> MaskedLMModule:
    """With random weights everywhere, biases and norms included, and no dropout."""
    torch.manual_seed(0)
    family = {"architecture": architecture, **({"embedding_size": 10} if architecture == "electra" else {})}
    sizes = {"width": 12, "layers": 1, "heads": 2, "inner": 20, "positions": 32, "std": 0.2, "layer_norm_eps": 1e-12}
    settings = small(vocab=SIZE, **family, **sizes)
    module = MaskedLMModule(new_encoder(settings, pooler=False), parts=[SpanBoundary(3)]).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return module


def layer_norm(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = values - values.mean()
    return centred / torch.sqrt((centred**2).mean() + 1e-12) * weight + bias


def loss_slowly(module: MaskedLMModule, batch: Batch, chosen: Tensor, shift: int = 0) -> tuple[Tensor, int]:
    """h0 = [x_(s-1); x_(e+1); p_(i-s+1)], h1 = LayerNorm(GeLU(W1 h0)), y = LayerNorm(GeLU(W2 h1)), then the
    cross-entropy of the word embeddings' products with y, one target after another."""
    head: Any = module.get_submodule("span_boundary_head")
    hidden = module.encoder(batch)
    total, count = torch.zeros(()), 0
    for place, left, right, number in boundaries_slowly(batch, chosen, 3):
        h0 = torch.cat([hidden[left + shift], hidden[right], head.position.weight[number - 1]])
        h1 = head.dense1.weight @ h0 + head.dense1.bias
        h1 = layer_norm(0.5 * h1 * (1 + torch.erf(h1 / math.sqrt(2))), head.norm1.weight, head.norm1.bias)
        y = head.dense2.weight @ h1 + head.dense2.bias
        y = layer_norm(0.5 * y * (1 + torch.erf(y / math.sqrt(2))), head.norm2.weight, head.norm2.bias)
        logits = module.encoder.word_embeddings @ y + head.bias
        total = total - functional.log_softmax(logits, 0)[batch.columns["labels"][place]]
        count += 1
    return total, count


@pytest.mark.parametrize("architecture", ["bert", "electra"])
def test_loss_and_gradients_are_those_of_the_formulas(architecture: str) -> None:
    module = small_module(architecture)
    batch, chosen = small_batch()
    expected, count = loss_slowly(module, batch, chosen)
    parameters = dict(module.named_parameters())
    gradients = torch.autograd.grad(expected / count, list(parameters.values()), allow_unused=True)
    terms = {term.name: term for term in module(with_boundaries(batch, chosen, 3))}
    assert list(terms) == ["mlm", "sbo"]
    assert count > 5
    assert terms["sbo"].coefficient == 1
    assert float(terms["sbo"].total.detach()) == pytest.approx(float(expected.detach()), rel=TOLERANCE)
    ours = torch.autograd.grad(terms["sbo"].total / count, list(parameters.values()), allow_unused=True)
    for name, our, their in zip(parameters, ours, gradients, strict=True):
        if their is None:
            assert our is None or not our.any(), name  # the masked-LM head, which the boundary loss does not train
            continue
        assert our is not None, name
        scale = 1.0 if name.endswith("query_key_value.bias") else float(their.abs().max())  # of keys it is zero
        assert float((our - their).abs().max()) <= TOLERANCE * scale, name


def test_the_tolerance_can_fail() -> None:
    module = small_module()
    batch, chosen = small_batch()
    right, wrong = (float(loss_slowly(module, batch, chosen, shift)[0].detach()) for shift in (0, 1))
    assert abs(wrong - right) > 100 * TOLERANCE * right


@torch.no_grad()
def test_the_masked_lm_loss_stays_what_it_is_alone_and_the_scores_are_those_of_both() -> None:
    module = small_module()
    batch, chosen = small_batch()
    batch = with_boundaries(batch, chosen, 3)
    together = {term.name: term for term in module(batch)}
    scores = module.scores(batch)
    assert set(scores) == {"mlm_loss", "mlm_accuracy", "sbo_loss", "sbo_accuracy"}
    for name, term in together.items():
        total, count = scores[f"{name}_loss"]
        assert total == term.total
        assert 0 <= int(scores[f"{name}_accuracy"][0]) <= count
    module._parts = ()
    (alone,) = module(batch)
    assert float(together["mlm"].total) == pytest.approx(float(alone.total), rel=TOLERANCE)


def test_a_batch_without_boundary_targets_has_a_loss_of_zero_and_a_gradient() -> None:
    module = small_module()
    batch, _ = small_batch()
    chosen = torch.zeros(batch.num_tokens, dtype=torch.bool)
    chosen[1] = True  # at an edge
    batch = batch.with_columns(labels=batch.input_ids, target_positions=torch.tensor([1]))
    terms = {term.name: term for term in module(with_boundaries(batch, chosen, 3))}
    assert float(terms["sbo"].total.detach()) == 0
    terms["sbo"].total.backward()
