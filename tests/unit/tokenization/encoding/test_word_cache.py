"""Encoding by remembered words gives exactly what the library gives for whole texts."""

from __future__ import annotations

import tracemalloc
import unicodedata
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE, WordLevel, WordPiece
from tokenizers.normalizers import NFC, NFKC, BertNormalizer, Normalizer
from tokenizers.normalizers import Sequence as NormalizerSequence
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, Whitespace
from tokenizers.trainers import BpeTrainer

from unmask.tokenization.encoding import word_cache
from unmask.tokenization.encoding.word_cache import LONGEST_PRE_TOKEN, WordCache, word_rules

TEXT = (
    "The man's dog didn't see 1,234 naïve cats (of 5.6 kg) in Zürich; e-mail me @home! 나는 학교에 갔다. 그는 갔었다, "
    "“정말?” 하고 물었다. 漢字とかな café CAFÉ <b>it's</b> we'll 12.5% #tag under_score C++ a.b.c ... "
    "##x x## [SEP] [UNK]"
)


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ENTRIES = "## the The cat ##s na ##ive ##ïve 학교 ##에 갔다 그는 caf ##e ##é # ##x dog it [ ] Σ σ ##ς"


def wordpiece(lowercase: bool, compose: bool) -> Tokenizer:
    entries = [*SPECIAL, *ENTRIES.split()]
    entries += [character for character in map(chr, range(33, 127)) if character not in entries]
    entries += [f"##{character}" for character in "abcdefghijklmnopqrstuvwxyz0123456789다는었"]
    backend = Tokenizer(WordPiece({e: i for i, e in enumerate(dict.fromkeys(entries))}, unk_token="[UNK]"))
    bert = BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase)
    backend.normalizer = NormalizerSequence([bert, NFC()]) if compose else bert
    backend.pre_tokenizer = BertPreTokenizer()
    backend.add_special_tokens(SPECIAL)
    return backend


def bpe_with_word_ends() -> Tokenizer:
    backend = Tokenizer(BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.normalizer = BertNormalizer(lowercase=True)
    backend.pre_tokenizer = BertPreTokenizer()
    options = {"special_tokens": ["<unk>"], "end_of_word_suffix": "</w>", "limit_alphabet": 60}
    backend.train_from_iterator([TEXT] * 3, BpeTrainer(vocab_size=150, show_progress=False, **options))
    return backend


def byte_level(prefix_space: bool, normalizer: Normalizer | None = None) -> Tokenizer:
    backend = Tokenizer(BPE())
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = ByteLevel(add_prefix_space=prefix_space)
    options = {"special_tokens": ["<s>", "<mask>"], "initial_alphabet": sorted(ByteLevel.alphabet())}
    backend.train_from_iterator([TEXT] * 3, BpeTrainer(vocab_size=400, show_progress=False, **options))
    return backend


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "wordpiece, uncased": lambda: wordpiece(lowercase=True, compose=True),
    "wordpiece, cased": lambda: wordpiece(lowercase=False, compose=True),
    "wordpiece as Google released it": lambda: wordpiece(lowercase=True, compose=False),
    "bpe with word ends": bpe_with_word_ends,
    "byte-level bpe": lambda: byte_level(prefix_space=False),
    "byte-level bpe, composed": lambda: byte_level(prefix_space=False, normalizer=NFC()),
    "byte-level bpe with a space before": lambda: byte_level(prefix_space=True),
}
BACKENDS = {kind: make() for kind, make in KINDS.items()}

any_kind = pytest.mark.parametrize("kind", KINDS)


def by_library(backend: Tokenizer, texts: list[str]) -> list[list[int]]:
    backend.encode_special_tokens = True
    return [encoding.ids for encoding in backend.encode_batch(texts, add_special_tokens=False)]


def by_words(cache: WordCache, texts: list[str]) -> list[list[int]]:
    tokens, lengths = cache.encode(texts)
    assert lengths.sum() == len(tokens)
    return [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])] if texts else []


@any_kind
def test_a_text_by_its_words(kind: str) -> None:
    backend = BACKENDS[kind]
    assert word_rules(backend, np.dtype("<u2")) is not None
    cache = WordCache(backend, np.dtype("<u2"))
    short = ["", " ", "a  b", " a", " a the dog", "  a", "a ", "a\tb\nc"]
    texts = [
        TEXT,
        *short,
        TEXT.upper(),
        unicodedata.normalize("NFD", TEXT),
        *("x" * length for length in (99, 100, 101)),
        "가" * 300,
        TEXT,
    ]
    for _ in range(2):  # new words, then remembered ones
        assert by_words(cache, texts) == by_library(backend, texts)


