"""Pairs for sentence order and single sentences, by what the papers say of them; BERT's own plan: `test_planning`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from support.stores import IMPROBABLE, numbered_store
from unmask.chance import Draws
from unmask.packing import pair_formats
from unmask.packing.pair_formats import IN_ORDER, IS_NEXT, NOT_NEXT, SWAPPED, SegmentPairs, SentencePairs
from unmask.packing.planning import SequenceFormat, Span
from unmask.packing.split import Split
from unmask.store.store import TokenStore

Lengths = list[list[int]]
LENGTHS = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=7), min_size=2, max_size=7)


class Pair(NamedTuple):
    a: Span
    b: Span
    label: int | None


def plan(store: TokenStore, pair_format: SequenceFormat, seed: int = 0) -> list[Pair]:
    """The pairs of all documents, in the order of the store."""
    sequences = pair_format.plan(Split(store, 0, False), range(store.num_documents), Draws(seed))
    return [Pair(a, b, sequence.label) for sequence in sequences for (a,), (b,) in [sequence.segments]]


def shown(spans: Sequence[Span]) -> Counter[tuple[int, int]]:
    """How often each token is in spans."""
    return Counter((span.document, token) for span in spans for token in range(span.start, span.end))


def ends_of(lengths: list[int]) -> list[int]:
    """Where sentences end, 0 included."""
    return [sum(lengths[:number]) for number in range(len(lengths) + 1)]


# ------------------------------------------------------------------------------------------------- sentence order


@settings(max_examples=20)  # each writes a store
@given(lengths=LENGTHS, longest=st.sampled_from([12, 30]), short=st.sampled_from([0.0, 0.5]), seed=st.integers(0, 99))
def test_both_segments_are_consecutive_runs_of_sentences_of_one_document(
    lengths: Lengths, longest: int, short: float, seed: int
) -> None:
    store = numbered_store(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_formats, "truncate_pair", lambda a, b, longest, draws: (a, b))
        pairs = plan(store, SegmentPairs(longest, "sop", short), seed)
    for pair in pairs:
        first, second = (pair.a, pair.b) if pair.label == IN_ORDER else (pair.b, pair.a)
        ends = ends_of(lengths[first.document])
        assert first.document == second.document
        assert len(first) > 0
        assert len(second) > 0
        assert first.end == second.start
        assert first.start in ends
        assert second.end in ends
        is_one_sentence = ends.index(second.end) - ends.index(first.start) == 1
        assert (first.end in ends) != is_one_sentence  # a lone sentence is cut in two, and nothing else is
    # All of the text is shown once, but for documents of a single token, which have no two segments.
    everything = [Span(n, 0, sum(document)) for n, document in enumerate(lengths) if document != [1]]
    assert shown([span for pair in pairs for span in (pair.a, pair.b)]) == shown(everything)


@settings(max_examples=20)  # each writes a store
@given(lengths=LENGTHS, longest=st.integers(2, 30), seed=st.integers(0, 99))
def test_ordered_pairs_fit(lengths: Lengths, longest: int, seed: int) -> None:
    store = numbered_store(lengths)
    for pair_format in (SegmentPairs(longest, "sop", 0.1), SentencePairs(longest, "sop")):
        for a, b, label in plan(store, pair_format, seed):
            assert 2 <= len(a) + len(b) <= longest
            assert min(len(a), len(b)) >= 1
            assert a.document == b.document
            assert label == (SWAPPED if b.start < a.start else IN_ORDER)


@pytest.mark.parametrize("pair_format", [SegmentPairs(40, "sop", 0.1), SentencePairs(40, "sop")], ids=str)
def test_half_of_the_pairs_are_swapped(pair_format: SequenceFormat) -> None:
    store = numbered_store([[9, 8, 7] * 40] * 30)
    labels = [pair.label for pair in plan(store, pair_format)]
    assert len(labels) > 500
    assert stats.binomtest(labels.count(SWAPPED), len(labels), 0.5).pvalue > IMPROBABLE


def test_the_share_of_short_ordered_pairs() -> None:
    """With sentences of one token each target is met exactly."""
    store = numbered_store([[1] * 30_000] * 2)
    sizes = [len(pair.a) + len(pair.b) for pair in plan(store, SegmentPairs(32, "sop", 0.2))]
    short = sum(size < 32 for size in sizes)
    assert stats.binomtest(short, len(sizes), 0.2 * 30 / 31).pvalue > IMPROBABLE


# -------------------------------------------------------------------------------------------------- next sentences


@pytest.mark.parametrize("short", [0.0, 1.0])
def test_a_sentence_that_fills_its_chunk_gets_the_one_after_it(short: float) -> None:
    store = numbered_store([[20] * 8] * 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_formats, "truncate_pair", lambda a, b, longest, draws: (a, b))
        pairs = [pair for pair in plan(store, SegmentPairs(20, "nsp", short)) if pair.label == IS_NEXT]
    pairs = [pair for pair in pairs if pair.a.start < 140]  # the last one of a document has none after it
    assert len(pairs) > 20
    for a, b, _ in pairs:
        assert a.start % 20 == 0
        assert (a.document, a.start + 20, a.end + 20) == (b.document, b.start, b.end)
        assert a.end == b.start


# ------------------------------------------------------------------------------------------------- single sentences


def is_half(a: Span, b: Span, ends: list[int]) -> bool:
    """Whether two spans are the halves of a document's only sentence."""
    return len(ends) == 2 and (a.start, a.end, b.end) == (0, b.start, ends[1])


