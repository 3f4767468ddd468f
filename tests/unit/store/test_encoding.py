"""Documents to tokens: what a store holds of a text is the text."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.trained import trained
from unmask.batch import pack
from unmask.corpus.documents import Document
from unmask.objectives.masks.masking import find_words
from unmask.store.encoding import ChunkEncoder, cut_chunks, held_out_hash
from unmask.store.shard_writer import EncodedChunk
from unmask.tokenization.tokenizer import TextTokenizer

TEXT = "The dog ran home. So did the cat! Did it? It did. 한강은 서울에 있다. 그렇다.\nA new line begins here."


def tokenizer_of(kind: str, **more: str) -> TextTokenizer:
    return trained([TEXT] * 3, kind=kind, vocab_size=340, unused_slots=0, **more)


BYTE_LEVEL = tokenizer_of("byte_bpe")


def encode(tokenizer: TextTokenizer, *texts: str) -> EncodedChunk:
    [chunk] = cut_chunks([Document(text, "somewhere") for text in texts], 1 << 20)
    return ChunkEncoder(tokenizer).encode(chunk)


def parts(encoded: EncodedChunk) -> list[list[int]]:
    """The tokens of each sentence."""
    return [part.tolist() for part in np.split(encoded.tokens, np.cumsum(encoded.sentence_lengths)[:-1])]


def sentences(*texts: str) -> list[str]:
    """Encoded as bytes and decoded."""
    return [BYTE_LEVEL.backend.decode(ids) for ids in parts(encode(BYTE_LEVEL, *texts))]


def test_in_byte_level_text_a_sentence_brings_the_space_before_it() -> None:
    assert sentences("A dog. So what?\n\nIt ran.") == ["A dog.", " So what?", " It ran."]


def test_segmented_sentences_bring_the_space_before_them_too() -> None:
    tokenizer = tokenizer_of("byte_bpe", segmenter="kiwi")
    _, second = parts(encode(tokenizer, "한강은 서울에 있다. 그렇다."))
    assert tokenizer.backend.decode(second).startswith(" ")


def test_a_document_without_a_token_is_left_out_with_its_hash() -> None:
    encoded = encode(tokenizer_of("wordpiece"), "\ufffd", "The dog.")
    assert (encoded.text_hashes.tolist(), encoded.documents_without_tokens) == ([held_out_hash("The dog.")], 1)


def test_documents_begin_with_no_space() -> None:
    assert sentences("  A dog. So?", "\nIt ran. So!") == ["A dog.", " So?", "It ran.", " So!"]


@given(st.text(st.sampled_from("aB.!? \n\u3000가。"), min_size=1))
def test_the_tokens_of_a_byte_level_store_are_the_document(text: str) -> None:
    if text.strip():
        decoded = BYTE_LEVEL.backend.decode(encode(BYTE_LEVEL, text).tokens.tolist())
        assert decoded.split() == text.split()


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_where_spaces_are_no_part_of_words_sentences_are_encoded_alone(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    alone = tokenizer.encode_batch(["The dog ran.", "So did the cat."])
    assert parts(encode(tokenizer, "The dog ran. So did the cat.")) == alone


def test_no_word_runs_over_the_end_of_a_sentence() -> None:
    """What whole-word and span masking take for words are the words of the text."""
    text = "The dog ran home. So did the cat. It did."
    ids = torch.from_numpy(encode(BYTE_LEVEL, text).tokens.astype(np.int64))
    batch = pack([ids]).with_columns(special_tokens_mask=torch.zeros(len(ids), dtype=torch.bool))
    continuation = torch.from_numpy(BYTE_LEVEL.vocabulary.continuation)
    starts = find_words(batch, continuation).first.tolist()
    words = [BYTE_LEVEL.backend.decode(ids[a:b].tolist()) for a, b in zip(starts, [*starts[1:], len(ids)], strict=True)]
    assert "".join(words) == text
    assert words == [words[0], *(f" {word}" for word in text.split()[1:])]
