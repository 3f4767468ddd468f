"""The mixture of layers, and the BiLSTM that reads packed sequences of any lengths."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from support.sizes import small, small_elmo
from unmask.errors import SettingsError
from unmask.models.heads.bilstm import HIDDEN_SIZE, BiLstm, FeatureHead
from unmask.models.heads.layer_mixture import CHOICES, LayerMixture, find_choice
from unmask.models.sizes import Sizes

SETTINGS = small(vocab=50, width=8, layers=5, heads=2, inner=16, positions=32)
LENGTHS = (3, 1, 7, 7, 2)


def states(num_tokens: int = 3) -> list[Tensor]:
    """The embeddings' output and five layers', each state filled with its number."""
    return [torch.full((num_tokens, 8), float(number)) for number in range(6)]


NUMBERS = {
    "embeddings": [0],
    "second-to-last": [4],
    "last": [5],
    "weighted-last-4": [2, 3, 4, 5],
    "concat-last-4": [2, 3, 4, 5],
    "weighted-all": [1, 2, 3, 4, 5],  # the layers, not the embeddings
    "weighted-all-and-embeddings": [0, 1, 2, 3, 4, 5],
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices(name: str) -> None:
    choice = find_choice(name, 5)
    selected = choice.select(states())
    assert tuple(selected.shape[1:]) == choice.shape(5, 8)
    assert choice.mixed == name.startswith("weighted") == (selected.dim() == 3)
    assert selected[0].reshape(-1, 8)[:, 0].tolist() == NUMBERS[name]


def test_unknown_and_impossible_choices() -> None:
    with pytest.raises(SettingsError, match=r"no feature layers 'lst': .*did you mean last\?"):
        find_choice("lst", 5)
    with pytest.raises(SettingsError, match="no feature layers -1: expected one of embeddings, "):
        find_choice(-1, 5)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="concat-last-4 needs 4 layers and the model has 3: choose one of embed"):
        find_choice("concat-last-4", 3)
    with pytest.raises(SettingsError, match=r"^layer-33 needs 33 layers and the model has 5: choose one of .*layer-5$"):
        find_choice("layer-33", 5)
    with pytest.raises(SettingsError, match=r"no feature layers 'layer-0'"):
        find_choice("layer-0", 5)
    assert [find_choice(f"layer-{n}", 5).select(states())[0, 0] for n in range(1, 6)] == [1, 2, 3, 4, 5]
    assert find_choice("second-to-last", 2).select(states()[:3])[0, 0] == 1


def test_mixture_by_hand() -> None:
    mixture = LayerMixture(3)
    layers = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 12.0]]])  # (1 token, 3 layers, 2)
    assert mixture(layers).tolist() == [[pytest.approx(3.0), pytest.approx(6.0)]]  # at first the plain average
    with torch.no_grad():
        mixture.scores.copy_(torch.tensor([0.0, math.log(2), math.log(5)]))  # weights 1/8, 2/8, 5/8
        mixture.gamma.fill_(4.0)
    assert mixture.weights.tolist() == pytest.approx([1 / 8, 2 / 8, 5 / 8])
    expected = [4 * (1 * 1 + 2 * 3 + 5 * 5) / 8, 4 * (1 * 2 + 2 * 4 + 5 * 12) / 8]
    assert mixture(layers)[0].tolist() == pytest.approx(expected)


def reference(bilstm: BiLstm) -> nn.LSTM:
    """One `torch.nn.LSTM` of all layers with the same weights."""
    lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True)
    weights = {
        name.replace("_l0", f"_l{number}"): weight
        for number, layer in enumerate(bilstm.layers)
        for name, weight in layer.state_dict().items()
    }
    lstm.load_state_dict(weights)
    return lstm


def test_each_sequence_is_read_alone_gradients_included() -> None:
    """Tolerance: matrix products of other shapes add in another order, a few units in the last place of float32."""
    torch.manual_seed(0)
    bilstm = BiLstm(6, hidden_size=5)
    values = torch.randn(sum(LENGTHS), 6, requires_grad=True)
    alone = reference(bilstm)
    found, expected = bilstm(values, LENGTHS), torch.cat([alone(sequence)[0] for sequence in values.split(LENGTHS)])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    weights = (bilstm.layers[1].weight_hh_l0, alone.weight_hh_l1)
    ours, theirs = (
        torch.autograd.grad(states.square().sum(), [values, weight])
        for states, weight in zip((found, expected), weights, strict=True)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_dropout_stands_between_the_layers_and_repeats() -> None:
    torch.manual_seed(0)
    bilstm = BiLstm(6, hidden_size=5, dropout_prob=0.5)
    values = torch.randn(sum(LENGTHS), 6)
    torch.manual_seed(1)
    first = bilstm(values, LENGTHS)
    torch.manual_seed(1)
    assert torch.equal(bilstm(values, LENGTHS), first)
    assert not torch.equal(bilstm(values, LENGTHS), first)
    bilstm.eval()
    assert torch.equal(bilstm(values, LENGTHS), bilstm(values, LENGTHS))


def test_the_head_of_the_paper() -> None:
    head = FeatureHead(SETTINGS, 7, "concat-last-4")
    assert head.bilstm is not None
    assert (HIDDEN_SIZE, len(head.bilstm.layers), head.num_labels) == (768, 2, 7)
    assert [layer.input_size for layer in head.bilstm.layers] == [32, 1536]
    assert (head.mixture, head.dropout_prob) == (None, SETTINGS.hidden_dropout_prob)
    mixed = FeatureHead(SETTINGS, 7, "weighted-all", dropout_prob=0.0)
    assert isinstance(mixed.mixture, LayerMixture)
    assert mixed.mixture.scores.shape == (5,)


def test_without_a_bilstm_it_is_a_linear_classifier_of_a_layer() -> None:
    torch.manual_seed(0)
    head = FeatureHead(SETTINGS, 3, "second-to-last", dropout_prob=0.5, hidden_size=None)
    assert (head.bilstm, head.mixture) == (None, None)
    features = torch.randn(sum(LENGTHS), 8)
    assert torch.equal(head.eval()(features, LENGTHS), head.dense(features))
    assert not torch.equal(head.train()(features, LENGTHS), head.dense(features))


@pytest.mark.parametrize("layers", ["last", "weighted-all"])
@pytest.mark.parametrize(("settings", "loses"), [(small_elmo(), True), (SETTINGS, False)], ids=["ELMo", "BERT"])
def test_what_a_bilstm_reads_of_elmo_loses_some_to_dropout(settings: Sizes, loses: bool, layers: str) -> None:
    torch.manual_seed(0)
    head = FeatureHead(settings, 3, layers, dropout_prob=0.5, hidden_size=4)
    features = torch.ones(30, *find_choice(layers, settings.num_hidden_layers).shape(settings.num_hidden_layers, 10))
    read: list[Tensor] = []
    assert head.bilstm is not None
    head.bilstm = BiLstm(10, 4)
    head.bilstm.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    head(features, (30,))
    head.eval()(features, (30,))
    assert [bool((values == 0).any()) for values in read] == [loses, False]


@pytest.mark.parametrize("hidden_size", [4, None])
@pytest.mark.parametrize("layers", ["last", "weighted-last-4"])
def test_a_head_is_rebuilt_from_its_state(layers: str, hidden_size: int | None) -> None:
    torch.manual_seed(0)
    head = FeatureHead(SETTINGS, 3, layers, hidden_size=hidden_size).eval()
    with torch.device("meta"):
        again = FeatureHead(SETTINGS, 3, layers, hidden_size=hidden_size)
    again.load_state_dict(head.state_dict(), assign=True)
    features = torch.randn(sum(LENGTHS), *find_choice(layers, 5).shape(5, 8))
    assert torch.equal(again.eval()(features, LENGTHS), head(features, LENGTHS))


def test_the_head_computes_in_float32_under_autocast() -> None:
    torch.manual_seed(0)
    head = FeatureHead(SETTINGS, 3, "last", dropout_prob=0.0)
    features = torch.randn(sum(LENGTHS), 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = head(features.bfloat16().float(), LENGTHS)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, head(features.bfloat16().float(), LENGTHS))
