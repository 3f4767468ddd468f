"""Blocks and splits; segment pairs against a plain version with lists and Google's truncation loop."""

from __future__ import annotations

import hashlib
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from support.stores import IMPROBABLE, Documents, cut_long_sentences, make_store, number_tokens, numbered_store
from unmask.chance import Draws, Permutation, key, mix
from unmask.packing import pair_formats
from unmask.packing import planning as packing
from unmask.packing.pair_formats import IS_NEXT, NOT_NEXT, SegmentPairs, truncate_pair
from unmask.packing.planning import Planner, Span, fitting_ends
from unmask.packing.split import Split
from unmask.store.store import TokenStore


class Pair(NamedTuple):
    a: Span
    b: Span
    next_sentence_label: int


def planner(
    store: TokenStore,
    *,
    seed: int = 0,
    held_out: float = 0.0,
    held: bool = False,
    max_length: int = 128,
    short: float = 0.1,
) -> Planner:
    pairs = SegmentPairs(max_length - 3, "nsp", short)
    return Planner(Split(store, held_out, held), pairs, seed)


def plan_pairs(planned: Planner, copy: int = 0, block: int = 0) -> list[Pair]:
    pairs = []
    for sequence in planned.plan_block(copy, block):
        (a,), (b,) = sequence.segments
        assert sequence.label is not None
        pairs.append(Pair(a, b, sequence.label))
    return pairs


def odd_lengths(seed: int) -> list[list[int]]:
    """Forty documents of every odd kind: one token, one sentence, sentences longer than a sequence, many short ones."""
    dice = random.Random(seed)
    kinds: list[Callable[[], list[int]]] = [
        lambda: [1],
        lambda: [2],
        lambda: [dice.randint(3, 12)],
        lambda: [dice.randint(100, 300)],
        lambda: [1] * dice.randint(2, 40),
        lambda: [dice.randint(1, 9) for _ in range(dice.randint(2, 60))],
        lambda: [dice.choice([1, 2, 30, 90]) for _ in range(dice.randint(2, 20))],
    ]
    return [dice.choice(kinds)() for _ in range(40)]


def tokens_of(store: TokenStore, span: Span) -> list[int]:
    return store.tokens(span.document, span.start, span.end).tolist()


# ------------------------------------------------------------------------------------------------ a plain version


def truncate_plainly(a: list[int], b: list[int], longest: int, draws: Draws) -> tuple[list[int], list[int]]:
    """Which segment loses a token is Google's loop; how many of them from the front are bits drawn afterwards."""
    lost = google_loop(len(a), len(b), longest)
    cut = []
    for tokens, count in ((a, lost[0]), (b, lost[1])):
        bits = ""
        while len(bits) < count:
            bits += format(int(draws.uniform() * 2**53), "053b")[: count - len(bits)]
        front = bits.count("1")
        cut.append(tokens[front : len(tokens) - (count - front)])
    return cut[0], cut[1]


def google_loop(a: int, b: int, longest: int) -> tuple[int, int]:
    """`truncate_seq_pair` of create_pretraining_data.py, counting what each segment loses."""
    before = a, b
    while a + b > longest:
        if a > b:
            a -= 1
        else:
            b -= 1
    return before[0] - a, before[1] - b


