"""The longest entry that matches, again and again: by hand, and as the library does it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from unmask.tokenization.encoding.longest_match import longest_match

WRITTEN = "[UNK] un unm ##mask ##ask ##ed ##e a ##a ##b ab ##abab 나 ##나 ## x unmake"
ENTRIES = WRITTEN.split()
VOCAB = {entry: index for index, entry in enumerate(ENTRIES)}
MATCH = longest_match({entry: bytes([index]) for entry, index in VOCAB.items()}, "##", b"\0", 12)


@pytest.mark.parametrize(
    ("word", "pieces"),
    [
        ("unmask", ["unm", "##ask"]),
        ("unmasked", ["unm", "##ask", "##ed"]),
        ("un", ["un"]),
        ("unmakea", ["unmake", "##a"]),  # the longest entry of all, and more after it
        ("una", ["un", "##a"]),
        ("나나", ["나", "##나"]),
        ("mask", ["[UNK]"]),  # only a continuation
        ("unx", ["[UNK]"]),  # only a beginning
        ("un" + "a" * 10, ["un", *["##a"] * 10]),
        ("un" + "a" * 11, ["[UNK]"]),  # too long
        ("", ["[UNK]"]),
    ],
)
def test_by_hand(word: str, pieces: list[str]) -> None:
    assert [ENTRIES[index] for index in MATCH(word)] == pieces


@given(st.text("unmaskedbx나다", min_size=1, max_size=15))
def test_as_the_library_does(word: str) -> None:
    library = Tokenizer(WordPiece(VOCAB, unk_token="[UNK]", max_input_chars_per_word=12))
    assert list(MATCH(word)) == library.encode(word).ids
