"""The optimizer against `torch` and Google's update written out."""

from __future__ import annotations

import math
from typing import Literal, get_args

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from support.small_bert import new_module
from support.tensors import assert_equal, give_gradients
from unmask.errors import SettingsError
from unmask.models.heads.layer_mixture import LayerMixture
from unmask.training.optimizers.adamw import AdamW
from unmask.training.optimizers.optimizer import (
    build_optimizer,
    clip_gradients,
    clipping_divisor,
    depth,
    parameter_groups,
)
from unmask.training.settings import OPTIMIZERS, OptimizerSettings


def test_biases_and_norms_do_not_decay_and_all_else_does() -> None:
    module = new_module()
    decayed, plain = parameter_groups(module, 0.01, 1e-3)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.01, 0.0)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    grouped = [id(parameter) for group in (decayed, plain) for parameter in group["params"]]
    assert sorted(grouped) == sorted(names)  # each of them, once
    expected_plain = {name for name in names.values() if name.endswith("bias") or "norm" in name}
    assert {names[id(parameter)] for parameter in plain["params"]} == expected_plain
    assert {"masked_lm_head.bias", "masked_lm_head.norm.weight", "encoder.embeddings.norm.weight"} <= expected_plain
    found_decayed = {names[id(parameter)] for parameter in decayed["params"]}
    assert {"encoder.embeddings.word.weight", "next_sentence_head.dense.weight"} <= found_decayed


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_no_norm_decays(norm: type[nn.Module]) -> None:
    module = nn.Sequential(nn.Linear(3, 3, bias=False), norm(3))
    decayed, plain = parameter_groups(module, 0.01, 1e-3)
    assert [id(p) for p in decayed["params"]] == [id(module[0].weight)]
    assert [id(p) for p in plain["params"]] == list(map(id, module[1].parameters()))


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_the_scale_of_elmos_mixture_does_not_decay_and_its_layers_scores_do(name: Literal["adamw", "lamb"]) -> None:
    mixture = LayerMixture(3)
    with torch.no_grad():
        mixture.scores.fill_(1.0)
        mixture.gamma.fill_(2.0)
    decayed, plain = parameter_groups(mixture, 0.1, 1e-3)
    assert [id(p) for p in decayed["params"]] == [id(mixture.scores)]
    assert [id(p) for p in plain["params"]] == [id(mixture.gamma)]
    optimizer = build_optimizer(mixture, OptimizerSettings(name=name, learning_rate=0.5, weight_decay=0.1))
    for parameter in mixture.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert float(mixture.gamma.detach()) == 2.0
    assert float(mixture.scores.detach().max()) < 1.0


def rates_by_name(module: nn.Module, settings: OptimizerSettings) -> dict[str, tuple[float, float]]:
    """Rate and weight decay of each parameter."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    optimizer = build_optimizer(module, settings)
    grouped = [(names[id(p)], group) for group in optimizer.param_groups for p in group["params"]]
    assert len(grouped) == len(dict(grouped))
    return {name: (group["lr"], group["weight_decay"]) for name, group in grouped}


def test_rates_by_layer_are_electras() -> None:
    """Two layers, rate .8, decay .5: depths 0, 1, 2 and 4, so .8 / 16, .8 / 8, .8 / 4 and .8."""
    module = new_module()
    rates = rates_by_name(module, OptimizerSettings(learning_rate=0.8, layer_decay=0.5, weight_decay=0.1))
    assert rates.keys() == {name for name, _ in module.named_parameters()}
    expected = {"embeddings": 0.05, "blocks.0": 0.1, "blocks.1": 0.2, "pooler": 0.8}
    for name, (rate, _) in rates.items():
        place = next((part for part in expected if name.startswith(f"encoder.{part}.")), None)
        assert rate == pytest.approx(0.8 if place is None else expected[place], rel=1e-12), name  # doubles
    without = rates_by_name(module, OptimizerSettings(learning_rate=0.8, weight_decay=0.1))
    assert {name: decay for name, (_, decay) in rates.items()} == {name: decay for name, (_, decay) in without.items()}
    assert {rate for rate, _ in without.values()} == {0.8}


def test_the_heads_rate_comes_first_since_it_is_the_one_that_is_logged() -> None:
    optimizer = build_optimizer(new_module(), OptimizerSettings(learning_rate=0.8, layer_decay=0.5))
    assert optimizer.param_groups[0]["lr"] == 0.8


def test_no_layer_decay_gives_the_two_groups_alone() -> None:
    module = new_module()
    found = build_optimizer(module, OptimizerSettings(layer_decay=1.0, weight_decay=0.01)).param_groups
    assert len(found) == 2
    for group, expected in zip(found, parameter_groups(module, 0.01, 1e-3), strict=True):
        assert [id(p) for p in group["params"]] == [id(p) for p in expected["params"]]


def test_frozen_layers_have_no_group() -> None:
    module = new_module()
    module.encoder.embeddings.requires_grad_(False)
    module.encoder.blocks[0].requires_grad_(False)
    rates = rates_by_name(module, OptimizerSettings(learning_rate=0.8, layer_decay=0.5))
    assert {rate for rate, _ in rates.values()} == {0.2, 0.8}


def test_layer_decay_needs_layers() -> None:
    with pytest.raises(SettingsError, match=r"optimizer\.layer_decay=0\.8: this model has no layers"):
        build_optimizer(nn.Linear(2, 2), OptimizerSettings(layer_decay=0.8))


def test_settings_reach_the_optimizer() -> None:
    settings = OptimizerSettings(learning_rate=3e-4, betas=(0.8, 0.95), epsilon=1e-5, weight_decay=0.2)
    for corrected in (True, False):
        optimizer = build_optimizer(new_module(), settings.model_copy(update={"bias_correction": corrected}))
        assert isinstance(optimizer, AdamW)
        for group, weight_decay in zip(optimizer.param_groups, (0.2, 0.0), strict=True):
            assert (group["lr"], group["betas"], group["eps"]) == (3e-4, (0.8, 0.95), 1e-5)
            assert group["weight_decay"] == weight_decay


def test_adagrad_is_elmos_update() -> None:
    """TensorFlow's `AdagradOptimizer` from 1, number by number: sum += g^2; w -= rate * g / sqrt(sum)."""
    module = nn.Linear(3, 1).double()
    settings = OptimizerSettings(name="adagrad", learning_rate=0.2, weight_decay=0, epsilon=1e-15)
    optimizer = build_optimizer(module, settings)
    assert isinstance(optimizer, torch.optim.Adagrad)
    expected = [*module.weight.flatten().tolist(), *module.bias.tolist()]
    sums, generator = [1.0] * 4, torch.Generator().manual_seed(0)
    for _ in range(10):
        gradients = torch.randn(4, generator=generator, dtype=torch.float64)
        module.weight.grad, module.bias.grad = gradients[:3].clone()[None], gradients[3:].clone()
        optimizer.step()
        for place, gradient in enumerate(gradients.tolist()):
            sums[place] += gradient**2
            expected[place] -= 0.2 * gradient / math.sqrt(sums[place])
    # doubles, and an epsilon of 1e-15 beside a sum of at least 1
    assert [*module.weight.flatten().tolist(), *module.bias.tolist()] == pytest.approx(expected, rel=1e-12)


