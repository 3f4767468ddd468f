"""The sizes of generators, and embeddings that two encoders share."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from unmask.batch import pack
from unmask.models.electra import ElectraEncoder, generator_settings, share_embeddings
from unmask.models.settings import EncoderSettings

BASE = {"embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12}
PUBLISHED: dict[str, tuple[dict[str, Any], float, tuple[int, int, int, int]]] = {
    "small": ({"embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4}, 1 / 4, (128, 64, 1, 256)),
    "base": (BASE, 1 / 3, (768, 256, 4, 1024)),
    "base, as the code has it": (BASE, 0.33333, (768, 256, 4, 1024)),
    "large": ({"embedding_size": 1024, "hidden_size": 1024, "num_attention_heads": 16}, 1 / 4, (1024, 256, 4, 1024)),
}
"""Discriminator, share, and the generator's embeddings, width, heads and feed-forward layers (its table 6)."""


def settings_of(**sizes: Any) -> EncoderSettings:
    return EncoderSettings(architecture="electra", vocab_size=50, intermediate_size=4 * sizes["hidden_size"], **sizes)


@pytest.mark.parametrize("name", PUBLISHED)
def test_generators_of_the_published_sizes(name: str) -> None:
    sizes, share, expected = PUBLISHED[name]
    discriminator = settings_of(num_hidden_layers=12, **sizes)
    found = generator_settings(discriminator, share, tied=True)
    heads, feed_forward = found.num_attention_heads, found.intermediate_size
    assert (found.embedding_width, found.hidden_size, heads, feed_forward) == expected
    assert found.num_hidden_layers == 12
    assert generator_settings(discriminator, 1, tied=True) == discriminator


@pytest.mark.parametrize(("heads", "head_size"), [(1, 16), (3, 3), (8, 64)])
@pytest.mark.parametrize("share", [0.01, 0.2, 1 / 3, 0.5, 0.77, 0.999])
def test_any_share_gives_an_encoder_no_wider_than_the_discriminator(heads: int, head_size: int, share: float) -> None:
    discriminator = settings_of(hidden_size=heads * head_size, num_attention_heads=heads)
    found = generator_settings(discriminator, share, tied=False)
    EncoderSettings(**found.model_dump())  # its validators are content
    assert found.hidden_size <= discriminator.hidden_size
    assert abs(found.hidden_size - discriminator.hidden_size * share) <= head_size / 2 or found.num_attention_heads == 1
    assert found.embedding_width == found.hidden_size


def test_shared_embeddings_are_one_parameter() -> None:
    settings = settings_of(embedding_size=8, hidden_size=16, num_attention_heads=2, num_hidden_layers=1)
    discriminator = ElectraEncoder(settings).eval()
    generator = ElectraEncoder(generator_settings(settings, 0.5, tied=True)).eval()
    share_embeddings(generator, discriminator)
    assert generator.word_embeddings is discriminator.word_embeddings
    own = {id(p) for p in generator.parameters()} - {id(p) for p in discriminator.parameters()}
    names = {name for name, p in generator.named_parameters() if id(p) not in own}
    assert names == {
        f"embeddings.narrow.{name}"
        for name in ("word.weight", "position.weight", "token_type.weight", "norm.weight", "norm.bias")
    }
    batch = pack([[1, 2, 3]])
    before = generator(batch)
    with torch.no_grad():
        discriminator.word_embeddings[2] += 1.0
    assert not torch.equal(generator(batch), before)
