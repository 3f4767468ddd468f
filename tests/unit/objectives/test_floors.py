"""The floors of who uses no context: against every outcome of a small vocabulary counted out, and on real masks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unmask.batch import pack
from unmask.objectives.floors import NoContext, at_least_once, by_figure, unigram_entropy, vocabulary_floors
from unmask.objectives.masked_lm import MaskedLM
from unmask.objectives.settings import MaskedLMSettings
from unmask.tokenization.vocabulary import Vocabulary

MASK = 0
SPECIAL = (0, 1)
COUNTS = st.lists(st.integers(0, 50), min_size=2, max_size=6).filter(any).map(lambda counts: [0, 3, *counts])
"""Of `[MASK]`, of `[UNK]`, which stands in texts but is never drawn, and of some entries."""
SHARES = [(0.8, 0.1), (0.8, 0.2), (0.8, 0.0), (0.0, 0.8), (0.0, 0.0), (0.0, 1.0), (0.85, 0.0), (1.0, 0.0)]


def counted_out(counts: Sequence[int], masked: float, random: float) -> tuple[float, float]:
    """The loss and the accuracy of Bayes' rule, from the probability of every target with everything shown for it."""
    frequencies = np.array(counts) / sum(counts)
    drawn = [entry for entry in range(len(counts)) if entry not in SPECIAL]
    joint: dict[tuple[int, int], float] = defaultdict(float)
    for target, frequency in enumerate(frequencies):
        joint[target, MASK] += frequency * masked
        joint[target, target] += frequency * (1 - masked - random)
        for entry in drawn:
            joint[target, entry] += frequency * random / len(drawn)
    loss = accuracy = 0.0
    for shown in range(len(counts)):
        together = np.array([joint[target, shown] for target in range(len(counts))])
        if together.sum() > 0:
            likely = together[together > 1e-15]  # 1 - .8 - .2 is -6e-17
            loss -= float((likely * np.log(likely / together.sum())).sum())
            accuracy += float(together.max())
    return loss, accuracy


@pytest.mark.parametrize(("masked", "random"), SHARES)
@given(counts=COUNTS)
def test_the_best_predictor_that_sees_the_shown_token_alone(counts: list[int], masked: float, random: float) -> None:
    best = NoContext.of(np.array(counts), masked, random, MASK, SPECIAL)
    loss, accuracy = counted_out(counts, masked, random)
    assert best.loss() == pytest.approx(loss, abs=1e-9)
    assert best.accuracy() == pytest.approx(accuracy, abs=1e-9)
    assert best.loss() <= unigram_entropy(np.array(counts)) + 1e-12


def test_a_floor_by_hand() -> None:
    """Two entries alike, half of the targets kept and half random: what is shown is the target three times of four."""
    best = NoContext.of(np.array([0, 0, 5, 5]), 0.0, 0.5, MASK, SPECIAL)
    assert best.loss() == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.25))
    assert best.accuracy() == pytest.approx(0.75)
    labels, shown = np.array([2, 2, 3]), np.array([2, 3, 3])
    assert best.losses(labels, shown) == pytest.approx(-np.log([0.75, 0.25, 0.75]))
    assert best.guesses(shown).tolist() == [2, 3, 3]


def test_the_commonest_entry_is_guessed_for_what_is_likelier_drawn() -> None:
    """Of .8, .15 and .05, kept with .75 and each drawn with .25 / 3: shown as the target (.75 + .25 / 3) p, for the
    commonest entry .25 / 3 x .8 = .067. That is .125 for the second entry, .042 for the third."""
    best = NoContext.of(np.array([0, 0, 80, 15, 5]), 0.0, 0.25, MASK, SPECIAL)
    assert best.guesses(np.array([MASK, 2, 3, 4])).tolist() == [2, 2, 3, 2]


def test_where_only_masks_are_shown_the_floor_is_the_unigram_entropy() -> None:
    best = NoContext.of(np.array([0, 0, 4, 2, 1, 1]), 1.0, 0.0, MASK, SPECIAL)
    expected = pytest.approx(1.75 * np.log(2))
    assert by_figure(vocabulary_floors("a", best)) == {
        "loss/a": {"unigram entropy": expected},
        "eval/a_accuracy": {"no context": 0.5},
    }
    assert best.loss() == expected
    # Kept or masked: what is shown is the target, or nothing is known.
    best = NoContext.of(np.array([0, 0, 4, 2, 1, 1]), 0.85, 0.0, MASK, SPECIAL)
    kept = by_figure(vocabulary_floors("generator", best))
    assert kept["loss/generator"]["no context"] == pytest.approx(0.85 * 1.75 * np.log(2))
    assert list(kept["loss/generator"]) == ["no context", "unigram entropy"]  # the one to be passed is the first
    assert kept["eval/generator_accuracy"]["no context"] == pytest.approx(0.85 * 0.5 + 0.15)


@pytest.mark.parametrize("masking", ["token", "span"])
def test_real_masks_cost_what_the_floor_says(masking: Literal["token", "span"]) -> None:
    """Words drawn one by one, so that there is no context: whether targets have each a fate or share their span's."""
    size, num_sequences, length = 40, 1500, 100
    generator = np.random.default_rng(0)
    frequencies = 1 / np.arange(1, size - 1)
    ids = 2 + generator.choice(size - 2, size=(num_sequences, length), p=frequencies / frequencies.sum())
    batch = pack(ids.tolist(), keys=list(range(num_sequences)))
    batch = batch.with_columns(special_tokens_mask=torch.zeros(ids.size, dtype=torch.bool))
    settings = MaskedLMSettings(sentence_objective="none", masking=masking, target_prob=0.4, mask_token_prob=0.5)
    objective = MaskedLM(settings, Vocabulary(size, MASK, SPECIAL, np.zeros(size, dtype=np.bool_)))
    counts = np.bincount(ids.ravel(), minlength=size)
    prepared = objective.prepare(batch)
    targets = prepared.columns["target_positions"]
    labels, shown = prepared.columns["labels"][targets].numpy(), prepared.input_ids[targets].numpy()
    assert len(labels) == num_sequences * length * 0.4

    floors = by_figure(objective.floors(counts))
    best = NoContext.of(counts, 0.5, 0.1, MASK, SPECIAL)
    measured = {
        "loss/mlm": best.losses(labels, shown),
        "eval/mlm_accuracy": (best.guesses(shown) == labels).astype(np.float64),
    }
    for name, figures in measured.items():
        of_sequences = figures.reshape(num_sequences, -1).mean(1)
        error = of_sequences.std() / np.sqrt(num_sequences)
        assert error < 0.02
        assert of_sequences.mean() == pytest.approx(floors[name]["no context"], abs=4 * error), name
    assert floors["loss/mlm"]["unigram entropy"] > floors["loss/mlm"]["no context"] + 0.5


def test_entries_that_the_text_does_not_have_cost_nothing() -> None:
    """A small store under a large vocabulary: only a target that the store does not have, a special token that packing
    adds, is counted once."""
    targets = np.array([2, 3, 1]), np.array([MASK, MASK, MASK])
    few, many = (np.array([0, 0, 6, 3] + [0] * more) for more in (0, 10_000))
    assert at_least_once(many, targets)[:4].tolist() == [0, 1, 6, 3]
    floors = [vocabulary_floors("mlm", NoContext.of(at_least_once(each, targets)), targets) for each in (few, many)]
    unigrams = [by_figure(each)["loss/mlm"]["unigram entropy"] for each in floors]
    assert unigrams == pytest.approx([np.log([10 / 6, 10 / 3, 10]).mean()] * 2)
