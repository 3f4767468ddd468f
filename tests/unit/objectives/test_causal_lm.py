"""Left-to-right language modelling: targets, loss against a slow reference, decoders, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from support.sizes import sizes_of
from unmask.batch import pack
from unmask.models.bert import BertEncoder
from unmask.models.encoder import new_encoder
from unmask.models.heads.heads import MaskedLMHead
from unmask.models.hub.directory import save_model
from unmask.models.hub.source import open_source
from unmask.models.settings import EncoderSettings
from unmask.objectives.causal_lm import CausalLM, CausalLMModule
from unmask.objectives.floors import by_figure
from unmask.objectives.settings import CausalLMSettings
from unmask.tokenization.vocabulary import Vocabulary

SIZES = sizes_of(vocab=40, width=12, layers=2, heads=3, inner=48, positions=16, std=0.3, dropout=0.0)
ENCODERS = {
    "gpt1": EncoderSettings(architecture="gpt1", **SIZES),
    "bert": EncoderSettings(causal=True, **SIZES),
    "lstm": EncoderSettings(architecture="lstm", **SIZES | {"num_attention_heads": 1}),
}
OBJECTIVE = CausalLM(CausalLMSettings(), Vocabulary(40, None, (0, 1), np.zeros(40, dtype=np.bool_)))
SEQUENCES = [[5, 6, 7, 8, 9], [3], [4, 4, 11], [30, 31]]


def new_module(kind: str) -> CausalLMModule:
    torch.manual_seed(0)
    return OBJECTIVE.build(new_encoder(ENCODERS[kind], pooler=False))


def logits_of(module: CausalLMModule, hidden: Tensor) -> Tensor:
    words = module.encoder.word_embeddings
    return hidden @ words.T if module.masked_lm_head is None else module.masked_lm_head(hidden, words)


def slow_losses(module: CausalLMModule, sequences: list[list[int]]) -> list[Tensor]:
    """Each sequence by itself, each prefix by itself: minus the log-probability of the token that comes next."""
    losses = []
    for sequence in sequences:
        for end in range(1, len(sequence)):
            hidden = module.encoder(pack([sequence[:end]]))[-1:]
            losses.append(-torch.log_softmax(logits_of(module, hidden)[0], -1)[sequence[end]])
    return losses


def test_every_token_that_follows_another_is_a_target() -> None:
    batch = OBJECTIVE.prepare(pack(SEQUENCES))
    assert batch.columns["target_positions"].tolist() == [0, 1, 2, 3, 6, 7, 9]
    assert batch.columns["labels"].tolist() == [6, 7, 8, 9, -100, -100, 4, 11, -100, 31, -100]
    assert OBJECTIVE.counts(batch) == {"lm": 7}
    assert not OBJECTIVE.needs_pooler


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_loss_is_that_of_every_prefix_gradients_included(kind: str) -> None:
    """Tolerance: fp32 sums in another order."""
    module = new_module(kind)
    [term] = module(OBJECTIVE.prepare(pack(SEQUENCES)))
    expected = torch.stack(slow_losses(module, SEQUENCES)).sum()
    assert (term.name, term.coefficient) == ("lm", 1.0)
    torch.testing.assert_close(term.total, expected)
    ours, theirs = (torch.autograd.grad(loss, list(module.parameters())) for loss in (term.total, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ENCODERS)
def test_scores_are_the_loss_and_the_share_that_is_guessed(kind: str) -> None:
    module, batch = new_module(kind).eval(), OBJECTIVE.prepare(pack(SEQUENCES))
    scores = module.scores(batch)
    [term] = module(batch)
    assert {name: count for name, (_, count) in scores.items()} == {"lm_loss": 7, "lm_accuracy": 7}
    torch.testing.assert_close(scores["lm_loss"][0], term.total.detach())
    hidden, right = module.encoder(batch), 0
    for position in batch.columns["target_positions"].tolist():
        right += int(logits_of(module, hidden[position : position + 1]).argmax()) == int(batch.input_ids[position + 1])
    assert int(scores["lm_accuracy"][0]) == right


def test_a_masked_lms_head_is_a_start(tmp_path: Path) -> None:
    masked = EncoderSettings(**SIZES)
    head = MaskedLMHead(masked)
    save_model(tmp_path, BertEncoder(masked, pooler=False), {"masked_lm_head": head})
    module = new_module("bert")
    OBJECTIVE.restore_heads(module, open_source(tmp_path))
    assert module.masked_lm_head is not None
    assert torch.equal(module.masked_lm_head.dense.weight, head.dense.weight)


def test_the_floor_is_the_entropy_of_the_entries() -> None:
    floors = by_figure(OBJECTIVE.floors(np.array([2, 1, 1, 0])))
    assert floors == {"loss/lm": {"unigram entropy": pytest.approx(1.5 * math.log(2))}}