def test_the_biases_of_an_lstm_do_not_decay() -> None:
    module = nn.LSTM(2, 3)
    decayed, plain = parameter_groups(module, 0.1, 1e-3)
    assert [id(p) for p in decayed["params"]] == [id(module.weight_ih_l0), id(module.weight_hh_l0)]
    assert [id(p) for p in plain["params"]] == [id(module.bias_ih_l0), id(module.bias_hh_l0)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"betas": (0.9, 1.0)}, "less than 1"),
        ({"betas": (-0.1, 0.9)}, "greater than or equal to 0"),
        ({"name": "adagrad"}, "adagrad has no weight decay, and weight_decay is 0.01: set it to 0"),
        ({"name": "adagrad", "weight_decay": 0, "betas": (0.8, 0.9)}, r"betas=.* is for adamw and lamb and muon"),
        ({"muon_learning_rate": 0.1}, "muon_learning_rate=0.1 is for muon, and name is adamw"),
        ({"name": "lamb", "initial_accumulator": 0.5}, "initial_accumulator=0.5 is for adagrad, and name is lamb"),
    ],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        OptimizerSettings.model_validate(settings)


def test_each_optimizer_says_what_follows_from_its_name() -> None:
    assert tuple(OPTIMIZERS) == get_args(OptimizerSettings.model_fields["name"].annotation)


UNUSUAL: dict[str, object] = {
    "betas": (0.5, 0.6),
    "epsilon": 0.5,
    "bias_correction": False,
    "muon_learning_rate": 0.3,
    "muon_momentum": 0.5,
    "initial_accumulator": 0.1,
}
"""A value that is not its default for each key that not every optimizer need read."""


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_reads_the_keys_of_its_row_and_no_other(name: str) -> None:
    def after_two_steps(**given: object) -> list[torch.Tensor]:
        module = new_module()
        optimizer = build_optimizer(module, OptimizerSettings().model_copy(update={"name": name, **given}))
        for seed in (1, 2):
            give_gradients(module.parameters(), seed)
            optimizer.step()
        return [parameter.detach() for parameter in module.parameters()]

    assert set(UNUSUAL) == set(OptimizerSettings.model_fields) - {
        "name",
        "learning_rate",
        "weight_decay",
        "layer_decay",
    }
    usual = after_two_steps()
    read = {key for key, value in UNUSUAL.items() if not all(map(torch.equal, usual, after_two_steps(**{key: value})))}
    assert read == set(OPTIMIZERS[name].keys)


@pytest.mark.parametrize("max_norm", [0.5, 1e6, None])
def test_clipping_is_torchs(max_norm: float | None) -> None:
    def with_gradients() -> nn.Module:
        module = new_module()
        give_gradients(module.parameters(), 1)
        module.encoder.embeddings.position.weight.grad = None
        return module

    ours, theirs = with_gradients(), with_gradients()
    norm = clip_gradients(ours, max_norm)
    expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), math.inf if max_norm is None else max_norm)
    assert torch.equal(norm, expected)
    assert_equal(*([parameter.grad for parameter in module.parameters()] for module in (ours, theirs)))
    divisor = clipping_divisor(norm, max_norm)
    given, clipped = (next(module.parameters()).grad for module in (with_gradients(), theirs))
    torch.testing.assert_close(given if divisor is None else given / divisor, clipped)


def test_both_directions_of_an_elmo_are_as_deep() -> None:
    for direction in (0, 1):
        assert [depth(f"blocks.{direction}.layers.{layer}.bias", 2) for layer in (0, 1)] == [1, 2]
    assert depth("embeddings.convolutions.3.weight", 2) == 0


def test_the_norm_behind_the_last_layer_is_of_that_layer() -> None:
    """ModernBERT's: frozen, transferred and trained with it."""
    assert depth("final_norm.weight", 3) == depth("blocks.2.feed_forward_norm.weight", 3) == 3
    assert depth("embeddings.norm.weight", 3) == 0
