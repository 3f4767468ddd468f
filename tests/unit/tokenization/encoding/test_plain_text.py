"""Which texts skip the normaliser; that skipping changes nothing is tested with the tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

from unmask.tokenization.definition import bert_normalizer
from unmask.tokenization.encoding.plain_text import PlainTextEncoder, unchanged_characters
from unmask.tokenization.kinds.wordpiece import SPECIAL_TOKENS, define
from unmask.tokenization.library import open_definition

ASCII = "".join(map(chr, range(0x20, 0x7F)))
VOCAB = {entry: index for index, entry in enumerate([*SPECIAL_TOKENS.values(), "a", "mask", "[", "]", "가"])}


def definition(normalizer: dict[str, Any] | None) -> dict[str, Any]:
    return define(VOCAB, None, SPECIAL_TOKENS, (), normalizer)


def unchanged_by(normalizer: dict[str, Any] | None) -> tuple[bool, str]:
    return unchanged_characters(definition(normalizer))


def test_composed_text_in_ascii_or_hangul_skips_the_normaliser() -> None:
    for lowercase in (True, False):
        lowercases, unchanged = unchanged_by(bert_normalizer(lowercase, compose=True))
        assert lowercases == lowercase
        assert unchanged.startswith(ASCII)
        assert {"가", "힣", "“", "」"} <= set(unchanged)
        assert {"·", "°", "ø", "я", "π", "→", "①", "か", "ㄱ", "Ａ"} <= set(unchanged)
        assert not {"\t", "\u1100", "\u0301", "\u200b", "\u00ad", "漢", "é", "が", "Σ", "İ"} & set(unchanged)


def test_hangul_that_stays_decomposed_does_not() -> None:
    for lowercase, strip_accents, stays in [(True, None, False), (False, True, False), (True, False, True)]:
        lowercases, unchanged = unchanged_by(bert_normalizer(lowercase, compose=False, strip_accents=strip_accents))
        assert (lowercases, "가" in unchanged) == (lowercase, stays)
        assert unchanged.startswith(ASCII)


@pytest.mark.parametrize("strip_accents", [None, True, False])
@pytest.mark.parametrize("compose", [True, False])
@pytest.mark.parametrize("lowercase", [True, False])
def test_the_normaliser_leaves_them_alone(lowercase: bool, compose: bool, strip_accents: bool | None) -> None:
    said = definition(bert_normalizer(lowercase, strip_accents, compose=compose))
    backend, (lowercases, unchanged) = open_definition(said), unchanged_characters(said)
    expected = unchanged.lower() if lowercases else unchanged
    assert backend.normalizer.normalize_str(unchanged) == expected
    assert backend.normalizer.normalize_str(unchanged[::-1]) == expected[::-1]


def test_nothing_skips_a_normaliser_that_is_not_berts() -> None:
    assert unchanged_by({"type": "NFKC"}) == (False, "")
    assert unchanged_by(None) == (False, "")


def test_nothing_skips_where_ordinary_tokens_were_added() -> None:
    said = definition(bert_normalizer(lowercase=True, compose=True))
    said["added_tokens"].append(said["added_tokens"][0] | {"id": len(VOCAB), "content": "New York", "special": False})
    assert unchanged_characters(said) == (False, "")


def test_special_tokens_in_a_text_are_characters() -> None:
    encoder = PlainTextEncoder(open_definition(definition(bert_normalizer(lowercase=True, compose=True))))
    tokens = ["a", "[", "mask", "]", "가", "[UNK]"]
    assert encoder.encode_batch(["A [MASK] 가\t☃", ""]) == [[VOCAB[token] for token in tokens], []]
