"""Lengths of masked spans, by hand and by distribution."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare

from unmask.batch import pack
from unmask.chance import uniform
from unmask.objectives import span_masking
from unmask.objectives.span_masking import choose_spans, span_lengths

SIGNIFICANCE = 1e-3
"""Keys are fixed, so a test that passes goes on passing; that each can fail is tested too."""

GEOMETRIC = [0.2 * 0.8 ** (length - 1) / (1 - 0.8**10) for length in range(1, 11)]
"""Geometric(.2), cut off at 10 and renormalised (SpanBERT, section 3.1)."""


def test_lengths_by_hand() -> None:
    """P(1) = .2 / .8926 = .2241, P(1 or 2) = .36 / .8926 = .4033; the last length ends at 1."""
    draws = torch.tensor([0.0, 0.2240, 0.2242, 0.4032, 0.4034, 1 - 2**-53], dtype=torch.float64)
    assert span_lengths(draws, 0.2, 10).tolist() == [1, 1, 2, 2, 3, 10]
    assert span_lengths(draws, 0.2, 1).tolist() == [1] * 6


def test_lengths_of_the_smallest_chances_to_end_are_even() -> None:
    """As p goes to 0 the truncated distribution goes to the even one."""
    draws = torch.tensor([0.05, 0.25, 0.55, 0.95], dtype=torch.float64)
    for prob in (1e-9, 1e-17, 1e-300):
        assert span_lengths(draws, prob, 10).tolist() == [1, 3, 6, 10]
    assert span_lengths(draws, 1 - 2**-53, 10).tolist() == [1] * 4


def test_spans_longer_than_any_text_end_with_it() -> None:
    batch = pack([[9] * 40] * 3, keys=[0, 1, 2])
    batch = batch.with_columns(special_tokens_mask=torch.zeros(120, dtype=torch.bool))
    chosen = choose_spans(batch, 0.15, torch.zeros(10, dtype=torch.bool), 1e-17, 1_000_000)
    assert chosen.view(3, 40).sum(1).tolist() == [6, 6, 6]


def observed_lengths(number: int = 40_000) -> list[int]:
    draws = uniform(torch.arange(number), torch.zeros(number, dtype=torch.int64), span_masking._LENGTH)
    return torch.bincount(span_lengths(draws, 0.2, 10), minlength=11)[1:].tolist()


def test_lengths_have_the_truncated_geometric_distribution() -> None:
    found = observed_lengths()
    expected = [share * sum(found) for share in GEOMETRIC]
    assert chisquare(found, expected).pvalue > SIGNIFICANCE
    assert sum(share * length for length, share in enumerate(GEOMETRIC, 1)) == pytest.approx(3.80, abs=0.005)
    mean = sum(count * length for length, count in enumerate(found, 1)) / sum(found)
    assert mean == pytest.approx(3.80, abs=0.054)  # four standard errors: 4 x 2.7 / sqrt(40,000)


def test_clipping_instead_of_renormalising_would_be_found() -> None:
    found = observed_lengths()
    clipped = [0.2 * 0.8 ** (length - 1) for length in range(1, 10)] + [0.8**9]
    assert chisquare(found, [share * sum(found) for share in clipped]).pvalue < SIGNIFICANCE
