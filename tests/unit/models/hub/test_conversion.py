"""BERT as ELECTRA, and a deeper ModernBERT, with the same hidden states; more vocabulary entries, in the place of
padding first."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from support.sizes import sizes_of
from unmask.batch import Batch, pack
from unmask.models.electra import ElectraEncoder, generator_settings, share_embeddings
from unmask.models.encoder import TokenEncoder, new_encoder
from unmask.models.heads.heads import MaskedLMHead
from unmask.models.hub.conversion import bert_as_electra, deepened, widen_vocabulary, with_dropout
from unmask.models.modernbert import ModernBertEncoder
from unmask.models.settings import Architecture, EncoderSettings

VOCAB_SIZE = 40
SIZES = sizes_of(vocab=VOCAB_SIZE, width=24, layers=2, heads=3, inner=40, positions=18, std=0.2, pad_token_id=1)

TOLERANCE = 1e-6
"""Both run the same operations on the same numbers; hidden states are of order 1, so this is some ten roundings of
fp32, and a weight in the wrong place is far over it."""


def new(architecture: Architecture, pooler: bool = False, **changes: Any) -> TokenEncoder:
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
def test_bert_as_electra(pooler: bool, hidden_act: str) -> None:
    bert = new("bert", pooler, hidden_act=hidden_act, layer_norm_eps=1e-5)
    electra = bert_as_electra(bert)
    assert electra.embeddings.projection is None
    assert electra.pooler is None
    assert electra.settings.architecture == "electra"
    assert electra.settings.embedding_size == electra.settings.hidden_size
    assert not electra.training
    assert largest_difference(electra.hidden_states(batch()), bert.hidden_states(batch())) < TOLERANCE


@pytest.mark.parametrize(
    ("before", "layers", "biases", "kept"),
    [
        (4, 4, False, [0, 1, 2, 3]),
        (4, 7, True, [0, 1, 4, 6]),
        (4, 12, False, [0, 4, 7, 9]),
        (6, 8, False, [0, 1, 2, 3, 5, 7]),  # were the second at 2, the fifth would have no place of its kind
    ],
)
def test_a_deeper_model_computes_the_same_and_all_of_it_learns(
    before: int, layers: int, biases: bool, kept: list[int]
) -> None:
    biased = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), biases)
    encoder = new("modernbert", num_hidden_layers=before, local_attention=4, **biased)
    assert isinstance(encoder, ModernBertEncoder)
    deeper = deepened(encoder, layers)
    assert deeper.settings.num_hidden_layers == len(deeper.blocks) == layers
    assert not deeper.training
    assert largest_difference([deeper(batch())], [encoder(batch())]) < TOLERANCE
    assert [n for n, block in enumerate(deeper.blocks) if block.attention.output.weight.any()] == kept
    deeper(batch()).square().sum().backward()
    for block in deeper.blocks:
        assert block.attention.output.weight.grad.any()
        assert block.feed_forward.down.weight.grad.any()


@pytest.mark.parametrize("architecture", ["bert", "gpt1", "lstm"])
def test_other_dropout_leaves_the_weights_and_draws_nothing(architecture: Architecture) -> None:
    encoder = new(architecture, pooler=True, **{"num_attention_heads": 1} if architecture == "lstm" else {})
    chance = torch.get_rng_state()
    other = with_dropout(encoder, {"hidden_dropout_prob": 0.3}, "a model")
    assert torch.equal(torch.get_rng_state(), chance)
    assert other.settings.hidden_dropout_prob == 0.3
    assert largest_difference(other.hidden_states(batch()), encoder.hidden_states(batch())) == 0


def test_blocks_without_a_place_of_their_kind_still_stand_in_order() -> None:
    """All four of the first are global, and one in five of the new ones."""
    encoder = new("modernbert", num_hidden_layers=4, global_attn_every_n_layers=1)
    encoder.settings = encoder.settings.model_copy(update={"global_attn_every_n_layers": 5, "local_attention": 4})
    assert isinstance(encoder, ModernBertEncoder)
    deeper = deepened(encoder, 6)
    assert [n for n, block in enumerate(deeper.blocks) if block.attention.output.weight.any()] == [0, 1, 3, 5]


def test_the_copy_learns_and_the_original_stays() -> None:
    bert = new("bert")
    before = {name: weight.clone() for name, weight in bert.state_dict().items()}
    electra = bert_as_electra(bert).train()
    assert all(parameter.requires_grad for parameter in electra.parameters())
    electra(batch()).square().sum().backward()
    with torch.no_grad():
        for parameter in electra.parameters():
            assert parameter.grad is not None
            parameter.add_(1.0)
    assert all(torch.equal(weight, before[name]) for name, weight in bert.state_dict().items())
    assert all(parameter.grad is None for parameter in bert.parameters())


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
    assert widened.grad[VOCAB_SIZE + 1].any()


def test_the_heads_bias_is_widened_and_old_logits_stay() -> None:
    encoder = new("bert")
    head = MaskedLMHead(encoder.settings)
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


@pytest.mark.parametrize("num_new", [2, 4, 6])
@pytest.mark.parametrize("architecture", ["bert", "roberta", "electra", "gpt1"])
def test_new_entries_take_the_rows_of_padding_first(architecture: Architecture, num_new: int) -> None:
    """Four rows are padding: the tokenizer ends before them, and no mean is taken over them."""
    first = VOCAB_SIZE - 4
    changes: dict[str, Any] = {"hidden_act": "gelu_new"} if architecture == "gpt1" else {}
    encoder = new(architecture, **changes)
    head = MaskedLMHead(encoder.settings)
    with torch.no_grad():
        encoder.word_embeddings[first:] = 1000.0
        head.bias.copy_(torch.arange(VOCAB_SIZE))
    rows = encoder.word_embeddings.detach().clone()
    widen_vocabulary(encoder, [head], first + num_new, [[7, 9], [], [8], [8], [8], [8]][:num_new])
    size = max(VOCAB_SIZE, first + num_new)
    assert (encoder.settings.vocab_size, len(encoder.word_embeddings), len(head.bias)) == (size, size, size)
    assert torch.equal(encoder.word_embeddings[:first], rows[:first])
    assert torch.allclose(encoder.word_embeddings[first], (rows[7] + rows[9]) / 2)
    assert torch.allclose(encoder.word_embeddings[first + 1], rows[:first].mean(0))
    assert all(torch.equal(row, rows[8]) for row in encoder.word_embeddings[first + 2 : first + num_new])
    assert torch.equal(encoder.word_embeddings[first + num_new :], rows[first + num_new :])
    assert head.bias[first : first + 2].tolist() == [8, (first - 1) / 2]


def test_embeddings_shared_with_a_generator_stay_shared() -> None:
    discriminator = new("electra", embedding_size=10)
    generator = ElectraEncoder(generator_settings(discriminator.settings, 1 / 3, tied=True))
    share_embeddings(generator, discriminator)
    head = MaskedLMHead(generator.settings)
    widen_vocabulary(discriminator, [head], VOCAB_SIZE + 1, [[10]])
    assert generator.word_embeddings is discriminator.word_embeddings
    assert head(generator(pack([[VOCAB_SIZE]])), generator.word_embeddings).shape == (1, VOCAB_SIZE + 1)


def test_no_new_entries_change_nothing() -> None:
    encoder = new("bert")
    words = encoder.word_embeddings.detach().clone()
    widen_vocabulary(encoder, [], VOCAB_SIZE, [])
    assert torch.equal(encoder.word_embeddings, words)
