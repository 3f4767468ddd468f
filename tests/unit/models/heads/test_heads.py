"""Heads by family and kind: shapes, dropout, and that each learns with its encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor

from support.sizes import small
from unmask.batch import pack
from unmask.models.encoder import new_encoder
from unmask.models.families.table import ARCHITECTURES
from unmask.models.family import HeadKind
from unmask.models.heads.heads import DeepClassifier, needs_pooler, new_head
from unmask.models.settings import Architecture, EncoderSettings, token_families

FAMILIES = tuple(token_families())
KINDS: tuple[HeadKind, ...] = get_args(HeadKind)
PER_SEQUENCE = ("sequence_classification", "multiple_choice")


def sizes(family: Architecture) -> EncoderSettings:
    heads = 1 if family == "lstm" else 3
    return small(architecture=family, vocab=30, width=12, layers=1, heads=heads, inner=48, positions=16)


def test_every_family_has_every_kind() -> None:
    """But for ELMo, whose texts have a `ElmoClassifier`, and which answers no questions."""
    assert all(set(ARCHITECTURES[family].heads) == set(KINDS) for family in FAMILIES)
    assert set(ARCHITECTURES["elmo"].heads) == {"sequence_classification", "token_classification"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_learns_with_its_encoder(family: Architecture, kind: HeadKind) -> None:
    """Every parameter of both gets a gradient: nothing is built that the kind does not use."""
    torch.manual_seed(0)
    settings = sizes(family)
    num_labels = {"question_answering": 2, "multiple_choice": 1}.get(kind, 5)
    encoder, head = new_encoder(settings, needs_pooler(settings, kind)), new_head(kind, settings, num_labels)
    batch = pack([[2, 3, 4], [5, 6]])
    logits = head(encoder.summary(batch) if kind in PER_SEQUENCE else encoder(batch))
    assert logits.shape == ((2 if kind in PER_SEQUENCE else 5), num_labels)
    assert head.num_labels == num_labels
    logits.square().sum().backward()
    assert all(parameter.grad is not None for module in (encoder, head) for parameter in module.parameters())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_is_the_encoders_unless_given_and_for_training_only(family: Architecture, kind: HeadKind) -> None:
    settings = sizes(family).model_copy(update={"hidden_dropout_prob": 0.2})
    drops = kind != "question_answering" or family.startswith("modernbert")
    expected = (0.2, 0.5) if drops else (0.0, 0.0)
    assert new_head(kind, settings, 2).dropout_prob == expected[0]
    head = new_head(kind, settings, 2, dropout_prob=0.5)
    assert head.dropout_prob == expected[1]
    hidden = torch.randn(40, 12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(head(hidden), head(hidden)) == (not drops)
    head.eval()
    assert torch.equal(head(hidden), head(hidden))


def test_a_classifier_is_dropout_and_a_product() -> None:
    head = new_head("sequence_classification", sizes("gpt1"), 3).eval()
    hidden = torch.randn(2, 12)
    assert head.dense.bias is None
    torch.testing.assert_close(head(hidden), hidden @ head.dense.weight.T)


@pytest.mark.parametrize(("family", "activation"), [("roberta", torch.tanh), ("electra", torch.nn.functional.gelu)])
def test_families_without_a_pooled_token_have_a_layer_more(
    family: Architecture, activation: Callable[[Tensor], Tensor]
) -> None:
    head = new_head("sequence_classification", sizes(family), 3).eval()
    assert isinstance(head, DeepClassifier)
    hidden = torch.randn(2, 12)
    torch.testing.assert_close(head(hidden), head.output(activation(head.dense(hidden))))


def test_only_what_is_pooled_in_the_papers_needs_a_pooler() -> None:
    families = ("bert", "roberta", "electra", "modernbert", "modernbert_decoder", "gpt1", "lstm")
    needing = {(family, kind) for family in families for kind in KINDS if needs_pooler(sizes(family), kind)}
    assert needing == {("bert", "sequence_classification"), ("bert", "multiple_choice"), ("roberta", "multiple_choice")}


@pytest.mark.parametrize("rows", [3, 200])
def test_no_bias_is_no_bias_on_every_path_of_the_processor(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Tolerance: fp32 sums of 12 products in another order."""
    monkeypatch.setattr("unmask.models.kernels.products._onednn_beats_mkl", lambda: True)
    head = new_head("multiple_choice", sizes("gpt1"), 1).eval()
    hidden = torch.randn(rows, 12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(head(hidden), hidden @ head.dense.weight.T, rtol=1e-5, atol=1e-6)
    head(hidden).sum().backward()
    assert head.dense.weight.grad is not None
