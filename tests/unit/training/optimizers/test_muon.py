"""Muon with AdamW: which parameters each takes, and the update against its formulas."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from support.small_bert import new_module
from support.tensors import assert_equal, give_gradients
from unmask.errors import SettingsError
from unmask.models.elmo.settings import ElmoSettings
from unmask.models.encoder import new_encoder
from unmask.models.settings import EncoderSettings
from unmask.objectives.settings_base import ObjectiveSettings
from unmask.objectives.table import AnyObjective, new_objective
from unmask.tokenization.vocabulary import Vocabulary
from unmask.training.device import Compute
from unmask.training.distributed import Ranks
from unmask.training.optimizers import optimizer as module_under_test
from unmask.training.optimizers.adamw import OnDevice
from unmask.training.optimizers.muon import MuonWithAdamW, orthogonalise
from unmask.training.optimizers.optimizer import build_optimizer
from unmask.training.settings import OptimizerSettings

SETTINGS = OptimizerSettings(name="muon", learning_rate=0.01, muon_learning_rate=0.04, weight_decay=0.1)


def pretraining_module(architecture: str, objective: dict[str, Any], **sizes: Any) -> Any:
    """Of two layers, as a run builds it."""
    settings: ObjectiveSettings = TypeAdapter(AnyObjective).validate_python(objective)
    chosen = new_objective(settings, Vocabulary(40, 3, (0, 1, 2, 3), np.zeros(40, dtype=np.bool_)))
    if architecture == "elmo":
        return chosen.build(new_encoder(ElmoSettings(vocab_size=40, filters=((1, 4),), **sizes)))
    small = {"architecture": architecture, "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2}
    heads = {} if architecture == "lstm" else {"num_attention_heads": 2}
    encoder_settings = EncoderSettings.model_validate({**small, **heads, **sizes})
    return chosen.build(new_encoder(encoder_settings, pooler=chosen.needs_pooler))


ALONE = {"sentence_objective": "none"}
MODULES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bert": ("bert", {"name": "masked_lm"}, {}),
    "spanbert": ("bert", {"name": "masked_lm", "masking": "span", "span_boundary": True, **ALONE}, {}),
    "left-to-right bert": ("bert", {"name": "causal_lm"}, {"causal": True}),
    "roberta": ("roberta", {"name": "masked_lm", **ALONE}, {}),
    "electra": ("electra", {"name": "replaced_token"}, {"embedding_size": 8}),
    "gpt1": ("gpt1", {"name": "causal_lm"}, {}),
    "lstm": ("lstm", {"name": "causal_lm"}, {"intermediate_size": 24}),
    "elmo": ("elmo", {"name": "bilm"}, {"projection_size": 8, "cell_size": 12}),
}
"""Architecture, objective and sizes."""

TRANSFORMER = {
    f"encoder.blocks.{layer}.{matrix}.weight"
    for layer in (0, 1)
    for matrix in ("attention.query_key_value", "attention.output", "feed_forward.up", "feed_forward.down")
}
BERT_EMBEDDINGS = {f"encoder.embeddings.{name}.weight" for name in ("word", "position", "token_type")}

OF_MUON: dict[str, set[str]] = {
    "bert": TRANSFORMER,
    "spanbert": TRANSFORMER,
    "left-to-right bert": TRANSFORMER,
    "roberta": TRANSFORMER,
    "electra": TRANSFORMER | {name.replace("encoder", "generator") for name in TRANSFORMER},
    "gpt1": TRANSFORMER,
    "lstm": {"encoder.blocks.0.projection.weight", "encoder.blocks.1.projection.weight"},
    "elmo": {f"encoder.blocks.{direction}.layers.{layer}.projection" for direction in (0, 1) for layer in (0, 1)},
}
MATRICES_OF_ADAMW: dict[str, set[str]] = {
    "bert": {
        *BERT_EMBEDDINGS,
        *("encoder.pooler.dense.weight", "masked_lm_head.dense.weight", "next_sentence_head.dense.weight"),
    },
    "spanbert": {
        *(*BERT_EMBEDDINGS, "masked_lm_head.dense.weight", "span_boundary_head.position.weight"),
        *("span_boundary_head.dense1.weight", "span_boundary_head.dense2.weight"),
    },
    "left-to-right bert": {*BERT_EMBEDDINGS, "masked_lm_head.dense.weight"},
    "roberta": {*BERT_EMBEDDINGS, "masked_lm_head.dense.weight"},
    "electra": {
        *(f"encoder.embeddings.narrow.{name}.weight" for name in ("word", "position", "token_type")),
        *("encoder.embeddings.projection.weight", "generator.embeddings.projection.weight"),
        *("discriminator_head.dense.weight", "discriminator_head.output.weight", "generator_head.dense.weight"),
    },
    "gpt1": {"encoder.embeddings.word.weight", "encoder.embeddings.position.weight"},
    "lstm": {
        "encoder.embeddings.word.weight",
        *(f"encoder.blocks.{layer}.lstm.weight_{gates}_l0" for layer in (0, 1) for gates in ("ih", "hh")),
    },
    "elmo": {
        *("softmax.weight", "encoder.embeddings.embedding", "encoder.embeddings.projection.weight"),
        *(f"encoder.embeddings.highways.{layer}.{part}.weight" for layer in (0, 1) for part in ("carry", "transform")),
        *(f"encoder.blocks.0.layers.{layer}.{gates}_weight" for layer in (0, 1) for gates in ("input", "hidden")),
        *(f"encoder.blocks.1.layers.{layer}.{gates}_weight" for layer in (0, 1) for gates in ("input", "hidden")),
    },
}
"""And all that has one dimension, or three: biases, norms, filters."""


@pytest.mark.parametrize("name", MODULES)
def test_which_matrices_go_to_muon_and_which_to_adamw(name: str) -> None:
    architecture, objective, sizes = MODULES[name]
    module = pretraining_module(architecture, objective, **sizes)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    found: dict[str, str] = {}
    for group in build_optimizer(module, SETTINGS).param_groups:
        which = "muon" if "momentum" in group else "adamw"
        found |= {names[id(parameter)]: which for parameter in group["params"]}
    assert found.keys() == set(names.values())
    assert {each for each, which in found.items() if which == "muon"} == OF_MUON[name]
    of_adamw = {each for each, which in found.items() if which == "adamw"}
    assert {each for each in of_adamw if module.get_parameter(each).ndim == 2} == MATRICES_OF_ADAMW[name]


def test_the_groups_have_their_rates_and_decays() -> None:
    optimizer = build_optimizer(new_module(), SETTINGS)
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.01, 0.04]  # the logged one comes first
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0, 0.1]


def test_a_rate_of_its_own_is_an_option_and_layers_keep_their_decay() -> None:
    settings = OptimizerSettings(name="muon", learning_rate=0.8, layer_decay=0.5)
    rates = [group["lr"] for group in build_optimizer(new_module(), settings).param_groups if "momentum" in group]
    assert rates == [0.2, 0.1]


def test_it_steps_as_torchs_two_optimizers_side_by_side() -> None:
    ours, theirs = new_module(), new_module()
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
        give_gradients(ours.parameters(), seed)
        give_gradients(theirs.parameters(), seed)
        optimizer.step()
        for each in pair:
            each.step()
    # Theirs is in bf16, whose eight bits leave a hundredth of an update of .04 x .2; by AdamW all is the same.
    for (name, found), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3 if id(expected) in ids else 0, msg=name)


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
        give_gradients(module.parameters(), seed)
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


@pytest.mark.parametrize("shape", [(16, 16), (24, 8), (8, 24)], ids=str)
def test_matrices_are_made_orthogonal_whatever_their_size_and_zeros_stay(shape: tuple[int, int]) -> None:
    gradients = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    whole = orthogonalise(gradients, torch.float32)
    small = orthogonalise(1e-5 * gradients, torch.float32)
    torch.testing.assert_close(small, whole, rtol=0, atol=1e-3)  # fp32, grown up to 3.4 fold five times
    assert_equal(orthogonalise(torch.zeros(3, *shape), torch.float32), torch.zeros(3, *shape))


def test_what_it_has_loaded_it_steps_on_with() -> None:
    module, copy = new_module(), new_module()
    optimizer, other = build_optimizer(module, SETTINGS), build_optimizer(copy, SETTINGS)
    for seed in range(2):
        give_gradients(module.parameters(), seed)
        optimizer.step()
    copy.load_state_dict(module.state_dict())
    other.load_state_dict(deepcopy(optimizer.state_dict()))  # it takes tensors as they are
    for group, same in zip(optimizer.param_groups, other.param_groups, strict=True):
        group["lr"] = same["lr"] = group["lr"] / 2  # what the schedule does
    for each, its in ((module, optimizer), (copy, other)):
        give_gradients(each.parameters(), 5)
        its.step()
    assert isinstance(other, MuonWithAdamW)
    assert_equal(dict(copy.named_parameters()), dict(module.named_parameters()))


def test_a_captured_step_is_that_of_scaled_gradients_and_other_rates() -> None:
    ours, theirs = new_module(), new_module()
    by_layer = SETTINGS.model_copy(update={"layer_decay": 0.8})
    one, other = build_optimizer(ours, by_layer), build_optimizer(theirs, by_layer)
    rates = [0.01 * (2 + number) for number in range(len(one.param_groups))]
    one.on_device = OnDevice(torch.zeros(()), torch.tensor(4.0), [torch.tensor(rate) for rate in rates])
    for group, rate in zip(other.param_groups, rates, strict=True):
        group["lr"] = rate
    for seed in range(4):
        give_gradients(ours.parameters(), seed)
        give_gradients(theirs.parameters(), seed)
        for parameter in theirs.parameters():
            parameter.grad /= 4
        one.step()
        other.step()
    for found, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)  # the rates are rounded to fp32


def test_a_captured_step_that_is_not_taken_changes_nothing() -> None:
    module = new_module()
    optimizer = build_optimizer(module, SETTINGS)
    give_gradients(module.parameters(), 0)
    optimizer.step()
    before, state = deepcopy(module.state_dict()), deepcopy(optimizer.state_dict()["state"])
    optimizer.on_device = OnDevice(torch.ones(()), torch.ones(()), [torch.tensor(0.1)] * 3)
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)
    optimizer.step()
    assert_equal(module.state_dict(), before)
    assert_equal(optimizer.state_dict()["state"], state)


class Two(Ranks):
    """Two processes, without the other one, whose device is fast in bf16 or not."""

    def __init__(self, other_is_fast: bool) -> None:
        super().__init__(rank=0, size=2)
        object.__setattr__(self, "other_is_fast", other_is_fast)

    def gather(self, value: Any) -> list[Any]:
        return [value, self.other_is_fast]

    def join_rows(self, rows: Tensor, number: int) -> Tensor:
        object.__setattr__(self, "sent", rows.dtype)
        return rows.new_ones(number, *rows.shape[1:])


@pytest.mark.parametrize("fast", [(True, True), (True, False), (False, True), (False, False)], ids=str)
def test_all_processes_orthogonalise_in_one_type(monkeypatch: pytest.MonkeyPatch, fast: tuple[bool, bool]) -> None:
    dtype = torch.bfloat16 if fast[0] else torch.float32
    monkeypatch.setattr(module_under_test, "choose_compute", lambda *_: Compute(torch.device("cpu"), dtype, ""))
    module, ranks = new_module(), Two(fast[1])
    optimizer = build_optimizer(module, SETTINGS, ranks)
    give_gradients(module.parameters(), 0)
    optimizer.step()
    assert ranks.sent == (torch.bfloat16 if all(fast) else torch.float32)


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"optimizer\.name=muon: this model has no matrices in layers"):
        build_optimizer(nn.Linear(3, 3), SETTINGS)


def test_an_lstm_that_projects_nothing_is_refused() -> None:
    module = pretraining_module("lstm", {"name": "causal_lm"}, intermediate_size=16)
    with pytest.raises(SettingsError, match=r"no matrices in layers to train \(an LSTM's gates are not for it\)"):
        build_optimizer(module, SETTINGS)
