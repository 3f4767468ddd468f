"""A store of words: what was put in comes out, ids as in any other store, and damage is told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.stores import make_word_store
from unmask.errors import StoreError
from unmask.store.store import TokenStore
from unmask.tokenization.kinds.word_characters import SPECIAL_WORDS, WordTokenizer

TOKENIZER = WordTokenizer([*SPECIAL_WORDS, "the", "cat", ".", "나는"])
TEXTS = ["The cat sat. The dog ran.", "나는 학교에 간다.", "the the the .", "\ufffd", "cat"]


def words_of(store: TokenStore, document: int) -> list[str]:
    stored = store.words(document, 0, len(store.document(document).tokens))
    starts = np.concatenate([[0], stored.ends[:-1]]).tolist()
    return [bytes(stored.utf8[start:end]).decode() for start, end in zip(starts, stored.ends.tolist(), strict=True)]


def test_words_ids_and_sentences_come_out() -> None:
    store = make_word_store(TEXTS, TOKENIZER)
    assert store.has_words
    assert store.num_documents == 5
    assert words_of(store, 0) == ["The", "cat", "sat", ".", "The", "dog", "ran", "."]
    assert store.document(0).tokens.tolist() == [2, 4, 2, 5, 2, 2, 2, 5]
    assert store.document(0).sentence_ends.tolist() == [4, 8]
    assert words_of(store, 1) == ["나는", "학교에", "간다", "."]
    assert store.tokens(1, 0, 2).tolist() == [6, 2]
    assert words_of(store, 3) == ["\ufffd"]
    assert store.num_tokens == 18
    assert store.token_counts().tolist() == [0, 0, 8, 3, 2, 4, 1]
    tokens, sentences = store.sizes()
    assert tokens.tolist() == [8, 4, 4, 1, 1]
    assert sentences.tolist() == [2, 1, 1, 1, 1]
    some = store.words(1, 1, 3)
    assert bytes(some.utf8).decode() == "학교에간다"
    assert some.ends.tolist() == [9, 15]
    assert len(store.words(1, 2, 2).utf8) == 0
    store.verify()


def test_the_manifest_declares_the_side_arrays() -> None:
    store = make_word_store(TEXTS, TOKENIZER)
    assert store.manifest["side_arrays"] == {"word_ends": "<u4", "word_ids": "<u2"}
    assert (store.directory / "tokens-00000.bin").read_bytes().startswith("Thecatsat.Thedogran.나는".encode())
    assert (store.directory / "word_ids-00000.bin").stat().st_size == 2 * store.manifest["shards"][0]["tokens"]


WORDS = st.sampled_from(["the", "cat", "x" * 70, "É", "나는", "."])


@settings(max_examples=20)  # each writes a store
@given(st.lists(st.lists(WORDS, min_size=1, max_size=12).map(" ".join), min_size=1, max_size=5))
def test_any_words_come_out(texts: list[str]) -> None:
    store = make_word_store(texts, TOKENIZER, shard_documents=2)
    for number, text in enumerate(texts):
        words = TOKENIZER.words(text)
        assert words_of(store, number) == words
        assert store.document(number).tokens.tolist() == TOKENIZER.vocabulary_ids(words)


@pytest.mark.parametrize("part", ["tokens", "word_ends", "word_ids"])
def test_a_changed_byte_is_told(part: str) -> None:
    store = make_word_store(TEXTS, TOKENIZER)
    path = store.directory / f"{part}-00000.bin"
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(StoreError, match=f"{part}-00000.bin: its checksum"):
        TokenStore(store.directory).verify()
    with pytest.raises(StoreError, match=f"{part}-00000.bin: its checksum"):
        words_of(TokenStore(store.directory), 0)
