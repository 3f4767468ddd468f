"""Texts and pairs of texts classified from ELMo's layers, against a slow computation from the formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.sizes import small_elmo
from unmask.batch import Batch, pack
from unmask.errors import SettingsError
from unmask.models.elmo import classifier
from unmask.models.elmo.classifier import ElmoClassifier
from unmask.models.elmo.encoder import ElmoEncoder, text_lengths

SETTINGS = small_elmo()
PAIRED = pack([[1, 2, 3], [4, 5, 6, 7], [8, 9]], [[0, 1, 1], [0, 0, 0, 0], [0, 1]])
"""A pair of one word and two, a text alone, a pair of one word each."""


def states() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(PAIRED.num_tokens, SETTINGS.hidden_size) for _ in range(3)]


def expected(head: ElmoClassifier, layers: list[Tensor]) -> Tensor:
    words = layers[-1]
    if head.mixture is not None:
        shares = torch.softmax(head.mixture.scores, 0)
        words = head.mixture.gamma * sum(share * layer for share, layer in zip(shares, layers, strict=True))

    def text(first: int, end: int) -> Tensor:
        values = words[first:end]
        if head.bilstm is not None:
            values = head.bilstm.layers[0](values[:, None])[0].squeeze(1)
        return torch.cat([values.mean(0), values.amax(0)])

    rows = []
    for u, v in ((text(0, 1), text(1, 3)), (text(3, 7), None), (text(7, 8), text(8, 9))):
        v = torch.zeros_like(u) if v is None else v
        rows.append(torch.cat([u, v, (u - v).abs(), u * v]))
    return head.dense(torch.stack(rows))


@pytest.mark.parametrize("bilstm_size", [None, 4])
def test_texts_are_pooled_and_compared(bilstm_size: int | None) -> None:
    torch.manual_seed(1)
    head = ElmoClassifier(SETTINGS, 3, bilstm_size=bilstm_size).eval()
    assert head.mixture is not None
    with torch.no_grad():
        head.mixture.scores.copy_(torch.tensor([0.5, -1.0, 2.0]))
        head.mixture.gamma.fill_(1.5)
    assert head.num_labels == 3
    # Float32 sums of some tens of values of size 1.
    torch.testing.assert_close(head(states(), PAIRED), expected(head, states()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bilstm_size", [None, 4])
def test_the_last_layer_may_be_read_alone(bilstm_size: int | None) -> None:
    head = ElmoClassifier(SETTINGS, 3, bilstm_size=bilstm_size, feature_layers="last").eval()
    assert head.mixture is None
    torch.testing.assert_close(head(states(), PAIRED), expected(head, states()), atol=1e-5, rtol=1e-5)
    side_by_side = ElmoClassifier(SETTINGS, 3, bilstm_size=bilstm_size, feature_layers="second-to-last").eval()
    assert side_by_side.state_dict().keys() == head.state_dict().keys()
    with pytest.raises(SettingsError, match="concat-last-4 needs 4 layers and the model has 2"):
        ElmoClassifier(SETTINGS, 3, feature_layers="concat-last-4")


@pytest.mark.parametrize("layers", ["last", "weighted-all"])
def test_what_is_read_of_the_encoder_loses_some_in_training(layers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = []
    monkeypatch.setattr(
        classifier, "dropout", lambda values, prob, training: dropped.append((prob, training)) or values
    )
    read = []
    head = ElmoClassifier(SETTINGS, 3, dropout_prob=0.5, bilstm_size=4, feature_layers=layers)
    monkeypatch.setattr(head.bilstm, "forward", lambda words, lengths: read.append(len(dropped)) or words)
    head.dense = torch.nn.LazyLinear(3)
    head(states(), PAIRED)
    assert (dropped, read) == ([(0.5, True), (0.5, True)], [1])


def test_all_of_it_learns() -> None:
    head = ElmoClassifier(SETTINGS, 3, dropout_prob=0, bilstm_size=4)
    head(states(), PAIRED).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in head.parameters())


def test_the_texts_of_a_pair_are_read_apart() -> None:
    assert text_lengths(PAIRED) == (1, 2, 4, 1, 1)
    assert text_lengths(pack([[1, 2], [3]])) == (2, 1)
    torch.manual_seed(0)
    encoder = ElmoEncoder(SETTINGS).eval()
    encoder.set_words(torch.randint(0, 200, (10, 8)).numpy())
    alone = pack([[1], [2, 3], [4, 5, 6, 7], [8], [9]])
    torch.testing.assert_close(encoder.hidden_states(PAIRED), encoder.hidden_states(alone))
    one: Batch = pack([[1, 2, 3]])
    read_together = encoder.hidden_states(one)[-1]
    assert not torch.allclose(read_together, encoder.hidden_states(alone)[-1][:3])