def plan_plainly(
    documents: Documents, inside: Callable[[int], bool], longest: int, short: float, seed: int, copy: int, block: range
) -> list[tuple[list[int], list[int], int]]:
    """One block as lists of tokens, as the paper's appendix describes it: sentence by sentence."""
    order = Permutation(len(documents), seed, copy, 1)
    draws = Draws(seed, copy, block.start // packing.BLOCK_DOCUMENTS, 2)
    pairs = []
    for place in block:
        number = order[place]
        if not inside(number):
            continue
        waiting = cut_long_sentences(documents[number], longest)
        while waiting:
            target = longest
            if draws.uniform() < short:
                target = draws.integer(2, longest)
            wants_next = draws.uniform() < 0.5
            chunk: list[list[int]] = []
            while waiting and sum(map(len, chunk)) < target:
                chunk.append(waiting.pop(0))
            if wants_next and len(chunk) == 1 and waiting:
                chunk.append(waiting.pop(0))
            if len(chunk) > 1:
                num_a = draws.integer(1, len(chunk) - 1)
                a, rest = chunk[:num_a], chunk[num_a:]
            elif wants_next and len(chunk[0]) > 1:
                middle = draws.integer(1, len(chunk[0]) - 1)
                a, rest = [chunk[0][:middle]], [chunk[0][middle:]]
            else:
                a, rest, wants_next = chunk, [], False
            tokens_a = list(chain(*a))
            if wants_next:
                tokens_b = list(chain(*rest))
            else:
                waiting = rest + waiting
                while True:
                    other = draws.integer(0, len(documents) - 1)
                    if other != number and inside(other):
                        break
                first = draws.integer(0, len(documents[other]) - 1)
                tokens_b = []
                for sentence in documents[other][first:]:
                    tokens_b += sentence
                    if len(tokens_b) >= target - len(tokens_a):
                        break
            tokens_a, tokens_b = truncate_plainly(tokens_a, tokens_b, longest, draws)
            pairs.append((tokens_a, tokens_b, IS_NEXT if wants_next else NOT_NEXT))
    shuffle_key = key(seed, copy, block.start // packing.BLOCK_DOCUMENTS, 3)
    ranks = [mix((shuffle_key ^ mix((place + mix(0)) % 2**64)) % 2**64) >> 11 for place in range(len(pairs))]
    return [pairs[place] for place in sorted(range(len(pairs)), key=ranks.__getitem__)]


@pytest.mark.parametrize("max_length", [8, 32, 128])
@pytest.mark.parametrize("short", [0.0, 0.1, 1.0])
def test_a_plan_is_the_plain_one(monkeypatch: pytest.MonkeyPatch, max_length: int, short: float) -> None:
    monkeypatch.setattr(packing, "BLOCK_DOCUMENTS", 16)
    documents = number_tokens(odd_lengths(max_length))
    store = make_store(documents)
    planned = planner(store, seed=3, max_length=max_length, short=short)
    assert planned.num_blocks == 3
    for copy in (0, 1):
        for number, block in enumerate([range(16), range(16, 32), range(32, 40)]):
            expected = plan_plainly(documents, lambda _: True, max_length - 3, short, 3, copy, block)
            pairs = plan_pairs(planned, copy, number)
            assert [(tokens_of(store, p.a), tokens_of(store, p.b), p.next_sentence_label) for p in pairs] == expected


def test_a_held_out_plan_is_the_plain_one() -> None:
    documents = number_tokens(odd_lengths(1))
    hashes = [(number * 0x9E3779B9) % 2**32 for number in range(40)]
    store = make_store(documents, hashes=hashes)
    held_out = {number for number, text_hash in enumerate(hashes) if text_hash < 0.3 * 2**32}
    for held, members in ((True, held_out), (False, set(range(40)) - held_out)):
        planned = planner(store, seed=5, held_out=0.3, held=held, max_length=24)
        expected = plan_plainly(documents, members.__contains__, 21, 0.1, 5, 2, range(40))
        pairs = plan_pairs(planned, 2)
        assert [(tokens_of(store, p.a), tokens_of(store, p.b), p.next_sentence_label) for p in pairs] == expected
        assert pairs


# ------------------------------------------------------------------------------------------ what holds of every plan

LENGTHS = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=8), min_size=2, max_size=12)


@settings(max_examples=20)  # each writes a store
@given(lengths=LENGTHS, max_length=st.integers(8, 40), short=st.sampled_from([0.0, 0.3, 1.0]), seed=st.integers(0, 99))
def test_every_pair_is_what_it_says(lengths: list[list[int]], max_length: int, short: float, seed: int) -> None:
    documents = number_tokens(lengths)
    store = make_store(documents)
    ends = [np.cumsum([0, *document]).tolist() for document in lengths]
    for pair in plan_pairs(planner(store, seed=seed, max_length=max_length, short=short)):
        a, b = pair.a, pair.b
        assert len(a) >= 1
        assert len(b) >= 1
        assert len(a) + len(b) + 3 <= max_length
        for span in (a, b):
            assert 0 <= span.start < span.end <= ends[span.document][-1]
            whole = [token for sentence in documents[span.document] for token in sentence]
            assert tokens_of(store, span) == whole[span.start : span.end]
        if pair.next_sentence_label == NOT_NEXT:
            assert a.document != b.document
        else:
            assert a.document == b.document
            was_truncated = len(a) + len(b) + 3 == max_length
            assert a.end == b.start or (was_truncated and a.end < b.start)


