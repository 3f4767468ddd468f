"""What training promises for every kind: the same bytes everywhere, the size requested, a directory that opens."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.corpora import contents
from support.files import write
from support.trained import ENGLISH, KOREAN, trained
from unmask.tokenization.encoding import word_cache
from unmask.tokenization.learning.train import TOKENIZERS, learn_tokenizer
from unmask.tokenization.settings import PRESETS, TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer

KINDS = list(TOKENIZERS)
SIZES = {"wordpiece": 250, "bpe": 260, "byte_bpe": 450}


def train(kind: str, **settings: object) -> TextTokenizer:
    return trained(ENGLISH + KOREAN, kind=kind, vocab_size=SIZES[kind], **settings)


TRAINED = {kind: train(kind) for kind in KINDS}


def test_every_kind_of_the_settings_can_be_trained() -> None:
    assert KINDS == ["wordpiece", "bpe", "byte_bpe"]
    for kind, tokenizer in TRAINED.items():
        assert tokenizer.kind == kind
        assert tokenizer.vocab_size == SIZES[kind]
    assert {settings.kind for settings in PRESETS.values()} == {*KINDS, "word"}  # which has a training of its own


@pytest.mark.parametrize("kind", KINDS)
def test_a_decomposed_text_is_learned_and_encoded_as_the_composed_one(kind: str) -> None:
    decomposed = [unicodedata.normalize("NFD", text) for text in ENGLISH + KOREAN]
    assert decomposed != ENGLISH + KOREAN
    assert trained(decomposed, kind=kind, vocab_size=SIZES[kind]).fingerprint() == TRAINED[kind].fingerprint()
    assert TRAINED[kind].encode_batch(decomposed) == TRAINED[kind].encode_batch(ENGLISH + KOREAN)


TRAIN_AND_SAVE = """
import sys
from pathlib import Path
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.encoding import word_cache
from unmask.tokenization.learning.train import TOKENIZERS, learn_tokenizer
texts = Path(sys.argv[1]).read_text(encoding="utf-8").split("\\n")
for kind in TOKENIZERS:
    directory = Path(sys.argv[2]) / kind
    directory.mkdir()
    tokenizer, _ = learn_tokenizer(texts, TokenizerSettings(kind=kind, vocab_size=500))
    tokenizer.save(directory)
"""


def test_two_processes_train_the_same_bytes(tmp_path: Path) -> None:
    corpus = write(tmp_path / "corpus.txt", "\n".join(ENGLISH + KOREAN))
    saved = []
    for seed in ("1", "2"):
        directory = tmp_path / seed
        directory.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", TRAIN_AND_SAVE, str(corpus), str(directory)]
        subprocess.run(command, env=environment, check=True)
        saved.append(contents(directory))
    assert saved[0] == saved[1]
    common = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
    expected = {f"{kind}/{name}" for kind in KINDS for name in common} | {"wordpiece/vocab.txt"}
    assert set(saved[0]) == expected


def test_ties_do_not_depend_on_the_order_of_a_hash_table() -> None:
    """Pairs that are seen equally often, many of them: what the library's own order decides differs at every run."""
    words = [f"{a}{b}" for a in "abcdefghijklmnop" for b in "qrstuvwxyz가나다라"]
    for kind in KINDS:
        settings = {"kind": kind, "vocab_size": 330, "min_pair_count": 1}
        assert len({trained([" ".join(words * 3)], **settings).fingerprint() for _ in range(3)}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_is_counted_in_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "_CHARACTERS_AT_ONCE", 7)
    assert train(kind).fingerprint() == TRAINED[kind].fingerprint()


def test_memory_does_not_grow_with_the_words_of_a_document() -> None:
    text = "word " * 800_000
    tracemalloc.start()
    trained([text])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6  # the words of all the text would be 46 MB


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_writes_a_definition_as_we_do(kind: str) -> None:
    tokenizer = train(kind, extra_special_tokens=["[ENT]", "[END]"], unused_slots=3)
    assert tokenizer.backend.to_str(pretty=True) + "\n" == tokenizer.opened.files["tokenizer.json"].decode()


@pytest.mark.parametrize("kind", KINDS)
def test_further_tokens_and_slots_are_within_the_size(kind: str) -> None:
    tokenizer = train(kind, extra_special_tokens=["[ENT]"], unused_slots=5)
    assert tokenizer.vocab_size == SIZES[kind]
    entity = tokenizer.token_strings.index("[ENT]")
    assert entity in tokenizer.special_ids
    assert {f"[unused{number}]" for number in range(5)} < set(tokenizer.token_strings)
    (ids,) = tokenizer.encode_batch(["the [ENT] dogs"], specials_in_text=True)
    assert entity in ids
    (plain,) = tokenizer.encode_batch(["the [ENT] [unused1] dogs"])
    assert entity not in plain
    assert not any(entry.startswith("[unused") for entry in tokenizer.tokens(plain))


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_too_small_gives_fewer_entries(kind: str) -> None:
    settings = TokenizerSettings.model_validate({"kind": kind})
    tokenizer, report = learn_tokenizer(ENGLISH, settings)
    assert tokenizer.vocab_size == report.vocab_size < report.asked_vocab_size == 30522


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe"])
def test_merges_are_counted_where_they_are_asked_for(kind: str) -> None:
    settings = TokenizerSettings.model_validate({"kind": kind, "num_merges": 50})
    tokenizer, report = learn_tokenizer(ENGLISH, settings)
    model = tokenizer.definition["model"]
    assert len(model["merges"]) == 50
    assert report.vocab_size == report.asked_vocab_size == tokenizer.vocab_size
    _, many = learn_tokenizer(ENGLISH, settings.model_copy(update={"num_merges": 100_000}))
    assert many.vocab_size < many.asked_vocab_size


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_opened_again_is_the_same(kind: str, tmp_path: Path) -> None:
    tokenizer, first, second = TRAINED[kind], tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    tokenizer.save(first)
    opened = load_tokenizer(first)
    assert opened.fingerprint() == tokenizer.fingerprint()
    assert opened.encode_batch(ENGLISH + KOREAN) == tokenizer.encode_batch(ENGLISH + KOREAN)
    assert (opened.token_strings, opened.special_ids) == (tokenizer.token_strings, tokenizer.special_ids)
    assert (opened.unk_id, opened.pad_id, opened.cls_id) == (tokenizer.unk_id, tokenizer.pad_id, tokenizer.cls_id)
    opened.save(second)
    assert contents(second) == contents(first)


ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=60)
WORDS = st.lists(st.sampled_from(" ".join(ENGLISH + KOREAN).split()), max_size=8).map(" ".join)


def by_library(tokenizer: TextTokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.backend.encode_batch(texts, add_special_tokens=False)]


@given(st.lists(ANY_TEXT | WORDS, max_size=5))
def test_any_text_gets_the_ids_of_the_library(texts: list[str]) -> None:
    for tokenizer in TRAINED.values():
        assert tokenizer.encode_batch(texts, specials_in_text=True) == by_library(tokenizer, texts)
        tokenizer.backend.encode_special_tokens = True
        try:
            expected = by_library(tokenizer, texts)
        finally:
            tokenizer.backend.encode_special_tokens = False
        assert tokenizer.encode_batch(texts) == expected
        assert all(0 <= index < tokenizer.vocab_size for ids in expected for index in ids)
