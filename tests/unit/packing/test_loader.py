"""Batches from planned sequences: packed as lists would be, and the same from wherever one resumes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import accumulate, chain, islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.stores import numbered_store
from support.templates import BERT, CLS, END, ROBERTA, SEP, START
from support.tensors import same_batch, same_step
from unmask.batch import StepBatches
from unmask.chance import key
from unmask.errors import InputError
from unmask.packing import planning as packing
from unmask.packing.loader import Position, SequenceLoader
from unmask.packing.pair_formats import SegmentPairs
from unmask.packing.planning import PlannedSequence, Planner, Span
from unmask.packing.sequences import pack_sequences
from unmask.packing.single_formats import DocSentences
from unmask.packing.split import Split
from unmask.packing.templates import SequenceTemplate
from unmask.store.store import TokenStore
from unmask.tokenization.definition import BARE

Plainly = Callable[[PlannedSequence, TokenStore], tuple[list[int], list[int]]]


@pytest.fixture(scope="module")
def loader() -> Iterator[SequenceLoader]:
    """26 documents in blocks of 4, of which the last holds 2; every fifth document is held out."""
    lengths = [[3 + number % 5] * (1 + number % 7) for number in range(26)]
    store = numbered_store(lengths, hashes=[0 if n % 5 == 4 else 2**32 - 1 for n in range(26)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "BLOCK_DOCUMENTS", 4)
        planner = Planner(Split(store, 0.1, False), SegmentPairs(13, "nsp", 0.1), seed=9)
        yield SequenceLoader(planner, BERT, batch_size=6, micro_batch_size=4, label_column="next_sentence_label")


def sequences_of(step: StepBatches[Position]) -> list[tuple[list[int], int]]:
    """The ids of each sequence of a step, with its key."""
    found = []
    for batch in step.batches:
        parts = batch.input_ids.split(batch.lengths)
        found += [(part.tolist(), chance_key) for part, chance_key in zip(parts, batch.keys.tolist(), strict=True)]
    return found


# ----------------------------------------------------------------------------------------------------------- packing


def text_of(segment: tuple[Span, ...], store: TokenStore, separator: int) -> list[int]:
    """The tokens of a segment, with a separator between documents."""
    tokens: list[int] = []
    for number, span in enumerate(segment):
        tokens += [separator] * (number > 0)
        tokens += store.document(span.document).tokens[span.start : span.end].tolist()
    return tokens


def bert_plainly(sequence: PlannedSequence, store: TokenStore) -> tuple[list[int], list[int]]:
    """The ids and segments of `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`."""
    a, *rest = (text_of(segment, store, SEP) for segment in sequence.segments)
    ids, types = [CLS, *a, SEP], [0] * (len(a) + 2)
    for b in rest:
        ids, types = [*ids, *b, SEP], types + [1] * (len(b) + 1)
    return ids, types


def roberta_plainly(sequence: PlannedSequence, store: TokenStore) -> tuple[list[int], list[int]]:
    """The ids of `<s> A </s>` or `<s> A </s></s> B </s>`, which have no segments."""
    a, *rest = (text_of(segment, store, END) for segment in sequence.segments)
    ids = [START, *a, END]
    for b in rest:
        ids += [END, *b, END]
    return ids, [0] * len(ids)


def bare_plainly(sequence: PlannedSequence, store: TokenStore) -> tuple[list[int], list[int]]:
    """Text and nothing else, but for what stands between documents."""
    texts = [text_of(segment, store, END) for segment in sequence.segments]
    return [*chain(*texts)], [number for number, text in enumerate(texts) for _ in text]


@pytest.mark.parametrize(
    ("template", "plainly"),
    [
        pytest.param(BERT, bert_plainly, id="bert"),
        pytest.param(ROBERTA, roberta_plainly, id="roberta"),
        pytest.param(SequenceTemplate(BARE, END), bare_plainly, id="bare"),
    ],
)
@pytest.mark.parametrize("num_segments", [1, 2])
@given(data=st.data())
def test_packed_arrays_are_the_plain_ones(
    loader: SequenceLoader, template: SequenceTemplate, plainly: Plainly, num_segments: int, data: st.DataObject
) -> None:
    store = loader.planner.split.store
    documents = st.integers(0, store.num_documents - 1)

    def spans_of(document: int) -> st.SearchStrategy[Span]:
        size = len(store.document(document).tokens)
        ends = st.lists(st.integers(0, size), min_size=2, max_size=2, unique=True).map(sorted)
        return ends.map(lambda ends: Span(document, *ends))

    segment = st.lists(documents.flatmap(spans_of), min_size=1, max_size=3).map(tuple)
    segments = st.lists(segment, min_size=num_segments, max_size=num_segments).map(tuple)
    sequences = st.lists(st.builds(PlannedSequence, segments, st.integers(0, 1)), min_size=1, max_size=5)
    planned = [(sequence, key(number)) for number, sequence in enumerate(data.draw(sequences))]
    batch = pack_sequences(planned, store, template, "next_sentence_label")
    plain = [plainly(sequence, store) for sequence, _ in planned]
    assert batch.input_ids.tolist() == [token for ids, _ in plain for token in ids]
    assert batch.token_type_ids.tolist() == [segment for _, types in plain for segment in types]
    assert batch.position_ids.tolist() == [place for ids, _ in plain for place in range(len(ids))]
    assert batch.columns["special_tokens_mask"].tolist() == [token > 1_000_000 for ids, _ in plain for token in ids]
    assert batch.columns["next_sentence_label"].tolist() == [sequence.label for sequence, _ in planned]
    assert batch.lengths == tuple(len(ids) for ids, _ in plain)
    assert batch.bounds.tolist() == [0, *accumulate(batch.lengths)]
    assert batch.keys.tolist() == [chance_key for _, chance_key in planned]
    assert (batch.input_ids.dtype, batch.token_type_ids.dtype, batch.position_ids.dtype) == (torch.int64,) * 3
    assert (batch.bounds.dtype, batch.keys.dtype) == (torch.int32, torch.int64)
    assert batch.columns["special_tokens_mask"].dtype == torch.bool
    assert batch.columns["next_sentence_label"].dtype == torch.int64


# ---------------------------------------------------------------------------------------------------------- the stream


def test_the_stream_is_the_plan_epoch_after_epoch(loader: SequenceLoader) -> None:
    planner = loader.planner
    expected = []
    for epoch in range(3):
        for block in range(planner.num_blocks):
            for place, sequence in enumerate(planner.plan_block(epoch, block)):
                ids, _ = bert_plainly(sequence, planner.split.store)
                expected.append((ids, key(9, epoch, block, place, 4)))
    found: list[tuple[list[int], int]] = []
    for step in islice(replace(loader, micro_batch_size=loader.batch_size).steps(), len(expected) // loader.batch_size):
        assert sum(batch.num_sequences for batch in step.batches) == loader.batch_size
        found += sequences_of(step)
    assert len(found) > 2 * len(expected) / 3
    assert found == expected[: len(found)]


@given(start=st.integers(0, 60), batch_size=st.integers(1, 9))
def test_resuming_anywhere_gives_the_same_stream(loader: SequenceLoader, start: int, batch_size: int) -> None:
    """60 steps of up to 9 sequences are several epochs of 7 blocks, so starts fall on and across all their ends."""
    loader = replace(loader, batch_size=batch_size)
    straight = list(islice(loader.steps(), start + 3))
    position = Position(**asdict(straight[start - 1].after)) if start else Position()
    resumed = list(islice(loader.steps(position), 3))
    for first, second in zip(straight[start:], resumed, strict=True):
        assert same_step(first, second)


def test_an_epoch_ends_where_its_documents_do(loader: SequenceLoader) -> None:
    """Epochs count documents: after the first block of 4 of 26 documents, 4/26 of an epoch are done."""
    planner = replace_batch(loader, 1)
    by_block: dict[tuple[int, int], list[StepBatches[Position]]] = {}
    for step in planner.steps():
        by_block.setdefault((step.after.epoch, step.after.block), []).append(step)
        if step.after.epoch == 2:
            break
    assert list(by_block) == [(epoch, block) for epoch in (0, 1) for block in range(7)] + [(2, 0)]
    for (epoch, block), steps in by_block.items():
        if epoch < 2:
            documents = min(26, 4 * (block + 1))
            assert steps[-1].epochs == pytest.approx(epoch + documents / 26, abs=1e-12)
            assert [step.after.sequence for step in steps] == list(range(1, len(steps) + 1))
    assert by_block[0, 6][-1].epochs == 1
    assert by_block[1, 6][-1].epochs == 2
    counted = [step.epochs for steps in by_block.values() for step in steps]
    assert counted == sorted(set(counted))


def replace_batch(loader: SequenceLoader, size: int) -> SequenceLoader:
    return replace(loader, batch_size=size, micro_batch_size=size)


def test_a_step_may_hold_the_end_of_an_epoch_and_the_next_ones_beginning(loader: SequenceLoader) -> None:
    total = sum(len(loader.planner.plan_block(0, block)) for block in range(7))
    step = next(iter(replace_batch(loader, total + 2).steps()))
    assert step.after == Position(epoch=1, block=0, sequence=2)
    assert 1 < step.epochs < 1.2


def test_a_block_without_training_documents_is_passed_over() -> None:
    hashes = [0] * 18 + [2**32 - 1] * 2
    store = numbered_store([[5, 5]] * 20, hashes=hashes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "BLOCK_DOCUMENTS", 2)
        planner = Planner(Split(store, 0.5, False), SegmentPairs(13, "none", 0.1), seed=0)
        steps = list(islice(SequenceLoader(planner, BERT, 2, 2).steps(), 20))
        assert any(not planner.plan_block(0, block) for block in range(10))
    assert all(step.batches[0].num_sequences == 2 for step in steps)


def test_documents_too_short_for_any_sequence_are_refused() -> None:
    store = numbered_store([[1]] * 5)
    planner = Planner(Split(store, 0, False), SegmentPairs(13, "sop", 0), seed=0)
    with pytest.raises(InputError, match=rf"{store.directory}: none of its 5 training document.s. is long enough"):
        next(SequenceLoader(planner, BERT, 2, 2).steps())


@pytest.mark.parametrize("micro_batch_size", [1, 4, 6, 100])
def test_micro_batches_are_the_batch_in_pieces(loader: SequenceLoader, micro_batch_size: int) -> None:
    whole = list(islice(replace(loader, micro_batch_size=6).steps(), 8))
    pieces = list(islice(replace(loader, micro_batch_size=micro_batch_size).steps(), 8))
    expected = {1: [1] * 6, 4: [3, 3], 6: [6], 100: [6]}[micro_batch_size]
    for one, several in zip(whole, pieces, strict=True):
        assert [batch.num_sequences for batch in several.batches] == expected
        assert sorted(sequences_of(several)) == sorted(sequences_of(one))
        assert labels_by_key(several) == labels_by_key(one)


def labels_by_key(step: StepBatches[Position]) -> dict[int, int]:
    keys, labels = (
        torch.cat(values).tolist()
        for values in zip(*((b.keys, b.columns["next_sentence_label"]) for b in step.batches), strict=True)
    )
    return dict(zip(keys, labels, strict=True))


# ------------------------------------------------------------------------------------------------------------- copies


def four_epochs_of(loader: SequenceLoader) -> list[list[tuple[list[int], int]]]:
    """The sequences of each of the first four epochs, with their keys."""
    epochs: list[list[tuple[list[int], int]]] = [[] for _ in range(4)]
    for step in replace_batch(loader, 1).steps():
        if step.after.epoch == 4:
            return epochs
        epochs[step.after.epoch] += sequences_of(step)
    raise AssertionError("the stream ended")


def test_without_copies_every_epoch_is_new(loader: SequenceLoader) -> None:
    epochs = four_epochs_of(loader)
    plans = [[ids for ids, _ in epoch] for epoch in epochs]
    assert all(first != second for i, first in enumerate(plans) for second in plans[:i])
    keys = [chance_key for epoch in epochs for _, chance_key in epoch]
    assert len(set(keys)) == len(keys)


def test_copies_bring_the_sequences_back_with_new_masks(loader: SequenceLoader) -> None:
    first, second, third, fourth = four_epochs_of(replace(loader, plan_copies=2))
    assert [ids for ids, _ in third] == [ids for ids, _ in first] != [ids for ids, _ in second]
    assert [ids for ids, _ in fourth] == [ids for ids, _ in second]
    keys = [chance_key for epoch in (first, second, third, fourth) for _, chance_key in epoch]
    assert len(set(keys)) == len(keys)


def test_static_masking_brings_sequences_and_masks_back(loader: SequenceLoader) -> None:
    first, second, third, fourth = four_epochs_of(replace(loader, plan_copies=2, mask_copies=2))
    assert (third, fourth) == (first, second)
    assert not {chance_key for _, chance_key in first} & {chance_key for _, chance_key in second}


# --------------------------------------------------------------------------------------------------------- evaluation


@pytest.fixture
def held_out(monkeypatch: pytest.MonkeyPatch) -> SequenceLoader:
    """Ten documents of forty are held out, as many as a block holds, with one and the same number of sequences."""
    store = numbered_store([[5] * 12] * 40, hashes=[0 if n % 4 == 3 else 2**32 - 1 for n in range(40)])
    monkeypatch.setattr(packing, "BLOCK_DOCUMENTS", 10)
    planner = Planner(Split(store, 0.1, True), DocSentences(11), seed=9)
    return SequenceLoader(planner, BERT, batch_size=6, micro_batch_size=4)


def documents_of(loader: SequenceLoader, most: int) -> list[int]:
    """The documents that the sequences of a sample begin in; each has 60 tokens, numbered from 1 through the store."""
    rows = [row for batch in loader.sample(most) for row in batch.input_ids.split(batch.lengths)]
    return [(int(row[1]) - 1) // 60 for row in rows]


def test_an_evaluation_is_drawn_evenly_over_all_documents(held_out: SequenceLoader) -> None:
    """Not the sequences of the first block of the whole corpus, with one or two of the ten in it."""
    members = [n for n in range(40) if n % 4 == 3]
    assert sorted(documents_of(held_out, 10)) == members
    assert sorted(documents_of(held_out, 30)) == sorted(3 * members)
    assert len(set(documents_of(held_out, 5))) == 5
    assert sorted(documents_of(held_out, 10_000)) == sorted(6 * members)  # all there are, each once


@pytest.mark.parametrize("most", [1, 4, 9, 10_000])
def test_an_evaluation_is_the_same_every_time(held_out: SequenceLoader, most: int) -> None:
    batches = list(held_out.sample(most))
    assert sum(batch.num_sequences for batch in batches) == min(most, 60)
    assert [batch.num_sequences for batch in batches[:-1]] == [4] * (len(batches) - 1)
    again = list(held_out.sample(most))
    assert all(map(same_batch, batches, again))
    assert len(batches) == len(again)
    keys = [key for batch in batches if batch.keys is not None for key in batch.keys.tolist()]
    assert len(set(keys)) == len(keys)


def test_more_than_a_block_is_planned_where_it_takes_more(
    held_out: SequenceLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "BLOCK_DOCUMENTS", 3)
    assert len(set(documents_of(held_out, 12))) == 3  # a block's 18 sequences are enough
    assert len(set(documents_of(held_out, 19))) == 6


# ------------------------------------------------------------------------------------------------ passing over a block


@given(skipped_at=st.integers(0, 80))
def test_after_a_block_comes_the_next_and_epochs_count_what_is_shown(loader: SequenceLoader, skipped_at: int) -> None:
    loader = replace_batch(loader, 1)
    steps = list(islice(loader.steps(), skipped_at))
    position, epochs = (steps[-1].after, steps[-1].epochs) if steps else (Position(), 0.0)
    after = loader.after_block(position)
    if position.sequence == 0:
        assert after == position
        return
    number = position.epoch * 7 + position.block + 1
    assert (after.epoch, after.block, after.sequence) == (number // 7, number % 7, 0)
    share = position.sequence / len(loader.planner.plan_block(position.epoch, position.block))
    assert after.passed_over == math.floor(len(loader.planner.places(position.block)) * (1 - share) + 1e-9)
    first = next(loader.steps(after))
    documents, sequences = len(loader.planner.places(after.block)), loader.planner.plan_block(after.epoch, after.block)
    # A document is not counted in parts: up to one that has not been shown counts as if it had been.
    assert 0 < first.epochs - epochs < (documents / len(sequences) + 1) / 26
    assert first.after.passed_over == after.passed_over