@settings(max_examples=20)  # each writes a store
@given(lengths=LENGTHS, max_length=st.integers(8, 40), seed=st.integers(0, 99))
def test_every_token_is_shown_once_an_epoch_unless_truncated(
    lengths: list[list[int]], max_length: int, seed: int
) -> None:
    """Before truncation, the segments A and IsNext B of a document are its tokens, each once. Truncation, which only
    leaves sequences of `max_length`, takes from both ends of a segment; what is NotNext B is shown in addition."""
    store = numbered_store(lengths)
    planned = planner(store, seed=seed, max_length=max_length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_formats, "truncate_pair", lambda a, b, longest, draws: (a, b))
        shown = Counter(own_tokens(plan_pairs(planned)))
    assert shown == Counter((d, t) for d, document in enumerate(lengths) for t in range(sum(document)))
    truncated = plan_pairs(planned)
    assert max(Counter(own_tokens(truncated)).values()) == 1


def own_tokens(pairs: list[Pair]) -> list[tuple[int, int]]:
    spans = [span for pair in pairs for span in ([pair.a, pair.b] if pair.next_sentence_label == IS_NEXT else [pair.a])]
    return [(span.document, token) for span in spans for token in range(span.start, span.end)]


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([[1], [1]], id="one-token documents"),
        pytest.param([[2], [2]], id="two-token documents"),
        pytest.param([[50], [7]], id="documents of one sentence"),
        pytest.param([[10_000], [3]], id="a sentence far longer than a sequence"),
        pytest.param([[1, 5000, 1], [5000, 1]], id="long among short"),
    ],
)
def test_odd_documents_are_packed(lengths: list[list[int]]) -> None:
    store = numbered_store(lengths)
    pairs = plan_pairs(planner(store, max_length=16))
    assert {pair.a.document for pair in pairs} == {0, 1}
    assert all(4 < len(pair.a) + len(pair.b) + 3 <= 16 for pair in pairs)
    kept = len(set(own_tokens(pairs)))
    # A long sentence comes in pieces of 13. NotNext gives B half of the sequence, IsNext joins two pieces and halves
    # both: between a third and all of the tokens stay.
    assert kept >= 0.3 * sum(map(sum, lengths))


def test_a_one_token_document_is_never_next() -> None:
    store = numbered_store([[1]] * 30)
    assert {pair.next_sentence_label for pair in plan_pairs(planner(store))} == {NOT_NEXT}


@pytest.mark.parametrize("lengths", [[9] * 60, [40] * 12, [500], [3]], ids=["short", "long", "one huge", "one small"])
def test_half_of_the_pairs_are_next(lengths: list[int]) -> None:
    store = numbered_store([lengths] * 300, shard_documents=300)
    labels = [pair.next_sentence_label for pair in plan_pairs(planner(store, max_length=48))]
    assert len(labels) >= 300
    assert stats.binomtest(sum(labels), len(labels), 0.5).pvalue > IMPROBABLE


def test_the_share_and_the_lengths_of_short_sequences() -> None:
    """With sentences of one token each target is met exactly, but where a random B reaches the end of its document."""
    store = numbered_store([[1] * 60_000] * 2)
    pairs = plan_pairs(planner(store, max_length=35, short=0.2))
    lengths = np.array([len(pair.a) + len(pair.b) for pair in pairs])
    short = lengths[lengths < 32]
    # A target from 2 to 32 is under 32 in 30 of 31 cases; the ends of documents shorten about 1 in 2,000 random Bs.
    assert stats.binomtest(len(short), len(lengths), 0.2 * 30 / 31).pvalue > IMPROBABLE
    assert lengths.max() == 32
    assert stats.chisquare(np.bincount(short)[2:]).pvalue > IMPROBABLE


def test_without_short_sequences_only_ends_of_documents_are_short() -> None:
    store = numbered_store([[1] * 2000] * 4)
    pairs = plan_pairs(planner(store, max_length=35, short=0))
    short = [pair for pair in pairs if len(pair.a) + len(pair.b) < 32]
    assert all(pair.a.end > 2000 - 32 or pair.b.end == 2000 for pair in short)


# ------------------------------------------------------------------------------------------------------------ held out