@any_kind
def test_every_character_of_the_first_plane(kind: str) -> None:
    backend = BACKENDS[kind]
    characters = [chr(point) for point in range(0x10000) if not 0xD800 <= point < 0xE000]
    groups = ["".join(characters[start : start + 7]) for start in range(0, len(characters), 7)]
    words = [f"a{c}b dog" for c in characters[:0x3100]] + [f"ab {group}b" for group in groups]
    texts = [" ".join(words[start : start + 32]) for start in range(0, len(words), 32)]
    assert by_words(WordCache(backend, np.dtype("<u4")), texts) == by_library(backend, texts)


@any_kind
@given(texts=st.lists(st.one_of(st.text(), st.lists(st.sampled_from([*TEXT.split(), " ", "\x1f", "́"])).map(" ".join))))
def test_any_texts(kind: str, texts: list[str]) -> None:
    backend = BACKENDS[kind]
    assert by_words(WordCache(backend, np.dtype("<u2")), texts) == by_library(backend, texts)


@any_kind
@given(text=st.lists(st.sampled_from([*TEXT.split(), *" \t\n\x0b\x01Σ", "  ", "\u0301"])).map(" ".join))
def test_long_texts_in_pieces(kind: str, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_cache, "_CHARACTERS_AT_ONCE", 4)
        assert by_words(WordCache(BACKENDS[kind], np.dtype("<u2")), [text, "a"]) == by_library(
            BACKENDS[kind], [text, "a"]
        )


@any_kind
def test_a_long_text_takes_little_memory(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pre-tokens, all in a list, would take ten times its size."""
    monkeypatch.setattr(word_cache, "_CHARACTERS_AT_ONCE", 1000)
    cache, text = WordCache(BACKENDS[kind], np.dtype("<u2")), "a dog " * 20_000
    cache.encode(["a dog"])
    tracemalloc.start()
    cache.encode([text])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(text)  # the ids, two bytes each, and their copy


@any_kind
def test_long_words_are_not_kept(kind: str) -> None:
    cache = WordCache(BACKENDS[kind], np.dtype("<u2"))
    texts = [f"a dog {'x' * 1000} {'xy' * 40} the {'a-' * 50}b"]
    assert by_words(cache, texts) == by_library(BACKENDS[kind], texts)
    assert 0 < max(map(len, cache._known)) <= LONGEST_PRE_TOKEN


@any_kind
@given(texts=st.lists(st.lists(st.sampled_from(TEXT.split())).map(" ".join)))
def test_forgetting_changes_nothing(kind: str, texts: list[str]) -> None:
    backend = BACKENDS[kind]
    cache = WordCache(backend, np.dtype("<u2"), max_pre_tokens=8)
    for text in texts:
        assert by_words(cache, [text]) == by_library(backend, [text])
        assert len(cache._known) <= 8


def test_memory_is_bounded() -> None:
    cache = WordCache(BACKENDS["wordpiece, cased"], np.dtype("<u2"), max_pre_tokens=1000)
    for start in range(0, 20_000, 500):
        cache.encode([f"{number} {'y' * 70}{number}" for number in range(start, start + 500)])
        assert len(cache._known) <= 1000
        assert max(map(len, cache._known)) <= 64
    assert "0" in cache._known, "what came first is what is kept"


@any_kind
def test_new_words_are_looked_up_and_old_ones_left_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Going through all that is cached for every few texts made a store of 74 million tokens take 230 s."""

    def gone_through(cached: object) -> Iterator[str]:
        raise AssertionError("all cached pre-tokens were gone through")

    cache = WordCache(BACKENDS[kind], np.dtype("<u2"))
    monkeypatch.setattr(type(cache._known), "__iter__", gone_through)
    assert by_words(cache, [TEXT, TEXT[10:]]) == by_library(BACKENDS[kind], [TEXT, TEXT[10:]])


def ordinary_added_token() -> Tokenizer:
    backend = wordpiece(lowercase=True, compose=True)
    backend.add_tokens([AddedToken("the cat", special=False)])
    return backend


def with_normalizer(normalizer: Normalizer) -> Tokenizer:
    backend = wordpiece(lowercase=True, compose=False)
    backend.normalizer = normalizer
    return backend


def word_level() -> Tokenizer:
    backend = Tokenizer(WordLevel({"[UNK]": 0, "cat": 1, ".": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = Whitespace()
    return backend


@pytest.mark.parametrize("backend", [ordinary_added_token(), with_normalizer(NFKC()), word_level()])
def test_what_no_rule_covers_goes_to_the_library(backend: Tokenizer) -> None:
    assert word_rules(backend, np.dtype("<u2")) is None
    texts = ["the cat sat. cats", "", TEXT]
    assert by_words(WordCache(backend, np.dtype("<u2")), texts) == by_library(backend, texts)


def test_no_text() -> None:
    tokens, lengths = WordCache(BACKENDS["wordpiece, cased"], np.dtype("<u2")).encode([])
    assert tokens.shape == lengths.shape == (0,)
    assert tokens.dtype == np.uint16
