"""Streams: every lane reads its share of the words in order, forwards and backwards, and can be resumed anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.stores import make_store, make_word_store
from support.tensors import same_step
from unmask.batch import StepBatches
from unmask.errors import InputError, StoreError
from unmask.packing.loader import Position
from unmask.packing.split import Split
from unmask.packing.stream import StreamLoader, character_rows, target_counts
from unmask.store.shard import StoredWords
from unmask.store.store import TokenStore
from unmask.tokenization.kinds.word_characters import BEGIN_WORD, END_WORD, PADDING, SPECIAL_WORDS, WordTokenizer

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", ".", "나는"]
TOKENIZER = WordTokenizer([*SPECIAL_WORDS, *WORDS[:6], "."])
DICE = np.random.default_rng(0)


def sentence() -> str:
    return " ".join([*DICE.choice(WORDS[:8], DICE.integers(1, 9)), "."]).capitalize()


TEXTS = [" ".join(sentence() for _ in range(DICE.integers(1, 6))) for _ in range(23)]


@pytest.fixture(scope="module")
def store() -> TokenStore:
    return make_word_store(TEXTS, TOKENIZER)


def new_loader(store: TokenStore, **changes: object) -> StreamLoader:
    arguments = {"window": 5, "batch_size": 4, "micro_batch_size": 3, "seed": 1}
    return StreamLoader(Split(store, 0.0, is_held_out=False), TOKENIZER, **{**arguments, **changes})  # type: ignore[arg-type]


def slow_text(store: TokenStore, document: int) -> Iterator[tuple[str, str, str, str]]:
    """What both directions read and predict in a document, step by step, in words."""
    stored = store.document(document)
    words = store.words(document, 0, len(stored.tokens))
    ends = words.ends.tolist()
    text = [bytes(words.utf8[start:end]).decode() for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    start = 0
    for end in stored.sentence_ends.tolist():
        sentence = text[start:end]
        forward, backward = ["<S>", *sentence, "</S>"], ["</S>", *sentence[::-1], "<S>"]
        yield from zip(forward[:-1], forward[1:], backward[:-1], backward[1:], strict=True)
        start = end


def ids_of(words: list[str]) -> list[int]:
    return TOKENIZER.vocabulary_ids(words)


def characters_of(words: list[str]) -> list[list[int]]:
    ids = [
        TOKENIZER.token_strings.index(word) if word in SPECIAL_WORDS else TOKENIZER.encode_batch([word])[0][0]
        for word in words
    ]
    return TOKENIZER.table[np.array(ids)].tolist()


def test_words_are_cut_so_that_both_marks_fit() -> None:
    """Rows of eight: six bytes of a word, between the marks."""
    written = [b"abcde", b"fghijk", b"lmnopqr", b"stuvwxyza"]
    words = StoredWords(np.frombuffer(b"".join(written), dtype=np.uint8), np.cumsum([len(word) for word in written]))
    rows = character_rows(np.arange(4), words, 8).tolist()
    assert rows[0] == [BEGIN_WORD, *b"abcde", END_WORD, PADDING]
    assert rows[1:] == [[BEGIN_WORD, *word[:6], END_WORD] for word in written[1:]]


def of_lanes(steps: list[StepBatches[Position]], column: str) -> list[list[object]]:
    """What each lane has in a column over some steps."""
    lanes: dict[int, list[object]] = {}
    for step in steps:
        for batch in step.batches:
            values = batch.input_ids if column == "input_ids" else batch.columns[column]
            for lane, part in zip(batch.columns["lane"].tolist(), values.split(list(batch.lengths)), strict=True):
                lanes.setdefault(lane, []).extend(part.tolist())
    return [lanes[lane] for lane in sorted(lanes)]


def test_an_epoch_is_all_documents_dealt_out_in_equal_shares(store: TokenStore) -> None:
    loader = new_loader(store)
    num_windows = loader.num_windows(4)
    steps = list(itertools.islice(loader.steps(), num_windows))
    plan = loader._plan(0)
    assert sorted(plan.documents.tolist()) == list(range(23))
    text = [row for document in plan.documents.tolist() for row in slow_text(store, document)]
    share = num_windows * 5
    assert 0 <= len(text) - 4 * share < 4 * 5
    expected = [text[lane * share : (lane + 1) * share] for lane in range(4)]
    for column, number in (("input_ids", 0), ("labels", 1), ("backward_labels", 3)):
        assert of_lanes(steps, column) == [ids_of([row[number] for row in lane]) for lane in expected]
    for column, number in (("characters", 0), ("backward_characters", 2)):
        assert of_lanes(steps, column) == [characters_of([row[number] for row in lane]) for lane in expected]
    assert [step.epochs for step in steps] == pytest.approx([(n + 1) / num_windows for n in range(num_windows)])
    assert steps[-1].after == Position(1, 0, 0)


def test_batches_are_packed_lanes_with_one_key_a_window(store: TokenStore) -> None:
    first, second = itertools.islice(new_loader(store).steps(), 2)
    assert [batch.num_sequences for batch in first.batches] == [2, 2]
    batch = first.batches[0]
    assert batch.bounds.tolist() == [0, 5, 10]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 4] * 2
    assert batch.columns["special_tokens_mask"].tolist() == (batch.input_ids == TOKENIZER.bos_id).tolist()
    assert batch.columns["window"].tolist() == [0, 0]
    keys = [batch.keys.tolist() for batch in first.batches if batch.keys is not None]
    assert len(set(itertools.chain(*keys))) == 1
    assert second.batches[0].keys[0] != keys[0][0]


@settings(max_examples=20)  # each reads some epochs
@given(place=st.integers(0, 40), window=st.integers(1, 12), batch_size=st.integers(1, 9))
def test_a_resumed_stream_is_the_same(store: TokenStore, place: int, window: int, batch_size: int) -> None:
    loader = new_loader(store, window=window, batch_size=batch_size)
    steps = list(itertools.islice(loader.steps(), place + 3))
    position = steps[place].after
    again = list(itertools.islice(new_loader(store, window=window, batch_size=batch_size).steps(position), 2))
    for one, other in zip(steps[place + 1 :], again, strict=True):
        assert same_step(one, other)


def test_micro_batches_change_nothing_but_the_cut(store: TokenStore) -> None:
    one = list(itertools.islice(new_loader(store, micro_batch_size=1).steps(), 3))
    whole = list(itertools.islice(new_loader(store, micro_batch_size=4).steps(), 3))
    for column in ("input_ids", "labels", "characters", "backward_characters", "backward_labels"):
        assert of_lanes(one, column) == of_lanes(whole, column)


def test_epochs_and_seeds_have_orders_of_their_own(store: TokenStore) -> None:
    loaders = new_loader(store), new_loader(store, seed=2)
    orders = {tuple(loader._plan(epoch).documents.tolist()) for loader in loaders for epoch in (0, 1)}
    assert len(orders) == 4


def test_held_out_windows(store: TokenStore) -> None:
    loader = new_loader(store)
    batches = list(loader.sample(most=7))
    assert [batch.num_sequences for batch in batches] == [3, 3, 3]
    assert [batch.columns["window"][0].item() for batch in batches] == [0, 1, 2]
    two_thirds = int(loader._sizes.sum()) * 2 // 3
    one_lane = list(new_loader(store, window=two_thirds).sample(most=100))
    assert [batch.num_sequences for batch in one_lane] == [1]
    assert list(new_loader(store, window=10_000).sample(most=100)) == []


def test_the_split_is_kept_to(store: TokenStore) -> None:
    splits = [Split(store, 0.5, is_held_out) for is_held_out in (True, False)]
    shown = [StreamLoader(split, TOKENIZER, 5, 1, 1, 0)._members.tolist() for split in splits]
    assert sorted(shown[0] + shown[1]) == list(range(23))
    assert shown[0]


def test_too_little_text_is_refused(store: TokenStore) -> None:
    with pytest.raises(InputError, match=r"fewer than train\.batch_size 999"):
        next(new_loader(store, batch_size=999).steps())


def test_a_store_of_ids_is_refused() -> None:
    other = make_store([[[3, 4]]])
    with pytest.raises(StoreError, match="without the words' characters"):
        new_loader(other)


def test_target_counts(store: TokenStore) -> None:
    forward = [row[1] for document in range(23) for row in slow_text(store, document)]
    counts = target_counts(store, TOKENIZER)
    assert counts[TOKENIZER.bos_id] == counts[TOKENIZER.eos_id] == forward.count("</S>")
    counts[TOKENIZER.bos_id] = 0
    assert counts.tolist() == np.bincount(ids_of(forward), minlength=TOKENIZER.vocab_size).tolist()