@settings(max_examples=20)  # each writes a store
@given(lengths=LENGTHS, objective=st.sampled_from(["nsp", "sop"]), seed=st.integers(0, 99))
def test_a_and_b_are_natural_sentences(lengths: Lengths, objective: Literal["nsp", "sop"], seed: int) -> None:
    store = numbered_store(lengths)
    pairs = plan(store, SentencePairs(24, objective), seed)  # room for the two longest
    own: list[Span] = []
    for a, b, label in pairs:
        first, second = (b, a) if objective == "sop" and label == SWAPPED else (a, b)
        are_neighbours = objective == "sop" or label == IS_NEXT
        if are_neighbours:
            assert first.document == second.document
            assert first.end == second.start
        else:
            assert a.document != b.document
        if not (are_neighbours and is_half(first, second, ends_of(lengths[first.document]))):
            for span in (a, b):
                ends = ends_of(lengths[span.document])
                assert span.end == ends[ends.index(span.start) + 1], "one whole sentence"
        own += [a, b] if are_neighbours else [a]
    times = shown(own)
    for number, document in enumerate(lengths):
        if objective == "sop" and document == [1]:
            assert (number, 0) not in times
            continue
        # Each sentence is shown, once but for the last but one, which may be the last one's neighbour a second time.
        last_but_one = range(*ends_of(document)[-3:-1]) if len(document) > 1 else range(0)
        for token in range(sum(document)):
            assert times[number, token] in ((1, 2) if token in last_but_one else (1,))


@pytest.mark.parametrize("lengths", [[9] * 61, [9] * 60, [9, 9], [9]], ids=["odd", "even", "two", "one"])
def test_half_of_the_sentence_pairs_are_next(lengths: list[int]) -> None:
    store = numbered_store([lengths] * 300, shard_documents=300)
    labels = [pair.label for pair in plan(store, SentencePairs(48, "nsp"))]
    assert len(labels) >= 300
    assert stats.binomtest(labels.count(NOT_NEXT), len(labels), 0.5).pvalue > IMPROBABLE


def test_a_random_sentence_is_any_sentence_of_another_document() -> None:
    store = numbered_store([[5] * 4] * 500, shard_documents=500)
    random = [pair for pair in plan(store, SentencePairs(48, "nsp")) if pair.label == NOT_NEXT]
    assert all(pair.a.document != pair.b.document for pair in random)
    places = Counter(pair.b.start for pair in random)
    assert stats.chisquare([places[start] for start in (0, 5, 10, 15)]).pvalue > IMPROBABLE


def test_sentences_too_long_for_two_are_cut_as_segments_are() -> None:
    store = numbered_store([[30, 50, 4], [70]])
    pairs = plan(store, SentencePairs(20, "nsp"), seed=1)
    assert all(2 <= len(pair.a) + len(pair.b) <= 20 for pair in pairs)
    assert max(len(pair.a) + len(pair.b) for pair in pairs) == 20


# ----------------------------------------------------------------------------------------------- without an objective


@pytest.mark.parametrize("kind", ["segments", "sentences"])
def test_without_an_objective_the_pairs_are_those_of_next_sentence_prediction(kind: str) -> None:
    store = numbered_store([[3 + n % 5] * (1 + n % 9) for n in range(40)])
    with_nsp, without = (
        plan(store, SegmentPairs(24, objective, 0.1) if kind == "segments" else SentencePairs(24, objective))
        for objective in ("nsp", "none")
    )
    assert [pair[:2] for pair in without] == [pair[:2] for pair in with_nsp]
    assert {pair.label for pair in without} == {None}
    assert {pair.label for pair in with_nsp} == {IS_NEXT, NOT_NEXT}
