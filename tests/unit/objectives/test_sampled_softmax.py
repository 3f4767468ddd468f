"""Sampled softmax against its formulas: who is drawn how often, and what the loss comes to."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from unmask.models.elmo.settings import ElmoSettings
from unmask.models.elmo.word_softmax import WordSoftmax
from unmask.objectives import sampled_softmax
from unmask.objectives.sampled_softmax import draw_candidates, log_expected_counts, summed_sampled_loss

SIZE = 30


def probability(rank: int) -> float:
    return math.log((rank + 2) / (rank + 1)) / math.log(SIZE + 1)


def test_probabilities_are_log_uniform() -> None:
    assert sum(map(probability, range(SIZE))) == pytest.approx(1)
    firsts = np.array([draw_candidates(number, 1, SIZE)[0][0] for number in range(6_000)])
    expected = np.array([probability(rank) for rank in range(SIZE)]) * len(firsts)
    statistic = float(((np.bincount(firsts, minlength=SIZE) - expected) ** 2 / expected).sum())
    assert statistic < 58.3  # chi-square, 29 degrees of freedom: exceeded once in a thousand times


def test_candidates_are_distinct_and_keyed() -> None:
    words, num_draws = draw_candidates(7, 12, SIZE)
    assert len(set(words.tolist())) == 12
    assert num_draws >= 12
    again, _ = draw_candidates(7, 12, SIZE)
    assert words.tolist() == again.tolist()
    other, _ = draw_candidates(8, 12, SIZE)
    assert words.tolist() != other.tolist()
    fewer, _ = draw_candidates(7, 5, SIZE)
    assert fewer.tolist() == words[:5].tolist()
    assert sorted(draw_candidates(9, SIZE - 1, SIZE)[0].tolist()) != list(range(SIZE))


def test_words_are_drawn_as_often_as_they_are_expected() -> None:
    """Given the number of draws, as TensorFlow takes it: its sampler's expectation is this approximation too."""
    times, expected = np.zeros(SIZE), np.zeros(SIZE)
    for number in range(2000):
        words, num_draws = draw_candidates(number, 6, SIZE)
        times[words] += 1
        expected += np.exp(log_expected_counts(torch.arange(SIZE), num_draws, SIZE).numpy())
    assert times.sum() == 2000 * 6
    assert abs(times - expected).max() < 0.1 * 2000  # it is biased: the last word drawn is always a new one


def slow_loss(softmax: WordSoftmax, hidden: Tensor, labels: list[int], candidates: list[int], num_draws: int) -> Tensor:
    """Row by row, word by word."""
    total = torch.zeros(())
    for row, label in zip(hidden, labels, strict=True):
        logits = []
        for word in [label, *(word for word in candidates if word != label)]:
            expected = 1 - (1 - probability(word)) ** num_draws
            logits.append(softmax.weight[word] @ row + softmax.bias[word] - math.log(expected))
        total = total - torch.log_softmax(torch.stack(logits), 0)[0]
    return total


@pytest.mark.parametrize("rows_at_once", [3, 512])
def test_loss_and_gradients_are_those_of_the_formulas(monkeypatch: pytest.MonkeyPatch, rows_at_once: int) -> None:
    monkeypatch.setattr(sampled_softmax, "_ROWS", rows_at_once)
    torch.manual_seed(0)
    softmax = WordSoftmax(ElmoSettings(vocab_size=SIZE, projection_size=4))
    torch.nn.init.normal_(softmax.bias)
    hidden = torch.randn(10, 4, requires_grad=True)
    candidates, num_draws = draw_candidates(3, 8, SIZE)
    labels = [int(candidates[0]), 5, int(candidates[3]), 29, 0, 0, 7, int(candidates[7]), 12, 1]
    loss = summed_sampled_loss(softmax, hidden, torch.tensor(labels), torch.from_numpy(candidates), num_draws)
    parameters = (hidden, softmax.weight, softmax.bias)
    ours = torch.autograd.grad(loss, parameters)
    expected = slow_loss(softmax, hidden, labels, candidates.tolist(), num_draws)
    theirs = torch.autograd.grad(expected, parameters)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(ours, theirs)
