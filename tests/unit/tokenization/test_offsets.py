"""Where tokens stand in their text, whatever the normaliser did to it, and how pairs are framed."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.trained import trained
from unmask.tokenization.kinds.word_characters import SPECIAL_WORDS, WordTokenizer
from unmask.tokenization.offsets import align

TEXTS = ["대한민국의 각각 값을 café naïve 漢字 hello world 🙂 a b c"] * 8
TOKENIZERS = {kind: trained(TEXTS, kind=kind, vocab_size=500) for kind in ("wordpiece", "bpe", "byte_bpe")}
every_kind = pytest.mark.parametrize("kind", TOKENIZERS)


def pieces(kind: str, text: str) -> list[str]:
    (aligned,) = align(TOKENIZERS[kind], [text])
    return [text[start:end] for start, end in zip(aligned.starts, aligned.ends, strict=True)]


@every_kind
def test_ids_are_those_of_the_tokenizer(kind: str) -> None:
    texts = ["hello  café\n", "", "각각 [SEP] 값을"]
    aligned = align(TOKENIZERS[kind], texts)
    assert [one.ids for one in aligned] == TOKENIZERS[kind].encode_batch(texts, specials_in_text=True)
    assert len(aligned[1]) == 0


def test_marks_belong_to_the_token_before_them() -> None:
    text = unicodedata.normalize("NFD", "각각 값을 café")
    assert [unicodedata.normalize("NFC", piece) for piece in pieces("wordpiece", text)] == ["각각", "값을", "café"]
    assert "".join(pieces("bpe", text)) == text.replace(" ", "")


def test_marks_with_tokens_of_their_own_keep_them() -> None:
    assert pieces("byte_bpe", "x\u0301") == ["x", "\u0301", "\u0301"]  # two bytes of one mark


def test_bytes_of_one_character_share_its_place() -> None:
    (aligned,) = align(TOKENIZERS["byte_bpe"], ["a\u2603"])
    assert aligned.starts == [0, 1, 1, 1]
    assert aligned.ends == [1, 2, 2, 2]


@every_kind
@given(text=st.text(st.sampled_from("ab é\u0301\u200b각\u1100\u1161 \n\u00a0🙂漢ﬁİ\ufeff"), max_size=20))
def test_places_rise_and_lie_in_the_text(kind: str, text: str) -> None:
    (aligned,) = align(TOKENIZERS[kind], [text])
    assert aligned.starts == sorted(aligned.starts)
    assert aligned.ends == sorted(aligned.ends)
    for start, end in zip(aligned.starts, aligned.ends, strict=True):
        assert 0 <= start <= end <= len(text)
        assert text[start:end] == text[start:end].strip()


def test_words_have_their_places_too() -> None:
    tokenizer = WordTokenizer([*SPECIAL_WORDS, "a"])
    (aligned,) = align(tokenizer, ["a cafe\u0301, 한국"])
    assert (aligned.starts, aligned.ends) == ([0, 2, 7, 9], [1, 7, 8, 11])
    assert tokenizer.tokens(aligned.ids) == ["a", "caf\u00e9", ",", "한국"]
