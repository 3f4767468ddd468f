"""Which texts skip the normaliser; that skipping changes nothing is tested with the tokenizer."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import NFKC, Normalizer

from unmask.tokenization.pipeline import make_normalizer
from unmask.tokenization.plain_text import unchanged_characters

ASCII = "".join(map(chr, range(0x20, 0x7F)))


def unchanged_by(normalizer: Normalizer) -> tuple[bool, str]:
    backend = Tokenizer(WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    backend.normalizer = normalizer
    return unchanged_characters(backend)


def test_composed_text_in_ascii_or_hangul_skips_the_normaliser() -> None:
    for lowercase in (True, False):
        lowercases, unchanged = unchanged_by(make_normalizer(lowercase, compose=True))
        assert lowercases == lowercase
        assert unchanged.startswith(ASCII)
        assert {"가", "힣", "“", "」"} <= set(unchanged)
        assert not {"\t", "\u1100", "\u0301", "\u200b", "漢", "é"} & set(unchanged)


def test_hangul_that_stays_decomposed_does_not() -> None:
    assert unchanged_by(make_normalizer(lowercase=True, compose=False)) == (True, ASCII)


def test_nothing_skips_a_normaliser_that_is_not_berts() -> None:
    assert unchanged_by(NFKC()) == (False, "")


def test_nothing_skips_where_ordinary_tokens_were_added() -> None:
    backend = Tokenizer(WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    backend.normalizer = make_normalizer(lowercase=True, compose=True)
    backend.add_tokens(["New York"])
    assert unchanged_characters(backend) == (False, "")
