"""Targets that are runs of words: against slow references written from the papers' words, and by distribution."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare

from support.masks import (
    CLS,
    CONTINUATION,
    MASK,
    SEP,
    SIGNIFICANCE,
    SIZE,
    SPECIAL,
    TABLE_8,
    draw_rows,
    new_masked_lm,
    words_of,
)
from unmask.batch import IGNORE_INDEX, Batch, pack
from unmask.chance import Stream, uniform
from unmask.errors import SettingsError
from unmask.objectives.masked_lm import MaskedLM
from unmask.objectives.masks.span_masking import choose_annotated, choose_spans, find_spans, span_lengths
from unmask.objectives.settings import MaskedLMSettings
from unmask.tokenization.vocabulary import Vocabulary

CONTINUES = torch.from_numpy(CONTINUATION)

GEOMETRIC = [0.2 * 0.8 ** (length - 1) / (1 - 0.8**10) for length in range(1, 11)]
"""Geometric(.2), cut off at 10 and renormalised (SpanBERT, section 3.1)."""


def with_specials(batch: Batch, annotation: Sequence[int] | None = None) -> Batch:
    batch = batch.with_columns(special_tokens_mask=torch.isin(batch.input_ids, torch.tensor(SPECIAL)))
    return batch if annotation is None else batch.with_columns(entity=torch.tensor(annotation))


def drawn(key: int, position: int, stream: int) -> float:
    return float(uniform(torch.tensor([key]), torch.tensor([position]), stream))


def number_of_targets(row: Sequence[int], target_prob: float) -> int:
    return min(max(1, int(len(row) * target_prob + 0.5)), sum(token not in SPECIAL for token in row))


def length_of(chance: float, prob: float, most: int) -> int:
    """The first length whose share, added to those before, is over the draw."""
    shares = [prob * (1 - prob) ** (length - 1) for length in range(1, most + 1)]
    added = 0.0
    for length, share in enumerate(shares, start=1):
        added += share / sum(shares)
        if chance < added:
            return length
    return most


def spans_slowly(row: Sequence[int], key: int, target_prob: float, prob: float, most: int) -> set[int]:
    """Words in random order; at each a span begins, of so many words or up to the next special token."""
    words = words_of(row)
    starts = sorted((word for word in words if word), key=lambda word: drawn(key, word[0], Stream.CHOICE))
    budget, targets = number_of_targets(row, target_prob), set[int]()
    for start in starts:
        length = length_of(drawn(key, start[0], Stream.LENGTH), prob, most)
        place = words.index(start)
        for word in words[place : place + length]:
            if not word:
                break
            for piece in word:
                if len(targets) < budget:
                    targets.add(piece)
    return targets


def annotated_slowly(row: Sequence[int], annotation: Sequence[int], key: int, target_prob: float) -> set[int]:
    """At each draw an annotation or a word; annotations and words each in a random order of their own."""
    numbers = [0 if token in SPECIAL else number for token, number in zip(row, annotation, strict=True)]
    runs: list[list[int]] = []
    for place, number in enumerate(numbers):
        if number and place and numbers[place - 1] == number:
            runs[-1].append(place)
        elif number:
            runs.append([place])
    entities = iter(sorted(runs, key=lambda run: drawn(key, run[0], Stream.ANNOTATION)))
    words = iter(sorted(filter(None, words_of(row)), key=lambda word: drawn(key, word[0], Stream.CHOICE)))
    budget, targets, number = number_of_targets(row, target_prob), set[int](), 0
    left = len(runs)
    while len(targets) < budget:
        is_entity = left > 0 and drawn(key, number, Stream.KIND) < 0.5
        left -= is_entity
        for piece in next(entities) if is_entity else next(words):
            if len(targets) < budget:
                targets.add(piece)
        number += 1
    return targets


def targets_by_row(batch: Batch, chosen: torch.Tensor) -> Iterator[tuple[list[int], int, set[int]]]:
    assert batch.keys is not None
    rows, keys, flags = batch.input_ids.split(batch.lengths), batch.keys.tolist(), chosen.split(batch.lengths)
    for row, key, its_flags in zip(rows, keys, flags, strict=True):
        yield row.tolist(), key, set(its_flags.nonzero().squeeze(1).tolist())


LENGTHS = st.lists(st.integers(5, 40), min_size=1, max_size=5)
PROBS = st.sampled_from([0.05, 0.15, 0.4, 1.0])


@given(LENGTHS, PROBS, st.sampled_from([0.2, 0.5]), st.sampled_from([1, 3, 10, 60]), st.integers(0, 1000))
def test_spans_are_those_of_a_slow_reference(
    lengths: list[int], target_prob: float, prob: float, most: int, seed: int
) -> None:
    batch = with_specials(pack(draw_rows(lengths, seed), keys=list(range(seed, seed + len(lengths)))))
    chosen = choose_spans(batch, target_prob, CONTINUES, prob, most)
    for row, key, targets in targets_by_row(batch, chosen):
        assert targets == spans_slowly(row, key, target_prob, prob, most)
        assert len(targets) == number_of_targets(row, target_prob)


@example([40, 40], 0.65, 1.0, 1, 0)  # every word is an annotation: many draws are of what is a target already
@given(LENGTHS, PROBS, st.sampled_from([0.0, 0.2, 1.0]), st.sampled_from([1, 4]), st.integers(0, 1000))
def test_annotated_targets_are_those_of_a_slow_reference(
    lengths: list[int], target_prob: float, share: float, longest: int, seed: int
) -> None:
    chance = random.Random(seed)
    annotation: list[int] = []
    while len(annotation) < sum(lengths):  # some reach over a special token or from one sequence into the next
        annotation += [len(annotation) + 1 if chance.random() < share else 0] * chance.randint(1, longest)
    rows, keys = draw_rows(lengths, seed), list(range(seed, seed + len(lengths)))
    batch = with_specials(pack(rows, keys=keys), annotation[: sum(lengths)])
    chosen = choose_annotated(batch, target_prob, CONTINUES, batch.columns["entity"])
    parts = iter(batch.columns["entity"].split(batch.lengths))
    for row, key, targets in targets_by_row(batch, chosen):
        assert targets == annotated_slowly(row, next(parts).tolist(), key, target_prob)
        assert len(targets) == number_of_targets(row, target_prob)


# Lengths.


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
    draws = uniform(torch.arange(number), torch.zeros(number, dtype=torch.int64), Stream.LENGTH)
    return torch.bincount(span_lengths(draws, 0.2, 10), minlength=11)[1:].tolist()


def test_lengths_have_the_truncated_geometric_distribution() -> None:
    found = observed_lengths()
    assert chisquare(found, [share * sum(found) for share in GEOMETRIC]).pvalue > SIGNIFICANCE
    assert sum(share * length for length, share in enumerate(GEOMETRIC, 1)) == pytest.approx(3.80, abs=0.005)
    mean = sum(count * length for length, count in enumerate(found, 1)) / sum(found)
    assert mean == pytest.approx(3.80, abs=0.054)  # four standard errors: 4 x 2.7 / sqrt(40,000)


def test_clipping_instead_of_renormalising_would_be_found() -> None:
    found = observed_lengths()
    clipped = [0.2 * 0.8 ** (length - 1) for length in range(1, 10)] + [0.8**9]
    assert chisquare(found, [share * sum(found) for share in clipped]).pvalue < SIGNIFICANCE


def runs_of(places: Sequence[int]) -> list[int]:
    """The lengths of the runs of neighbours among ascending places."""
    lengths: list[int] = []
    for place, before in zip(places, [-2, *places], strict=False):
        if place == before + 1:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def simulate_runs(budget: int, num_words: int, number: int, shares: Sequence[float], seed: int = 0) -> Counter[int]:
    """SpanBERT's drawing with numpy's generator, for words of one piece: the lengths of merged spans."""
    chance = np.random.default_rng(seed)
    found: Counter[int] = Counter()
    for _ in range(number):
        targets: set[int] = set()
        while len(targets) < budget:
            length, start = 1 + chance.choice(len(shares), p=shares), int(chance.integers(num_words))
            for place in range(start, min(start + length, num_words)):
                if len(targets) < budget:
                    targets.add(place)
        found.update(runs_of(sorted(targets)))
    return found


def compare_runs(shares: Sequence[float]) -> float:
    """How likely as different runs as ours and simulated ones are, if they came from one distribution."""
    num_words, number = 127, 2500  # as a sequence of 128 tokens, whose 15 % are 19
    rows = [[CLS, *[10] * num_words]] * number
    batch = with_specials(pack(rows, keys=list(range(number))))
    chosen = choose_spans(batch, 0.15, CONTINUES, 0.2, 10).view(number, -1)
    ours = Counter(length for row in chosen for length in runs_of(row.nonzero().squeeze(1).tolist()))
    theirs = simulate_runs(19, num_words, number, shares)
    table = [[counts[length] for length in range(1, 11)] for counts in (ours, theirs)]
    return float(chi2_contingency(table).pvalue)


def test_merged_spans_are_as_long_as_those_of_a_simulation_with_another_generator() -> None:
    assert compare_runs(GEOMETRIC) > SIGNIFICANCE


def test_spans_of_another_distribution_would_be_found() -> None:
    assert compare_runs([0.1] * 10) < SIGNIFICANCE


def test_every_word_is_as_likely_a_start() -> None:
    """Of spans of one word, one a sequence."""
    rows = [[CLS, 10, 80, 11, 12, 80, 81, 13, 14, SEP]] * 6000
    batch = with_specials(pack(rows, keys=list(range(6000))))
    chosen = choose_spans(batch, 0.1, CONTINUES, 0.2, 1).view(6000, -1)
    assert chosen.sum(1).eq(1).all()
    starts = chosen.sum(0)[[1, 3, 4, 7, 8]]
    assert int(starts.sum()) == 6000  # the budget of one token cuts every word after its first piece
    assert chisquare(starts.numpy()).pvalue > SIGNIFICANCE


# What a span keeps to.


def test_words_are_whole_but_for_the_one_that_ends_the_budget() -> None:
    batch = with_specials(pack(draw_rows([64] * 300, seed=5), keys=list(range(300))))
    chosen = choose_spans(batch, 0.15, CONTINUES, 0.2, 10)
    cuts = []
    for row, _, targets in targets_by_row(batch, chosen):
        parts = [len(targets.intersection(word)) for word in words_of(row)]
        cut = [part for part, word in zip(parts, words_of(row), strict=True) if 0 < part < len(word)]
        assert len(cut) <= 1
        cuts.append(len(cut))
    assert 0 < sum(cuts) < 300


def test_no_span_reaches_over_a_special_token_or_a_sequence() -> None:
    rows = [[CLS, 10, SEP, 11, 12, SEP], [13, 14, 15, 16]] * 300  # the second kind without special tokens
    batch = with_specials(pack(rows, keys=list(range(600))))
    chosen = choose_spans(batch, 0.5, CONTINUES, 0.01, 10)
    parts = [with_specials(pack([row], keys=[key])) for key, row in enumerate(rows)]
    alone = [choose_spans(part, 0.5, CONTINUES, 0.01, 10) for part in parts]
    assert torch.equal(chosen, torch.cat(alone))
    for row, _, targets in targets_by_row(batch, chosen):
        assert len(targets) == (3 if row[0] == CLS else 2)


def test_a_document_shorter_than_a_span_is_one_span() -> None:
    batch = with_specials(pack([[CLS, 10, 11, SEP], [CLS, SEP]], keys=[1, 2]))
    prepared = new_masked_lm(masking="span", target_prob=1, span_boundary=True).prepare(batch)
    assert prepared.columns["target_positions"].tolist() == [1, 2]
    assert len(prepared.columns["boundary_targets"]) == 0


@given(LENGTHS, st.floats(0, 1), st.integers(0, 1000))
def test_spans_are_those_found_by_merging_intervals(lengths: list[int], share: float, seed: int) -> None:
    """The plain way: an interval a target, merged while the next begins right after the end of the last."""
    chance = random.Random(seed)
    flags = [chance.random() < share for _ in range(sum(lengths))]
    batch = pack([[1] * length for length in lengths])
    merged: list[list[int]] = []
    begins = set(batch.bounds.tolist())
    for place in (place for place, flag in enumerate(flags) if flag):
        if merged and merged[-1][1] + 1 == place and place not in begins:
            merged[-1][1] = place
        else:
            merged.append([place, place])
    first, last = find_spans(batch, torch.tensor(flags))
    assert [list(span) for span in zip(first.tolist(), last.tolist(), strict=True)] == merged


# Table 8 of BERT by spans.


def fates_of_spans(mask_prob: float, random_prob: float) -> list[int]:
    """How many spans became `[MASK]`, random entries, or stayed. Fails where the tokens of one differ in fate."""
    ordinary = [token for token in range(len(SPECIAL), SIZE) if not CONTINUATION[token]]
    rows = [[CLS, *random.Random(key).choices(ordinary, k=126), SEP] for key in range(600)]
    batch = with_specials(pack(rows, keys=list(range(600))))
    prepared = new_masked_lm(masking="span", mask_token_prob=mask_prob, random_token_prob=random_prob).prepare(batch)
    first, last = find_spans(batch, prepared.columns["labels"] != IGNORE_INDEX)
    counts = [0, 0, 0]
    for start, end in zip(first.tolist(), last.tolist(), strict=True):
        if end - start < 2:  # so long that no random span repeats its text: one in 10^6 does
            continue
        before, after = batch.input_ids[start : end + 1], prepared.input_ids[start : end + 1]
        is_mask = after == MASK
        assert is_mask.all() or not is_mask.any()
        counts[0 if is_mask.all() else 2 if torch.equal(before, after) else 1] += 1
    return counts


@pytest.mark.parametrize(("mask_prob", "random_prob"), TABLE_8)
def test_spans_share_one_fate_in_the_shares_that_are_set(mask_prob: float, random_prob: float) -> None:
    found = fates_of_spans(mask_prob, random_prob)
    shares = [mask_prob, random_prob, 1 - mask_prob - random_prob]
    possible = [place for place, share in enumerate(shares) if share > 1e-12]
    assert sum(found[place] for place in possible) == sum(found)
    if len(possible) > 1:
        expected = np.array([shares[place] for place in possible]) / sum(shares[place] for place in possible)
        assert chisquare([found[place] for place in possible], expected * sum(found)).pvalue > SIGNIFICANCE


@pytest.mark.parametrize("masking", ["entity", "noun_phrase"])
def test_the_tokens_of_an_annotated_span_share_one_fate(masking: str) -> None:
    ordinary = [token for token in range(len(SPECIAL), SIZE) if not CONTINUATION[token]]
    rows = [[CLS, *random.Random(key).choices(ordinary, k=126), SEP] for key in range(60)]
    batch = with_specials(pack(rows, keys=list(range(60))))
    annotated = (batch.position_ids % 8 < 4) & (batch.position_ids > 7) & (batch.position_ids < 120)
    numbers = torch.where(annotated, batch.sequence_of_token() * 20 + batch.position_ids // 8 + 1, 0)
    batch = batch.with_columns(**{masking: numbers})
    prepared = new_masked_lm(masking=masking, mask_token_prob=0.5, random_token_prob=0).prepare(batch)
    first, last = find_spans(batch, prepared.columns["labels"] != IGNORE_INDEX)
    masked = prepared.input_ids == MASK
    whole = [masked[start : end + 1] for start, end in zip(first.tolist(), last.tolist(), strict=True) if end > start]
    assert all(span.all() or not span.any() for span in whole)
    assert {bool(span.all()) for span in whole} == {True, False}


def test_tokens_of_random_spans_are_drawn_one_by_one() -> None:
    rows = [[CLS, *[10] * 30, SEP]] * 1500
    batch = with_specials(pack(rows, keys=list(range(1500))))
    prepared = new_masked_lm(masking="span", mask_token_prob=0, random_token_prob=1).prepare(batch)
    entries = torch.bincount(prepared.input_ids[prepared.columns["target_positions"]], minlength=SIZE)
    assert not entries[: len(SPECIAL)].any()
    assert chisquare(entries[len(SPECIAL) :].numpy()).pvalue > SIGNIFICANCE


# Entities and noun phrases.


def test_half_of_the_draws_are_annotations() -> None:
    """One draw a sequence: the budget is one token, which cuts what is drawn."""
    row, annotation = [CLS, 10, 11, 12, 13, 14, 15, 16, SEP], [0, 0, 0, 1, 1, 0, 0, 0, 0]
    batch = with_specials(pack([row] * 4000, keys=list(range(4000))), annotation * 4000)
    places = choose_annotated(batch, 0.1, CONTINUES, batch.columns["entity"]).view(4000, -1).sum(0)
    words = 0.5 / 7
    expected = [0, words, words, 0.5 + words, words, words, words, words, 0]
    assert chisquare(places[1:8].numpy(), np.array(expected[1:8]) * 4000).pvalue > SIGNIFICANCE
    assert places[[0, 8]].tolist() == [0, 0]


def test_without_annotations_words_are_drawn_the_last_one_cut() -> None:
    batch = with_specials(pack([[CLS, 10, 80, 81, SEP]] * 50, keys=list(range(50))), [0] * 250)
    chosen = choose_annotated(batch, 0.4, CONTINUES, batch.columns["entity"]).view(50, -1)
    assert chosen.int().tolist() == [[0, 1, 1, 0, 0]] * 50


def test_two_annotations_that_touch_are_drawn_apart_and_the_numbers_mean_nothing() -> None:
    row, annotation = [CLS, 10, 11, 12, 13, SEP], [0, 3, 3, 9, 9, 0]
    batch = with_specials(pack([row] * 400, keys=list(range(400))), annotation * 400)
    chosen = choose_annotated(batch, 0.34, CONTINUES, batch.columns["entity"])
    renumbered = batch.columns["entity"] + torch.arange(2400) // 6 * 20 * (batch.columns["entity"] > 0)
    assert torch.equal(chosen, choose_annotated(batch, 0.34, CONTINUES, renumbered))
    kinds = Counter(tuple(row.nonzero().squeeze(1).tolist()) for row in chosen.view(400, -1))
    assert min(kinds[1, 2], kinds[3, 4]) > 40


@pytest.mark.parametrize("kind", ["whole_word", "span", "entity", "noun_phrase"])
def test_a_vocabulary_that_does_not_mark_words_is_refused(kind: str) -> None:
    vocabulary = Vocabulary(SIZE, MASK, SPECIAL, np.zeros(SIZE, dtype=np.bool_), marks_words=False)
    with pytest.raises(SettingsError, match=f"objective.masking={kind} .*masking=token"):
        MaskedLM(MaskedLMSettings.model_validate({"masking": kind}), vocabulary)


def test_the_first_word_of_a_byte_level_sequence_is_a_word_too() -> None:
    """`<s>hello Ġworld`: the first entry has no mark of a space, like one that continues a word."""
    batch = with_specials(pack([[CLS, 80, 81, 10, 82, SEP]] * 300, keys=list(range(300))))
    chosen = choose_spans(batch, 0.34, CONTINUES, 0.5, 1).view(300, -1)
    assert {tuple(row.nonzero().squeeze(1).tolist()) for row in chosen} == {(1, 2), (3, 4)}
