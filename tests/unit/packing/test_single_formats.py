"""Formats of one segment against what the papers say of them, with lists, and every token shown once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.stores import Documents, cut_long_sentences, make_store, number_tokens, numbered_store
from unmask.chance import Draws
from unmask.packing.planning import PlannedSequence, Planner, SequenceFormat
from unmask.packing.single_formats import DocSentences, FullSentences, SingleSegments
from unmask.packing.split import Split
from unmask.store.store import TokenStore

SEPARATOR = -1
Format = Callable[[int], SequenceFormat]
Plainly = Callable[[Documents, int], list[list[int]]]


def tokens_of(sequence: PlannedSequence, store: TokenStore) -> list[int]:
    """The tokens of a sequence, documents divided by a separator."""
    [segment] = sequence.segments
    tokens: list[int] = []
    for number, span in enumerate(segment):
        tokens += [SEPARATOR] * (number > 0)
        tokens += store.tokens(span.document, span.start, span.end).tolist()
    return tokens


def full_sentences_plainly(documents: Documents, longest: int) -> list[list[int]]:
    """RoBERTa, section 4.2: sentences in a row from one or more documents, a separator where a new one begins."""
    sequences: list[list[int]] = [[]]
    for document in documents:
        for number, sentence in enumerate(cut_long_sentences(document, longest)):
            separator = [SEPARATOR] if number == 0 and sequences[-1] else []
            if len(sequences[-1]) + len(separator) + len(sentence) > longest:
                sequences.append([])
                separator = []
            sequences[-1] += separator + sentence
    return sequences


def doc_sentences_plainly(documents: Documents, longest: int) -> list[list[int]]:
    """RoBERTa, section 4.2: the same for each document by itself."""
    return [sequence for document in documents for sequence in full_sentences_plainly([document], longest)]


def single_segments_plainly(documents: Documents, longest: int) -> list[list[int]]:
    """SpanBERT, section 3.3: up to so many tokens in a row, until the document ends."""
    sequences = []
    for document in documents:
        tokens = [token for sentence in document for token in sentence]
        while tokens:
            sequences.append(tokens[:longest])
            tokens = tokens[longest:]
    return sequences


CASES = [
    pytest.param(FullSentences, full_sentences_plainly, id="full_sentences"),
    pytest.param(DocSentences, doc_sentences_plainly, id="doc_sentences"),
    pytest.param(SingleSegments, single_segments_plainly, id="single_segment"),
]
LENGTHS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=8), min_size=1, max_size=12)


@pytest.mark.parametrize(("make_format", "plainly"), CASES)
@settings(max_examples=20)  # each writes a store
@given(lengths=LENGTHS, longest=st.integers(1, 40), data=st.data())
def test_a_plan_is_the_plain_one(
    make_format: Format, plainly: Plainly, lengths: list[list[int]], longest: int, data: st.DataObject
) -> None:
    documents = number_tokens(lengths)
    store = make_store(documents)
    order = data.draw(st.permutations(range(len(documents))))
    sequences = list(make_format(longest).plan(Split(store, 0, False), order, Draws(0)))
    assert [tokens_of(sequence, store) for sequence in sequences] == plainly([documents[n] for n in order], longest)
    assert {sequence.label for sequence in sequences} == {None}


def test_sequences_worked_by_hand() -> None:
    store = make_store([[[1, 2], [3, 4, 5]], [[6]], [[7, 8], [9]]])
    split, order = Split(store, 0, False), range(3)

    def plan(planned: SequenceFormat) -> list[list[int]]:
        return [tokens_of(sequence, store) for sequence in planned.plan(split, order, Draws(0))]

    assert plan(FullSentences(7)) == [[1, 2, 3, 4, 5, SEPARATOR, 6], [7, 8, 9]]
    assert plan(FullSentences(6)) == [[1, 2, 3, 4, 5], [6, SEPARATOR, 7, 8, 9]]
    assert plan(FullSentences(4)) == [[1, 2], [3, 4, 5], [6, SEPARATOR, 7, 8], [9]]
    assert plan(DocSentences(7)) == [[1, 2, 3, 4, 5], [6], [7, 8, 9]]
    assert plan(DocSentences(4)) == [[1, 2], [3, 4, 5], [6], [7, 8, 9]]
    assert plan(SingleSegments(4)) == [[1, 2, 3, 4], [5], [6], [7, 8, 9]]


def test_the_order_of_an_epoch_decides_which_documents_meet() -> None:
    store = numbered_store([[3]] * 40)
    planner = Planner(Split(store, 0, False), FullSentences(7), seed=0)
    epochs = [
        {frozenset(span.document for span in sequence.segments[0]) for sequence in planner.plan_block(epoch, 0)}
        for epoch in range(2)
    ]
    assert all(len(epoch) == 20 for epoch in epochs)
    assert len(epochs[0] & epochs[1]) < 5
