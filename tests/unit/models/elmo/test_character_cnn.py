"""The character CNN: against the formulas for one word at a time, and what it saves changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.sizes import small_elmo
from unmask.models.elmo.character_cnn import PADDING, CharacterCnn

SETTINGS = small_elmo(max_characters=12, filters=((1, 2), (3, 4), (4, 3)))


def rows_of(*words: str) -> Tensor:
    rows = [[258, *word.encode(), 259] for word in words]
    return torch.tensor([row + [PADDING] * (12 - len(row)) for row in rows])


def slow(cnn: CharacterCnn, word: Tensor, activation: str) -> Tensor:
    """One word by the formulas, over all of its characters."""
    embedded = [cnn.embedding[character] for character in word.tolist()]
    values = []
    for convolution in cnn.convolutions:
        weight, bias = convolution.weight, convolution.bias
        width = weight.shape[2]
        for number in range(weight.shape[0]):
            places = [
                sum((weight[number, :, step] * embedded[start + step]).sum() for step in range(width)) + bias[number]
                for start in range(len(embedded) - width + 1)
            ]
            values.append(torch.stack([torch.as_tensor(place) for place in places]).max())
    hidden = torch.relu(torch.stack(values)) if activation == "relu" else torch.tanh(torch.stack(values))
    for highway in cnn.highways:
        carry = torch.sigmoid(highway.carry.weight @ hidden + highway.carry.bias)
        new = torch.relu(highway.transform.weight @ hidden + highway.transform.bias)
        hidden = carry * new + (1 - carry) * hidden
    return cnn.projection.weight @ hidden + cnn.projection.bias


def test_filters_start_as_in_the_released_code() -> None:
    """Evenly within .05 under relu; normal, by the numbers that a filter sees, under tanh. Biases start at 0."""
    torch.manual_seed(0)
    wide = SETTINGS.model_copy(update={"filters": ((2, 4000),), "num_highway_layers": 0})
    evenly, normal = (CharacterCnn(wide.model_copy(update={"activation": name})) for name in ("relu", "tanh"))
    weight = evenly.convolutions[0].weight.detach()
    assert weight.abs().max() <= 0.05
    assert weight.std() == pytest.approx(0.05 / 3**0.5, rel=0.02)
    weight = normal.convolutions[0].weight.detach()
    assert weight.std() == pytest.approx((2 * wide.character_size) ** -0.5, rel=0.02)
    assert weight.abs().max() > 3 * weight.std()
    assert not any(cnn.convolutions[0].bias.any() for cnn in (evenly, normal))


@pytest.mark.parametrize("words_at_once", [512, 2])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_vectors_and_gradients_are_those_of_the_formulas(
    activation: str, words_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.models.elmo.character_cnn._WORDS", words_at_once)
    torch.manual_seed(0)
    cnn = CharacterCnn(SETTINGS.model_copy(update={"activation": activation}))
    for convolution in cnn.convolutions:
        torch.nn.init.normal_(convolution.weight, std=0.5)
    rows = rows_of("cat", "a", "cat", "hippopotam", "집", "a")
    weights = torch.randn(len(rows), 5)
    vectors = cnn(rows)
    (vectors * weights).sum().backward()
    ours = [parameter.grad for parameter in cnn.parameters()]
    cnn.zero_grad()
    expected = torch.stack([slow(cnn, row, activation) for row in rows])
    torch.testing.assert_close(vectors, expected)
    (expected * weights).sum().backward()
    theirs = [parameter.grad for parameter in cnn.parameters()]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)  # float32 sums in another order


def test_in_bf16_vectors_and_gradients_are_nearly_those_of_float32() -> None:
    torch.manual_seed(0)
    cnn = CharacterCnn(SETTINGS)
    rows = rows_of("cat", "a", "hippopotam", "집")
    weights = torch.randn(len(rows), 5)
    results = []
    for bf16 in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            vectors = cnn(rows)
        (vectors * weights).sum().backward()
        results.append([vectors.float().detach(), *(parameter.grad for parameter in cnn.parameters())])
        cnn.zero_grad()
    for expected, ours in zip(*results, strict=True):
        assert ours.dtype == torch.float32
        assert 0 < (ours - expected).norm() <= 0.03 * expected.norm()


def test_a_word_has_the_same_vector_whatever_stands_beside_it() -> None:
    torch.manual_seed(1)
    cnn = CharacterCnn(SETTINGS)
    alone = cnn(rows_of("cat"))
    for beside in ("a", "hippopotam", "cats"):
        torch.testing.assert_close(cnn(rows_of(beside, "cat"))[1:], alone)


def test_no_words_have_no_vectors() -> None:
    cnn = CharacterCnn(SETTINGS)
    vectors = cnn(torch.zeros(0, 12, dtype=torch.int64))
    assert vectors.shape == (0, 5)
    vectors.sum().backward()
    assert not cnn.embedding.grad.any()
