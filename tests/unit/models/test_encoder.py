"""Encoders of every family: independence of packing, chosen positions, summaries, positions, what a token sees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from support.sizes import sizes_of
from unmask.batch import Batch, pack
from unmask.models.encoder import Encoder, new_encoder
from unmask.models.families.table import ARCHITECTURES
from unmask.models.heads.heads import DiscriminatorHead, MaskedLMHead
from unmask.models.settings import Architecture, EncoderSettings, token_families
from unmask.objectives.causal_lm import next_token_decoder

FAMILIES = tuple(token_families())
SIZES = sizes_of(vocab=60, width=24, layers=2, heads=3, inner=96, positions=64, std=0.2)
LSTM_SIZES: dict[str, Any] = {"num_attention_heads": 1, "intermediate_size": 40}


def sizes(family: Architecture, **changes: Any) -> EncoderSettings:
    return EncoderSettings(architecture=family, **SIZES | (LSTM_SIZES if family == "lstm" else {}) | changes)


def build(family: Architecture, pooler: bool = True, **changes: Any) -> Encoder:
    torch.manual_seed(0)
    return new_encoder(sizes(family, **changes), pooler)


def batch_of(lengths: list[int]) -> Batch:
    return pack([[(7 * number + place) % 57 + 3 for place in range(length)] for number, length in enumerate(lengths)])


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=5, deadline=None)
@given(lengths=st.lists(st.integers(1, 62), min_size=1, max_size=6))
@example(lengths=[62, 50, 62])  # nearly of one length: padding is computed along
def test_a_sequence_comes_out_alike_in_any_company(family: Architecture, lengths: list[int]) -> None:
    """Tolerance: fp32 sums in another order, after two layers of normalised activations of order 1."""
    encoder = build(family).eval()
    batch = batch_of(lengths)
    together, summaries = encoder(batch).split(batch.lengths), encoder.summary(batch)
    for number, ids in enumerate(batch.input_ids.split(batch.lengths)):
        alone = pack([ids.tolist()])
        torch.testing.assert_close(together[number], encoder(alone), rtol=0, atol=1e-5)
        torch.testing.assert_close(summaries[number : number + 1], encoder.summary(alone), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_chosen_positions_and_hidden_states_are_those_of_the_whole(family: Architecture) -> None:
    encoder, batch = build(family).eval(), batch_of([30, 2, 11])
    whole, states = encoder(batch), encoder.hidden_states(batch)
    positions = torch.tensor([42, 0, 31, 17])
    torch.testing.assert_close(encoder(batch, positions), whole[positions], rtol=0, atol=1e-6)
    assert encoder(batch, positions[:0]).shape == (0, whole.shape[1])
    assert len(states) == 3
    assert torch.equal(states[-1], whole)


@pytest.mark.parametrize(("family", "has_pooler"), [("bert", True), ("roberta", True), ("electra", False)])
def test_the_summary_is_the_first_token_pooled_where_there_is_a_pooler(family: Architecture, has_pooler: bool) -> None:
    batch = batch_of([5, 9])
    pooled, plain = build(family).eval(), build(family, pooler=False).eval()
    first = plain(batch)[[0, 5]]
    assert (pooled.pooler is not None) == has_pooler
    torch.testing.assert_close(plain.summary(batch), first, rtol=0, atol=1e-6)
    expected = pooled.pooler(first) if pooled.pooler is not None else first
    torch.testing.assert_close(pooled.summary(batch), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", ["gpt1", "modernbert_decoder"])
def test_left_to_right_encoders_sum_up_in_the_last_token_and_look_at_no_segment(family: Architecture) -> None:
    encoder = build(family).eval()
    batch = batch_of([5, 9])
    assert encoder.pooler is None
    torch.testing.assert_close(encoder.summary(batch), encoder(batch)[[4, 13]], rtol=0, atol=1e-6)
    other = pack([ids.tolist() for ids in batch.input_ids.split(batch.lengths)], [[1] * 5, [0] * 9])
    assert torch.equal(encoder(other), encoder(batch))


@pytest.mark.parametrize("family", FAMILIES)
def test_only_left_to_right_architectures_are_causal(family: Architecture) -> None:
    """Tolerance: the same numbers in the same order where a token is not seen."""
    encoder = build(family).eval()
    one, other = encoder(pack([[5, 6, 7, 8]])), encoder(pack([[5, 6, 7, 9]]))
    assert torch.equal(one[:3], other[:3]) == (ARCHITECTURES[family].left_to_right)
    assert not torch.equal(one[3], other[3])


def test_robertas_positions_start_after_the_padding_token() -> None:
    encoder = build("roberta", pad_token_id=4, type_vocab_size=1).eval()
    assert encoder.settings.num_positions == 59
    batch = batch_of([3, 1])
    parts = encoder.embeddings
    rows = parts.word.weight[batch.input_ids] + parts.token_type.weight[0] + parts.position.weight[[5, 6, 7, 5]]
    torch.testing.assert_close(encoder.hidden_states(batch)[0], parts.norm(rows), rtol=0, atol=1e-6)
    assert encoder(batch_of([59])).shape == (59, 24)
    with pytest.raises(AssertionError, match="60 tokens, and 59 positions"):
        encoder(batch_of([60]))


@pytest.mark.parametrize("embedding_size", [8, 24])
def test_electra_projects_only_where_sizes_differ(embedding_size: int) -> None:
    encoder = build("electra", embedding_size=embedding_size)
    assert (encoder.embeddings.projection is None) == (embedding_size == 24)
    assert encoder.word_embeddings.shape == (60, embedding_size)
    batch = batch_of([4, 2])
    hidden = encoder(batch)
    assert MaskedLMHead(encoder.settings)(hidden[:3], encoder.word_embeddings).shape == (3, 60)
    assert DiscriminatorHead(encoder.settings)(hidden).shape == (6,)


def test_gpt1s_embeddings_have_a_dropout_of_their_own() -> None:
    """hidden_dropout_prob 0 and a dropout of the embeddings of one half: about half of the numbers are zero.

    Of 43 x 24 numbers; 6 standard deviations are 6 x sqrt(1,032 / 4) = 96.
    """
    encoder = build("gpt1", hidden_dropout_prob=0.0, embedding_dropout_prob=0.5)
    zeros = int((encoder.hidden_states(batch_of([43]))[0] == 0).sum())
    assert abs(zeros - 43 * 24 / 2) < 96


def test_language_modelling_is_tied_to_the_word_embeddings() -> None:
    encoder, batch = build("gpt1").eval(), batch_of([4, 2])
    hidden = encoder(batch)
    logits = functional.linear(*next_token_decoder(encoder, None, hidden))
    torch.testing.assert_close(logits, hidden @ encoder.word_embeddings.T)
    logits.sum().backward()
    assert encoder.embeddings.word.weight.grad is not None
    assert (encoder.embeddings.word.weight.grad != 0).all()  # as a decoder every row takes part


@pytest.mark.parametrize("family", FAMILIES)
def test_autocast_keeps_one_precision(family: Architecture) -> None:
    """Tolerance: bf16 rounds at 2^-9 of values of order 1 to 3, some ten times over two layers."""
    encoder, batch = build(family).eval(), batch_of([20, 3, 40])
    exact = encoder(batch)
    with torch.autocast("cpu", torch.bfloat16):
        states = encoder.hidden_states(batch)
    assert {state.dtype for state in states} == {torch.bfloat16}
    assert (states[-1].float() - exact).abs().max() < 0.15
    states[-1].float().square().mean().backward()
    gradients = [weight.grad for weight in encoder.parameters() if weight.grad is not None]
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
