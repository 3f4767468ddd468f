"""Encoders as others: the same hidden states where they can be, a refusal where not; more vocabulary entries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.batch import Batch, pack
from unmask.errors import SettingsError
from unmask.models.bert import BertEncoder, new_masked_lm_head
from unmask.models.conversion import convert_encoder, widen_vocabulary
from unmask.models.electra import ElectraEncoder, generator_settings, new_generator_head, share_embeddings
from unmask.models.encoder import Encoder, new_encoder
from unmask.models.settings import Architecture, EncoderSettings

VOCAB_SIZE = 40
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 18,
    "initializer_range": 0.2,
    "pad_token_id": 1,
}

TOLERANCE = 1e-6
"""Both run the same operations on the same numbers; hidden states are of order 1, so this is some ten roundings of
fp32, and a weight in the wrong place is far over it."""


def new(architecture: Architecture, pooler: bool = False, **changes: Any) -> Encoder:
    torch.manual_seed(0)
    sizes = SIZES | ({"intermediate_size": 96} if architecture == "gpt1" else {}) | changes
    encoder = new_encoder(EncoderSettings(architecture=architecture, **sizes), pooler).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return encoder


def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(5, VOCAB_SIZE, (length,), generator=generator).tolist() for length in (9, 16, 1)]
    return pack(ids, [[place % 2 for place in range(len(row))] for row in ids])


def largest_difference(first: list[Tensor], second: list[Tensor]) -> float:
    assert len(first) == len(second)
    return max(float((one - other).detach().abs().max()) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("pooler", [True, False])
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new"])
def test_bert_as_electra_and_back(pooler: bool, hidden_act: str) -> None:
    bert = new("bert", pooler, hidden_act=hidden_act, layer_norm_eps=1e-5)
    electra = convert_encoder(bert, "electra")
    assert isinstance(electra, ElectraEncoder)
    assert electra.embeddings.projection is None
    assert electra.pooler is None
    assert electra.settings.architecture == "electra"
    assert electra.settings.embedding_size == electra.settings.hidden_size
    assert not electra.training
    expected = bert.hidden_states(batch())
    assert largest_difference(electra.hidden_states(batch()), expected) < TOLERANCE
    again = convert_encoder(electra, "bert")
    assert isinstance(again, BertEncoder)
    assert again.pooler is None
    assert largest_difference(again.hidden_states(batch()), expected) < TOLERANCE
    assert again.settings == bert.settings


def test_electra_without_an_embedding_size_has_no_projection_either() -> None:
    electra = new("electra", embedding_size=None)
    bert = convert_encoder(electra, "bert")
    assert largest_difference(bert.hidden_states(batch()), electra.hidden_states(batch())) < TOLERANCE
    assert convert_encoder(electra, "electra") is electra


def test_the_copy_learns_and_the_original_stays() -> None:
    bert = new("bert")
    before = {name: weight.clone() for name, weight in bert.state_dict().items()}
    electra = convert_encoder(bert, "electra").train()
    assert all(parameter.requires_grad for parameter in electra.parameters())
    electra(batch()).square().sum().backward()
    with torch.no_grad():
        for parameter in electra.parameters():
            assert parameter.grad is not None
            parameter.add_(1.0)
    assert all(torch.equal(weight, before[name]) for name, weight in bert.state_dict().items())
    assert all(parameter.grad is None for parameter in bert.parameters())


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_with_and_without_a_pooler(architecture: Architecture) -> None:
    pooled = new(architecture, pooler=True)
    assert convert_encoder(pooled, architecture) is pooled
    assert convert_encoder(pooled, architecture, pooler=True) is pooled
    bare = convert_encoder(pooled, architecture, pooler=False)
    assert bare.pooler is None
    assert largest_difference(bare.hidden_states(batch()), pooled.hidden_states(batch())) < TOLERANCE
    assert convert_encoder(bare, architecture) is bare
    torch.manual_seed(3)
    fresh = convert_encoder(bare, architecture, pooler=True)
    assert fresh.pooler is not None
    assert largest_difference(fresh.hidden_states(batch()), pooled.hidden_states(batch())) < TOLERANCE
    assert fresh.pooler.dense.weight.std() > 0.1  # drawn anew
    assert not torch.equal(fresh.pooler.dense.weight, pooled.pooler.dense.weight)


REFUSALS: dict[str, tuple[Architecture, dict[str, Any], Architecture, str]] = {
    "projected": (
        "electra",
        {"embedding_size": 10},
        "bert",
        r"family electra cannot become one of the family bert.*embedding_size 10 are projected to hidden_size 24",
    ),
    "roberta": ("roberta", {}, "electra", r"family roberta cannot become one of the family electra"),
    "to roberta": ("bert", {}, "roberta", r"family bert cannot become one of the family roberta"),
    "gpt1": ("gpt1", {"hidden_act": "gelu_new"}, "bert", r"family gpt1 cannot become one of the family bert"),
    "to gpt1": ("bert", {}, "gpt1", r"family bert cannot become one of the family gpt1"),
    "left-to-right": ("bert", {"causal": True}, "electra", r"model\.causal is true, and ELECTRA reads in both"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_what_would_not_be_the_same_is_refused(refusal: str) -> None:
    given, changes, wanted, message = REFUSALS[refusal]
    with pytest.raises(SettingsError, match=message):
        convert_encoder(new(given, **changes), wanted)


def test_a_pooler_on_a_causal_encoder_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"model\.causal is true, and a pooler reads"):
        convert_encoder(new("bert", causal=True), "bert", pooler=True)


# More vocabulary


@pytest.mark.parametrize("architecture", ["bert", "roberta", "electra", "gpt1"])
def test_new_entries_start_as_the_mean_of_their_pieces(architecture: Architecture) -> None:
    changes: dict[str, Any] = {"electra": {"embedding_size": 10}, "gpt1": {"hidden_act": "gelu_new"}}
    encoder = new(architecture, **changes.get(architecture, {}))
    words, states = encoder.word_embeddings.detach().clone(), encoder.hidden_states(batch())
    widen_vocabulary(encoder, [], VOCAB_SIZE + 3, [[7], [8, 9, 9], []])
    widened = encoder.word_embeddings
    assert encoder.settings.vocab_size == VOCAB_SIZE + 3 == len(widened)
    assert torch.equal(widened[:VOCAB_SIZE], words)
    assert torch.equal(widened[VOCAB_SIZE], words[7])
    assert torch.allclose(widened[VOCAB_SIZE + 1], (words[8] + 2 * words[9]) / 3)
    assert torch.allclose(widened[VOCAB_SIZE + 2], words.mean(0))
    assert widened.requires_grad
    assert largest_difference(encoder.hidden_states(batch()), states) == 0
    encoder(pack([[7, VOCAB_SIZE + 1]])).sum().backward()
    assert widened.grad is not None
    assert widened.grad[VOCAB_SIZE + 1].any()


def test_the_heads_bias_is_widened_and_old_logits_stay() -> None:
    encoder = new("bert")
    head = new_masked_lm_head(encoder.settings)
    with torch.no_grad():
        head.bias.copy_(torch.arange(VOCAB_SIZE))
    before = head(encoder(batch()), encoder.word_embeddings)
    widen_vocabulary(encoder, [head], VOCAB_SIZE + 1, [[10, 20]])
    after = head(encoder(batch()), encoder.word_embeddings)
    assert head.bias[VOCAB_SIZE] == 15
    assert head.bias.requires_grad
    assert largest_difference([after[:, :VOCAB_SIZE]], [before]) < TOLERANCE * 40  # logits are up to 40
    expected = (before[:, 10] + before[:, 20]) / 2  # a linear function of embedding and bias
    assert largest_difference([after[:, VOCAB_SIZE]], [expected]) < TOLERANCE * 40


def test_embeddings_shared_with_a_generator_stay_shared() -> None:
    discriminator = new("electra", embedding_size=10)
    assert isinstance(discriminator, ElectraEncoder)
    generator = ElectraEncoder(generator_settings(discriminator.settings, 1 / 3, tied=True))
    share_embeddings(generator, discriminator)
    head = new_generator_head(generator.settings)
    widen_vocabulary(discriminator, [head], VOCAB_SIZE + 1, [[10]])
    assert generator.word_embeddings is discriminator.word_embeddings
    assert head(generator(pack([[VOCAB_SIZE]])), generator.word_embeddings).shape == (1, VOCAB_SIZE + 1)


def test_no_new_entries_change_nothing() -> None:
    encoder = new("bert")
    words = encoder.word_embeddings.detach().clone()
    widen_vocabulary(encoder, [], VOCAB_SIZE, [])
    assert torch.equal(encoder.word_embeddings, words)
