"""Byte-level BPE: every text comes back composed, byte for byte, and words are counted as encoding sees them."""

from __future__ import annotations

import unicodedata
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unmask.errors import SettingsError
from unmask.tokenization.kinds.byte_bpe import BYTE_BPE, BYTES
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.learning.word_counts import count_words
from unmask.tokenization.library import word_splitter
from unmask.tokenization.settings import TokenizerSettings

TEXTS = ["Hello world, don't the dogs bark? Hello dogs.", "국민의 국민은 국민, 😀 dogs\n\n  the  end\t."] * 4
TOKENIZER, REPORT = learn_tokenizer(TEXTS, TokenizerSettings(kind="byte_bpe", vocab_size=300))
SPLIT = word_splitter(BYTE_BPE.normalizer(False), BYTE_BPE.pre_tokenizer)
ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=80)
SPACED = st.text(st.sampled_from("a.1'가\u0301 \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2003\u2028\u3000"), max_size=40)


def test_the_bytes_are_in_gpt2s_order() -> None:
    assert len(BYTES) == len(set(BYTES)) == 256
    assert BYTES[:3] == ("!", '"', "#")
    assert (BYTES[188], BYTES[220]) == ("Ā", "Ġ")  # byte 0, and the space, in GPT-2's encoder.json
    assert SPLIT(" \x00") == ["Ġ", "Ā"] or SPLIT(" \x00") == ["ĠĀ"]


def test_the_vocabulary_begins_as_robertas() -> None:
    assert TOKENIZER.token_strings[:5] == ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    assert TOKENIZER.token_strings[5 : 5 + 256] == BYTES
    roles = (TOKENIZER.cls_id, TOKENIZER.pad_id, TOKENIZER.sep_id, TOKENIZER.mask_id)
    assert (*roles, TOKENIZER.bos_id, TOKENIZER.eos_id) == (0, 1, 2, 4, 0, 2)
    assert TOKENIZER.unk_id is None
    assert (REPORT.alphabet_size, REPORT.num_characters_dropped, REPORT.unknown_word_count) == (256, 0, 0)


@given(ANY_TEXT | SPACED)
@example("<s> a <mask> [MASK]")
@example("\x00\x7f\u00ad\ufffe\U0010ffff")
def test_every_text_comes_back(text: str) -> None:
    (ids,) = TOKENIZER.encode_batch([text])
    assert TOKENIZER.decode(ids) == unicodedata.normalize("NFC", text)
    assert not set(ids) & set(TOKENIZER.special_ids)


@given(st.lists(ANY_TEXT | SPACED, max_size=4))
@example(["a\t  b", "a \n b", "a\x1c b", "a \x1cb", "!\x1c", " a", "a\xa0 b", "a\u3000b  "])
def test_words_are_counted_as_encoding_splits_them(texts: list[str]) -> None:
    counts = count_words(texts, SPLIT, 10_000, seed=0, pre_tokens=BYTE_BPE.pre_tokens)
    assert counts.words == Counter(word for text in texts for word in SPLIT(text))


def test_framed_as_roberta_frames() -> None:
    (a,), (b,) = TOKENIZER.encode_batch(["Hello"]), TOKENIZER.encode_batch(["dogs bark"])
    single, pair = TOKENIZER.encode_inputs([("Hello", None), ("Hello", "dogs bark")])
    assert single.input_ids == [0, *a, 2]
    assert pair.input_ids == [0, *a, 2, 2, *b, 2]
    assert pair.token_type_ids == [0] * len(pair.input_ids)
    with pytest.raises(SettingsError, match="no room for the 4 special tokens"):
        TOKENIZER.encode_inputs([("a", "b")], max_length=3)


def test_the_mask_takes_the_space_before_it() -> None:
    (ids,) = TOKENIZER.encode_batch(["the <mask> bark"], specials_in_text=True)
    assert TOKENIZER.decode(ids) == "the<mask> bark"


def test_a_word_continues_where_no_space_is_before_it() -> None:
    (ids,) = TOKENIZER.encode_batch([" dogs bark"])
    tokens = TOKENIZER.tokens(ids)
    assert TOKENIZER.marks_words
    assert TOKENIZER.continuation[ids].tolist() == [not token.startswith("Ġ") for token in tokens]
    assert not TOKENIZER.continuation[list(TOKENIZER.special_ids)].any()


def test_case_stays_unless_asked() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode_batch(["Hello É 국민"])[0]) == "Hello É 국민"
    lower, _ = learn_tokenizer(TEXTS, TokenizerSettings(kind="byte_bpe", vocab_size=300, lowercase=True))
    assert lower.decode(lower.encode_batch(["Hello E\u0301 국민"])[0]) == "hello é 국민"


def test_no_room_for_the_bytes_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"set vocab_size to 261 at least$"):
        learn_tokenizer(TEXTS, TokenizerSettings(kind="byte_bpe", vocab_size=260))
    tokenizer, _ = learn_tokenizer(TEXTS, TokenizerSettings(kind="byte_bpe", vocab_size=261))
    assert tokenizer.vocab_size == 261
