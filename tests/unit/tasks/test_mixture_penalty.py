"""ELMo's penalty of the weights of layers: its gradient however a step is cut, and where it is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from support.sizes import small, small_elmo
from unmask.batch import Batch, pack
from unmask.errors import SettingsError
from unmask.models.encoder import new_encoder
from unmask.models.heads.layer_mixture import mixture_of
from unmask.tasks.base import TaskModule
from unmask.tasks.settings import ColumnSettings, TaskSettings
from unmask.tasks.table import open_task

LAMBDA = 0.7
TAGGER = {"name": "tagging", "labels": ["O", "B-x", "I-x"], "feature_layers": "weighted-all-and-embeddings"}
MIXING: dict[str, dict[str, Any]] = {
    "texts": {"name": "classification", "labels": ["n", "y"]},
    "values": {"name": "regression"},
    "a probe": TAGGER,
    "a BiLSTM": {**TAGGER, "tagging_head": "bilstm", "bilstm_size": 4},
}


def new_module(encoder: Any, **settings: Any) -> TaskModule:
    return open_task(TaskSettings.model_validate(settings), ColumnSettings()).module(encoder)


def new_elmo() -> Any:
    torch.manual_seed(0)
    encoder = new_encoder(small_elmo(), pooler=False)
    encoder.set_words(torch.randint(0, 200, (10, 8)).numpy())
    return encoder


def batch_of(module: TaskModule, *texts: list[int]) -> Batch:
    """Texts whose labels are 1, each of its tokens' or its own."""
    batch = pack(list(texts))
    per_token = "Tagging" in type(module).__name__
    labels = torch.ones(batch.num_tokens if per_token else batch.num_sequences, dtype=torch.int64)
    return batch.with_columns(labels=labels if module.head.num_labels != 1 else labels.float())


def gradients(module: TaskModule, batches: list[Batch]) -> dict[str, torch.Tensor]:
    """Of a step, as the loop sums it."""
    counts: dict[str, int] = {}
    for batch in batches:
        for name, count in module.counts(batch).items():
            counts[name] = counts.get(name, 0) + count
    module.zero_grad()
    for batch in batches:
        terms = module(batch)
        assert {term.name for term in terms} == counts.keys()
        sum(term.coefficient * term.total / counts[term.name] for term in terms).backward()
    return {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("settings", MIXING.values(), ids=MIXING)
def test_a_step_has_the_gradient_of_the_formula_however_it_is_cut(settings: dict[str, Any]) -> None:
    settings = {**settings, "classifier_dropout": 0}
    torch.manual_seed(1)
    plain = new_module(new_elmo(), **settings).eval()
    penalised = new_module(plain.encoder, **settings, mixture_penalty=LAMBDA).eval()
    penalised.head.load_state_dict(plain.head.state_dict())
    for module in (plain, penalised):
        mixture = mixture_of(module.head)
        assert mixture is not None
        with torch.no_grad():
            mixture.scores.copy_(torch.tensor([0.5, -1.0, 2.0]))
    texts = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [2]]
    scores = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    (LAMBDA * torch.softmax(scores, 0).square().sum()).backward()
    assert scores.grad is not None
    without = gradients(plain, [batch_of(plain, *texts)])
    for cut in (4, 3, 1):
        batches = [batch_of(penalised, *texts[first : first + cut]) for first in range(0, 4, cut)]
        found = gradients(penalised, batches)
        # Sums in float32, in another order where the step is cut.
        torch.testing.assert_close(
            found["head.mixture.scores"] - without["head.mixture.scores"], scores.grad.float(), atol=1e-5, rtol=1e-4
        )
        others = {name: grad for name, grad in found.items() if name != "head.mixture.scores"}
        torch.testing.assert_close(others, {name: without[name] for name in others}, atol=1e-5, rtol=1e-3)


def test_it_is_in_no_loss_that_is_measured() -> None:
    module = new_module(new_elmo(), **MIXING["texts"], mixture_penalty=LAMBDA).eval()
    batch = batch_of(module, [1, 2], [3])
    assert [term.name for term in module.loss(module.outputs(batch), batch)] == ["task"]
    assert [(term.name, term.coefficient) for term in module(batch)] == [("task", 1.0), ("mixture", LAMBDA)]


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "classification", "labels": ["n", "y"], "feature_layers": "last"},
        {"name": "tagging", "labels": ["O", "B-x", "I-x"]},
        {"name": "tagging", "labels": ["O", "B-x", "I-x"], "feature_layers": "embeddings"},
        {"name": "tagging", "labels": ["O", "B-x", "I-x"], "encoder_top": "bilstm"},
    ],
    ids=str,
)
def test_it_is_refused_where_nothing_is_mixed(settings: dict[str, Any]) -> None:
    bert = new_encoder(small(vocab=60, width=16, layers=2, heads=2, inner=32, positions=16), pooler=False)
    for encoder in (new_elmo(), bert):
        with pytest.raises(
            SettingsError, match=r"task\.mixture_penalty 0\.7 is of the weights by which layers are mixed"
        ):
            new_module(encoder, **settings, mixture_penalty=LAMBDA)
    with pytest.raises(ValueError, match="mixture_penalty is for classification, regression and tagging, not for qa"):
        TaskSettings(name="qa", mixture_penalty=LAMBDA)
    assert mixture_of(nn.Linear(2, 2)) is None
