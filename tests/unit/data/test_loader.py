"""Batches from planned sequences: packed as a plain re-telling packs them, and the same from wherever one resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.batch import Batch
from unmask.chance import key
from unmask.data import packing
from unmask.data.loader import LoadedStep, PairLoader, Position, pack_pairs
from unmask.data.packing import PairPlanner, SegmentPair, Span, Split
from unmask.data.settings import PackingSettings
from unmask.data.store import TokenStore

CLS, SEP = 1_000_001, 1_000_002
MakeStore = Callable[..., TokenStore]
NumberTokens = Callable[[Sequence[Sequence[int]]], list[list[list[int]]]]


@pytest.fixture(scope="module")
def loader(make_store: MakeStore, number_tokens: NumberTokens) -> Iterator[PairLoader]:
    """26 documents in blocks of 4, of which the last holds 2; every fifth document is held out."""
    lengths = [[3 + number % 5] * (1 + number % 7) for number in range(26)]
    store = make_store(number_tokens(lengths), hashes=[0 if n % 5 == 4 else 2**32 - 1 for n in range(26)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "BLOCK_DOCUMENTS", 4)
        planner = PairPlanner(Split(store, 0.1, False), PackingSettings(max_length=16), seed=9)
        yield PairLoader(planner, CLS, SEP, batch_size=6, micro_batch_size=4)


def same(first: Batch, second: Batch) -> bool:
    assert first.keys is not None
    assert second.keys is not None
    return (
        first.lengths == second.lengths
        and torch.equal(first.input_ids, second.input_ids)
        and torch.equal(first.token_type_ids, second.token_type_ids)
        and torch.equal(first.position_ids, second.position_ids)
        and torch.equal(first.bounds, second.bounds)
        and torch.equal(first.keys, second.keys)
        and first.columns.keys() == second.columns.keys()
        and all(torch.equal(first.columns[name], second.columns[name]) for name in first.columns)
    )


def sequences_of(step: LoadedStep) -> list[tuple[list[int], int]]:
    """The ids of each sequence of a step, with its key."""
    found = []
    for batch in step.batches:
        assert batch.keys is not None
        parts = batch.input_ids.split(batch.lengths)
        found += [(part.tolist(), chance_key) for part, chance_key in zip(parts, batch.keys.tolist(), strict=True)]
    return found


# ----------------------------------------------------------------------------------------------------------- packing


def pack_plainly(planned: Sequence[tuple[SegmentPair, int]], store: TokenStore) -> dict[str, list[int]]:
    arrays: dict[str, list[int]] = {name: [] for name in ("ids", "types", "positions", "special", "labels", "keys")}
    bounds = [0]
    for pair, chance_key in planned:
        a = store.document(pair.a.document).tokens[pair.a.start : pair.a.end].tolist()
        b = store.document(pair.b.document).tokens[pair.b.start : pair.b.end].tolist()
        ids = [CLS, *a, SEP, *b, SEP]
        arrays["ids"] += ids
        arrays["types"] += [0] * (len(a) + 2) + [1] * (len(b) + 1)
        arrays["positions"] += range(len(ids))
        arrays["special"] += [int(token in (CLS, SEP)) for token in ids]
        arrays["labels"].append(pair.next_sentence_label)
        arrays["keys"].append(chance_key)
        bounds.append(bounds[-1] + len(ids))
    return {**arrays, "bounds": bounds}


@given(data=st.data())
def test_packed_arrays_are_the_plain_ones(loader: PairLoader, data: st.DataObject) -> None:
    store = loader.planner.split.store
    pairs = [pair for block in range(7) for pair in loader.planner.plan_block(0, block)]
    pairs.append(SegmentPair(Span(0, 0, 1), Span(1, 1, 2), 1))
    chosen = data.draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=5))
    planned = [(pair, key(number)) for number, pair in enumerate(chosen)]
    batch = pack_pairs(planned, store, CLS, SEP)
    plain = pack_plainly(planned, store)
    assert batch.input_ids.tolist() == plain["ids"]
    assert batch.token_type_ids.tolist() == plain["types"]
    assert batch.position_ids.tolist() == plain["positions"]
    assert batch.columns["special_tokens_mask"].tolist() == [bool(each) for each in plain["special"]]
    assert batch.columns["next_sentence_label"].tolist() == plain["labels"]
    assert batch.bounds.tolist() == plain["bounds"]
    assert batch.keys is not None
    assert batch.keys.tolist() == plain["keys"]
    assert list(batch.lengths) == [
        end - start for start, end in zip(plain["bounds"], plain["bounds"][1:], strict=False)
    ]
    assert (batch.input_ids.dtype, batch.token_type_ids.dtype, batch.position_ids.dtype) == (torch.int64,) * 3
    assert (batch.bounds.dtype, batch.keys.dtype) == (torch.int32, torch.int64)
    assert batch.columns["special_tokens_mask"].dtype == torch.bool
    assert batch.columns["next_sentence_label"].dtype == torch.int64


# ---------------------------------------------------------------------------------------------------------- the stream


def test_the_stream_is_the_plan_epoch_after_epoch(loader: PairLoader) -> None:
    planner = loader.planner
    expected = []
    for epoch in range(3):
        for block in range(planner.num_blocks):
            for place, pair in enumerate(planner.plan_block(epoch, block)):
                plain = pack_plainly([(pair, key(9, epoch, block, place, 4))], planner.split.store)
                expected.append((plain["ids"], plain["keys"][0]))
    found: list[tuple[list[int], int]] = []
    for step in islice(loader.steps(), len(expected) // loader.batch_size):
        assert sum(batch.num_sequences for batch in step.batches) == loader.batch_size
        found += sequences_of(step)
    assert len(found) > 2 * len(expected) / 3
    assert found == expected[: len(found)]


@settings(max_examples=40)
@given(start=st.integers(0, 60), batch_size=st.integers(1, 9))
def test_resuming_anywhere_gives_the_same_stream(loader: PairLoader, start: int, batch_size: int) -> None:
    """60 steps of up to 9 sequences are several epochs of 7 blocks, so starts fall on and across all their ends."""
    loader = replace(loader, batch_size=batch_size)
    straight = list(islice(loader.steps(), start, start + 3))
    before = list(islice(loader.steps(), start))
    position = Position(**asdict(before[-1].after)) if before else Position()
    resumed = list(islice(loader.steps(position), 3))
    for first, second in zip(straight, resumed, strict=True):
        assert (first.after, first.epochs) == (second.after, second.epochs)
        assert all(same(a, b) for a, b in zip(first.batches, second.batches, strict=True))


def test_an_epoch_ends_where_its_documents_do(loader: PairLoader) -> None:
    """Epochs count documents: after the first block of 4 of 26 documents, 4/26 of an epoch are done."""
    planner = replace_batch(loader, 1)
    by_block: dict[tuple[int, int], list[LoadedStep]] = {}
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


def replace_batch(loader: PairLoader, size: int) -> PairLoader:
    return replace(loader, batch_size=size, micro_batch_size=size)


def test_a_step_may_hold_the_end_of_an_epoch_and_the_next_ones_beginning(loader: PairLoader) -> None:
    total = sum(len(loader.planner.plan_block(0, block)) for block in range(7))
    step = next(iter(replace_batch(loader, total + 2).steps()))
    assert step.after == Position(epoch=1, block=0, sequence=2)
    assert 1 < step.epochs < 1.2


def test_a_block_without_training_documents_is_passed_over(make_store: MakeStore, number_tokens: NumberTokens) -> None:
    hashes = [0] * 18 + [2**32 - 1] * 2
    store = make_store(number_tokens([[5, 5]] * 20), hashes=hashes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "BLOCK_DOCUMENTS", 2)
        planner = PairPlanner(Split(store, 0.5, False), PackingSettings(max_length=16), seed=0)
        steps = list(islice(PairLoader(planner, CLS, SEP, 2, 2).steps(), 20))
        assert any(not planner.plan_block(0, block) for block in range(10))
    assert all(step.batches[0].num_sequences == 2 for step in steps)


@pytest.mark.parametrize("micro_batch_size", [1, 4, 6, 100])
def test_micro_batches_are_the_batch_in_pieces(loader: PairLoader, micro_batch_size: int) -> None:
    whole = list(islice(replace(loader, micro_batch_size=6).steps(), 8))
    pieces = list(islice(replace(loader, micro_batch_size=micro_batch_size).steps(), 8))
    for one, several in zip(whole, pieces, strict=True):
        assert [batch.num_sequences for batch in several.batches] == {
            1: [1] * 6,
            4: [4, 2],
            6: [6],
            100: [6],
        }[micro_batch_size]
        assert sequences_of(several) == sequences_of(one)
        for name in ("special_tokens_mask", "next_sentence_label"):
            assert torch.equal(torch.cat([b.columns[name] for b in several.batches]), one.batches[0].columns[name])


# ------------------------------------------------------------------------------------------------------------- copies


def epochs_of(loader: PairLoader, num_epochs: int) -> list[list[tuple[list[int], int]]]:
    """The sequences of each of the first epochs, with their keys."""
    epochs: list[list[tuple[list[int], int]]] = [[] for _ in range(num_epochs)]
    for step in replace_batch(loader, 1).steps():
        if step.after.epoch == num_epochs:
            return epochs
        epochs[step.after.epoch] += sequences_of(step)
    raise AssertionError("the stream ended")


def test_without_copies_every_epoch_is_new(loader: PairLoader) -> None:
    epochs = epochs_of(loader, 4)
    plans = [[ids for ids, _ in epoch] for epoch in epochs]
    assert all(first != second for i, first in enumerate(plans) for second in plans[:i])
    keys = [chance_key for epoch in epochs for _, chance_key in epoch]
    assert len(set(keys)) == len(keys)


def test_copies_bring_the_sequences_back_with_new_masks(loader: PairLoader) -> None:
    first, second, third, fourth = epochs_of(replace(loader, plan_copies=2), 4)
    assert [ids for ids, _ in third] == [ids for ids, _ in first] != [ids for ids, _ in second]
    assert [ids for ids, _ in fourth] == [ids for ids, _ in second]
    keys = [chance_key for epoch in (first, second, third, fourth) for _, chance_key in epoch]
    assert len(set(keys)) == len(keys)


def test_static_masking_brings_sequences_and_masks_back(loader: PairLoader) -> None:
    first, second, third, fourth = epochs_of(replace(loader, plan_copies=2, mask_copies=2), 4)
    assert (third, fourth) == (first, second)
    assert not {chance_key for _, chance_key in first} & {chance_key for _, chance_key in second}


# --------------------------------------------------------------------------------------------------------- evaluation


@pytest.mark.parametrize("most", [1, 4, 9, 10_000])
def test_an_evaluation_reads_the_first_copy_in_order(loader: PairLoader, most: int) -> None:
    expected = epochs_of(loader, 1)[0][:most]
    batches = list(loader.epoch(most))
    assert [batch.num_sequences for batch in batches[:-1]] == [4] * (len(batches) - 1)
    assert [found for batch in batches for found in sequences_of(LoadedStep([batch], Position(), 0))] == expected
