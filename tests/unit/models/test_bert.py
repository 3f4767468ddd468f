"""The encoder on packed batches: independence of packing, chosen positions, training mode."""

from __future__ import annotations

import torch

from support.sizes import small
from unmask.batch import Batch, pack
from unmask.models.bert import BertEncoder
from unmask.models.settings import EncoderSettings

SIZES = small(vocab=60, width=24, layers=2, heads=3, inner=40, positions=64)


def new_encoder(**changes: object) -> BertEncoder:
    torch.manual_seed(0)
    return BertEncoder(EncoderSettings(**SIZES.model_dump() | {"initializer_range": 0.2} | changes))


def batch_of(lengths: list[int]) -> Batch:
    return pack([[(7 * number + place) % 60 for place in range(length)] for number, length in enumerate(lengths)])


def test_dropout_is_for_training_and_follows_the_generator() -> None:
    encoder, batch = new_encoder(), batch_of([5, 9, 9])
    torch.manual_seed(3)
    first, second = encoder(batch), encoder(batch)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(encoder(batch), first)
    encoder.eval()
    assert torch.equal(encoder(batch), encoder(batch))


def test_training_without_dropout_is_evaluation() -> None:
    encoder = new_encoder(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    batch = batch_of([5, 9, 9])
    assert torch.equal(encoder.train()(batch), encoder.eval()(batch))


def test_the_matmul_path_learns_as_the_fused_one() -> None:
    """A dropout so small that it drops nothing here takes the path of training; tolerance: fp32 in another order."""
    batch = batch_of([20, 3, 40])
    gradients = []
    for prob in (0.0, 2**-16):
        encoder = new_encoder(hidden_dropout_prob=0.0, attention_probs_dropout_prob=prob)
        torch.manual_seed(1)
        encoder(batch).square().mean().backward()
        gradients.append([parameter.grad for parameter in encoder.parameters() if parameter.grad is not None])
    fused, matmul = gradients
    torch.testing.assert_close(matmul, fused, rtol=1e-3, atol=1e-5)
