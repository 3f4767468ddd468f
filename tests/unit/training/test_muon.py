"""Muon with AdamW: which parameters each takes, and the update against its formulas."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from unmask.errors import SettingsError
from unmask.models.bert import BertEncoder
from unmask.models.settings import EncoderSettings
from unmask.objectives.masked_lm import MaskedLMModule
from unmask.training.muon import MuonWithAdamW
from unmask.training.optimizer import build_optimizer
from unmask.training.settings import OptimizerSettings

SETTINGS = OptimizerSettings(name="muon", learning_rate=0.01, muon_learning_rate=0.04, weight_decay=0.1)


def small_module() -> MaskedLMModule:
    torch.manual_seed(0)
    sizes = EncoderSettings(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24
    )
    return MaskedLMModule(BertEncoder(sizes), sentence_objective="nsp")


def give_gradients(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_the_layers_matrices_go_to_muon_and_all_else_to_adamw() -> None:
    module = small_module()
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    optimizer = build_optimizer(module, SETTINGS)
    *others, matrices = optimizer.param_groups
    weights = ("attention.query_key_value", "attention.output", "feed_forward.intermediate", "feed_forward.output")
    expected = {name for name, p in module.named_parameters() if name.startswith("encoder.blocks.") and p.ndim == 2}
    assert len(expected) == 2 * len(weights)
    assert {names[id(p)] for p in matrices["params"]} == expected
    assert {names[id(p)] for group in others for p in group["params"]} == set(names.values()) - expected
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.01, 0.04]  # the logged one comes first
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0, 0.1]


def test_a_rate_of_its_own_is_an_option_and_layers_keep_their_decay() -> None:
    settings = OptimizerSettings(name="muon", learning_rate=0.8, layer_decay=0.5)
    rates = [group["lr"] for group in build_optimizer(small_module(), settings).param_groups if "momentum" in group]
    assert rates == [0.2, 0.1]


def test_it_steps_as_torchs_two_optimizers_side_by_side() -> None:
    ours, theirs = small_module(), small_module()
    optimizer = build_optimizer(ours, SETTINGS)
    matrices = [p for name, p in theirs.named_parameters() if ".blocks." in name and p.ndim == 2]
    ids = {id(p) for p in matrices}
    rest = [(name, p) for name, p in theirs.named_parameters() if id(p) not in ids]
    decayed = [p for name, p in rest if not (name.endswith("bias") or "norm" in name)]
    plain = [p for name, p in rest if name.endswith("bias") or "norm" in name]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    pair = (
        torch.optim.AdamW(groups, lr=0.01, eps=1e-6, fused=True),
        torch.optim.Muon(matrices, lr=0.04, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    )
    for seed in range(3):
        give_gradients(ours, seed)
        give_gradients(theirs, seed)
        optimizer.step()
        for each in pair:
            each.step()
    for (name, found), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(found, expected), name


def orthogonalised(update: Tensor) -> Tensor:
    """Five times the quintic of Jordan's post, on the singular values themselves, in doubles."""
    left, values, right = torch.linalg.svd(update.double(), full_matrices=False)
    values = values / values.square().sum().sqrt()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left @ torch.diag(values) @ right


@pytest.mark.parametrize("shape", [(16, 16), (24, 8), (8, 24)], ids=str)
def test_the_update_is_momentum_made_orthogonal(shape: tuple[int, int]) -> None:
    """M = mu M + (1 - mu) G; W -= rate (0.2 sqrt(max(rows, columns)) NS(mu M + (1 - mu) G) + decay W)."""
    module = nn.Module()
    module.blocks = nn.ModuleList([nn.Linear(shape[1], shape[0])])
    weight = module.blocks[0].weight
    optimizer = build_optimizer(module, SETTINGS)
    expected, momentum = weight.detach().double(), torch.zeros(shape, dtype=torch.float64)
    for seed in range(3):
        give_gradients(module, seed)
        assert weight.grad is not None
        gradient = weight.grad.double()
        before = weight.detach().double()
        optimizer.step()
        momentum = 0.95 * momentum + 0.05 * gradient
        update = orthogonalised(0.95 * momentum + 0.05 * gradient)
        step = 0.04 * (0.2 * max(shape) ** 0.5 * update + 0.1 * before)
        # torch iterates in bfloat16: 8 bits, five times, and the iteration does not shrink errors
        assert float((before - weight.detach().double() - step).norm() / step.norm()) < 0.05
        expected = before - step
    assert not torch.equal(expected, before)


def test_what_it_has_loaded_it_steps_on_with() -> None:
    module, copy = small_module(), small_module()
    optimizer, other = build_optimizer(module, SETTINGS), build_optimizer(copy, SETTINGS)
    for seed in range(2):
        give_gradients(module, seed)
        optimizer.step()
    copy.load_state_dict(module.state_dict())
    other.load_state_dict(deepcopy(optimizer.state_dict()))  # it takes tensors as they are
    for group, same in zip(optimizer.param_groups, other.param_groups, strict=True):
        group["lr"] = same["lr"] = group["lr"] / 2  # what the schedule does
    for each, its in ((module, optimizer), (copy, other)):
        give_gradients(each, 5)
        its.step()
    assert isinstance(other, MuonWithAdamW)
    for (name, found), expected in zip(copy.named_parameters(), module.parameters(), strict=True):
        assert torch.equal(found, expected), name


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"optimizer\.name=muon: this model has no matrices in layers"):
        build_optimizer(nn.Linear(3, 3), SETTINGS)