def test_training_and_held_out_documents_never_mix() -> None:
    hashes = [int.from_bytes(hashlib.sha256(str(number).encode()).digest()[:4], "big") for number in range(200)]
    store = numbered_store([[4] * 10] * 200, hashes=hashes)
    held_out = {number for number, text_hash in enumerate(hashes) if text_hash / 2**32 < 0.2}
    seen = {}
    for held in (True, False):
        planned = planner(store, held_out=0.2, held=held, max_length=16)
        pairs = [pair for copy in range(3) for pair in plan_pairs(planned, copy)]
        seen[held] = {span.document for pair in pairs for span in (pair.a, pair.b)}
        assert {pair.b.document for pair in pairs if pair.next_sentence_label == NOT_NEXT} == seen[held]
        assert planned.split.num_documents == len(seen[held])
    assert seen[True] == held_out
    assert seen[False] == set(range(200)) - held_out


# ------------------------------------------------------------------------------------------------------------ chance


def test_a_plan_is_a_function_of_seed_copy_and_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "BLOCK_DOCUMENTS", 10)
    store = numbered_store([[4, 3, 5] * 6] * 30)
    places = [(seed, copy, block) for seed in (0, 1) for copy in (0, 1) for block in (0, 1, 2)]
    plans = [plan_pairs(planner(store, seed=seed, max_length=20), copy, block) for seed, copy, block in places]
    again = [plan_pairs(planner(store, seed=s, max_length=20), c, b) for s, c, b in reversed(places)][::-1]
    assert plans == again
    assert all(first != second for i, first in enumerate(plans) for second in plans[:i])
    for at in range(0, 12, 3):
        documents = [pair.a.document for plan in plans[at : at + 3] for pair in plan]
        assert set(documents) == set(range(30))
        in_order = [set(range(start, start + 10)) for start in (0, 10, 20)]
        assert [{pair.a.document for pair in plan} for plan in plans[at : at + 3]] != in_order


def test_a_block_of_many_sequences_takes_little_memory_and_none_to_be_counted() -> None:
    planned = planner(numbered_store([[20] * 2000] * 4), max_length=32)
    tracemalloc.start()
    try:
        sequences = planned.plan_block(0, 0)
        kept = tracemalloc.get_traced_memory()[0]
        del sequences
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        number = planned.count_block(0, 0)
        counted = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert number == len(planned.plan_block(0, 0)) > 5000
    assert kept < 500 * number  # of pairs, with their numbers
    assert counted < 200 * number


def test_sequences_of_a_block_are_shuffled() -> None:
    store = numbered_store([[5] * 100] * 20)
    documents = [pair.a.document for pair in plan_pairs(planner(store, max_length=24))]
    neighbours = np.mean(np.array(documents[1:]) == np.array(documents[:-1]))
    assert neighbours < 0.12  # 1 in 20 by chance, nearly all of them in the order of planning


# -------------------------------------------------------------------------------------------------------- truncation


@given(st.integers(1, 400), st.integers(1, 400), st.integers(2, 200), st.integers(0, 99))
def test_each_segment_loses_what_googles_loop_takes(len_a: int, len_b: int, longest: int, seed: int) -> None:
    a, b = Span(0, 1000, 1000 + len_a), Span(1, 50, 50 + len_b)
    short_a, short_b = truncate_pair(a, b, longest, Draws(seed))
    assert (len_a - len(short_a), len_b - len(short_b)) == google_loop(len_a, len_b, longest)
    for long, short in ((a, short_a), (b, short_b)):
        assert long.document == short.document
        assert long.start <= short.start < short.end <= long.end


@pytest.mark.parametrize("excess", [1, 6, 53, 54, 130])
def test_tokens_go_from_both_ends_as_coins_fall(excess: int) -> None:
    draws = Draws(excess)
    a = Span(0, 0, 1000)
    fronts = [truncate_pair(a, Span(1, 0, 1), 1001 - excess, draws)[0].start for _ in range(4000)]
    expected = stats.binom.pmf(np.arange(excess + 1), excess, 0.5) * 4000
    counts = np.bincount(fronts, minlength=excess + 1)
    common = expected >= 5  # rarer ones are counted together, as the test requires
    observed, wanted = [*counts[common], counts[~common].sum()], [*expected[common], expected[~common].sum()]
    if not wanted[-1]:
        observed, wanted = observed[:-1], wanted[:-1]
    assert stats.chisquare(observed, np.array(wanted) * 4000 / sum(wanted)).pvalue > IMPROBABLE


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(2, 30))
def test_long_sentences_are_cut_into_pieces_that_fit(lengths: list[int], longest: int) -> None:
    document = [[0] * length for length in lengths]
    expected = np.cumsum([len(piece) for piece in cut_long_sentences(document, longest)]).tolist()
    assert fitting_ends(np.cumsum(lengths), longest) == expected
