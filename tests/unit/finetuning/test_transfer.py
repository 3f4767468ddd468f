"""Partial transfer and freezing: which weights are taken, and which stay."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import nn

from support.sizes import tiny
from unmask.batch import pack
from unmask.errors import SettingsError
from unmask.finetuning.transfer import freeze_layers, transfer_layers
from unmask.models.bert import BertEncoder
from unmask.training.optimizers.optimizer import build_optimizer
from unmask.training.settings import OptimizerSettings
from unmask.training.steps import set_training_mode

SETTINGS = tiny(30, hidden_size=16, num_hidden_layers=3, intermediate_size=24, max_position_embeddings=16)


def new_encoder(seed: int) -> BertEncoder:
    torch.manual_seed(seed)
    encoder = BertEncoder(SETTINGS)
    for parameter in encoder.parameters():  # biases and norms begin alike in every encoder
        nn.init.normal_(parameter)
    return encoder


def layer_of(name: str) -> str:
    part, _, rest = name.partition(".")
    return f"blocks.{rest[0]}" if part == "blocks" else part


@pytest.mark.parametrize("num_layers", [0, 1, 2, 3])
def test_the_embeddings_and_the_first_layers_are_taken(num_layers: int) -> None:
    loaded, encoder, untouched = new_encoder(1), new_encoder(2), new_encoder(2)
    transfer_layers(encoder, loaded, num_layers)
    taken = {"embeddings", *(f"blocks.{layer}" for layer in range(num_layers))}
    for name, value in encoder.state_dict().items():
        origin = loaded if layer_of(name) in taken else untouched
        assert torch.equal(value, origin.state_dict()[name]), name


def test_what_is_taken_is_a_copy() -> None:
    loaded, encoder = new_encoder(1), new_encoder(2)
    before = loaded.embeddings.word.weight.clone()
    transfer_layers(encoder, loaded, 3)
    with torch.no_grad():
        encoder.embeddings.word.weight.zero_()
    assert torch.equal(loaded.embeddings.word.weight, before)


def test_more_layers_than_there_are_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"transfer_layers=4: the model has 3 layers: expected .* 0 to 3"):
        transfer_layers(new_encoder(1), new_encoder(2), 4)
    for layers in (4, -1):
        with pytest.raises(SettingsError, match=rf"freeze_layers={layers}: the model has 3 layers"):
            freeze_layers(new_encoder(1), layers)


ALL = {"embeddings", "blocks.0", "blocks.1", "blocks.2", "pooler"}


@pytest.mark.parametrize(
    ("layers", "trains_pooler", "frozen"),
    [
        (0, False, {"embeddings"}),
        (2, False, {"embeddings", "blocks.0", "blocks.1"}),
        (3, False, ALL - {"pooler"}),
        ("all", False, ALL),
        ("all", True, ALL - {"pooler"}),
    ],
)
def test_frozen_weights_stay_and_the_others_learn(
    layers: int | Literal["all"], trains_pooler: bool, frozen: set[str]
) -> None:
    module = nn.Module()
    module.encoder = encoder = new_encoder(1)
    module.head = nn.Linear(16, 2)
    freeze_layers(encoder, layers, trains_pooler=trains_pooler)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    optimizer = build_optimizer(module, OptimizerSettings(learning_rate=0.1))
    set_training_mode(module)
    batch = pack([[2, 5, 6, 3], [2, 7, 3]])
    for _ in range(2):
        module.head(encoder.summary(batch)).pow(2).sum().backward()
        with_gradient = {layer_of(name) for name, weight in encoder.named_parameters() if weight.grad is not None}
        assert with_gradient == ALL - frozen
        optimizer.step()
        optimizer.zero_grad()
    changed = {
        layer_of(name)
        for name, value in encoder.state_dict().items()
        if not torch.equal(value, before[f"encoder.{name}"])
    }
    assert changed == ALL - frozen
    assert not torch.equal(module.head.weight, before["head.weight"])


def test_a_frozen_encoder_gives_the_same_features_every_time() -> None:
    encoder = new_encoder(1)
    batch = pack([[2, 5, 6, 3]])
    set_training_mode(encoder)
    assert not torch.equal(encoder(batch), encoder(batch))  # dropout
    freeze_layers(encoder, "all")
    set_training_mode(encoder)
    assert torch.equal(encoder(batch), encoder(batch))
