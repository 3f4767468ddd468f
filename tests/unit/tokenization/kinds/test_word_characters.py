"""ELMo's tokenizer: where words begin and end, the characters of a word, and words that are met later."""

from __future__ import annotations

import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.errors import InputError, ModelError, SettingsError
from unmask.tokenization.comparison.report import report_tokenizers
from unmask.tokenization.kinds import word_characters
from unmask.tokenization.kinds.word_characters import SPECIAL_WORDS, WordTokenizer, load_word_tokenizer
from unmask.tokenization.learning.extension import extend_tokenizer
from unmask.tokenization.learning.word_training import train_word_tokenizer
from unmask.tokenization.opening import has_tokenizer, open_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import TextTokenizer, load_tokenizer

TOKENIZER_WORDS = [*SPECIAL_WORDS, "the", "cat", "."]


def new_tokenizer(**settings: object) -> WordTokenizer:
    return WordTokenizer(TOKENIZER_WORDS, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The cat sat.", ["The", "cat", "sat", "."]),
        ("don't (really) pay $3.50!?", ["don", "'", "t", "(", "really", ")", "pay", "$", "3", ".", "50", "!", "?"]),
        ("나는 학교에 간다.", ["나는", "학교에", "간다", "."]),
        ("漢字と かな、", ["漢字と", "かな", "、"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("e\u0301te\u0301", ["été"]),
        ("=\u0338 \u1112\u1161\u11ab", ["≠", "한"]),
        ("snake_case  a\u00a0b\n", ["snake_case", "a", "b"]),
        ("<S> <UNK>", ["<", "S", ">", "<", "UNK", ">"]),
        (" \t\n", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert new_tokenizer().words(text) == words


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=30))
def test_words_are_all_of_a_text_but_its_white_space(text: str) -> None:
    tokenizer = new_tokenizer()
    ids, starts, ends = tokenizer.encode_with_places(text)
    assert ids == tokenizer.encode_batch([text])[0]
    pieces = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    assert "".join(pieces) == "".join(character for character in text if not character.isspace())
    assert tokenizer.tokens(ids) == [unicodedata.normalize("NFC", piece) for piece in pieces]


def test_characters_are_those_of_the_released_code() -> None:
    """Its `UnicodeCharsVocabulary`: 256-260 are begin and end of a sentence, begin and end of a word, padding."""
    tokenizer = new_tokenizer()
    [ids] = tokenizer.encode_batch(["cat 한 " + "x" * 60])
    rows = tokenizer.table[np.array([tokenizer.bos_id, tokenizer.eos_id, *ids])].tolist()
    assert rows[0] == [258, 256, 259] + [260] * 47
    assert rows[1] == [258, 257, 259] + [260] * 47
    assert rows[2] == [258, 99, 97, 116, 259] + [260] * 45
    assert rows[3] == [258, 0xED, 0x95, 0x9C, 259] + [260] * 45
    assert rows[4] == [258, *[120] * 48, 259]


def test_words_beyond_the_vocabulary_get_the_next_ids() -> None:
    tokenizer = new_tokenizer()
    assert tokenizer.encode_batch(["the dog", "a dog ."]) == [[3, 6], [7, 6, 5]]
    assert tokenizer.tokens([3, 6, 7]) == ["the", "dog", "a"]
    assert tokenizer.vocab_size == 6
    assert len(tokenizer.table) == 8
    assert tokenizer.count_unknown([3, 6, 2]) == 2
    assert tokenizer.vocabulary_ids(["the", "dog", "owl"]) == [3, 2, 2]
    many = " ".join(f"w{number}" for number in range(3000))
    [ids] = tokenizer.encode_batch([many])
    assert tokenizer.decode(ids) == many
    assert tokenizer.table[np.array(ids)][:, 1].tolist() == [ord("w")] * 3000
    assert tokenizer.table[np.array([3])][0, 1] == ord("t")


def test_words_met_in_several_threads_have_ids_and_characters_of_their_own() -> None:
    tokenizer, interval = new_tokenizer(), sys.getswitchinterval()
    texts = [" ".join(f"w{number}x{place}" for place in range(300)) for number in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda text: tokenizer.encode_batch([text])[0], texts))
    finally:
        sys.setswitchinterval(interval)
    assert len({index for ids in found for index in ids}) == 1200
    for text, ids in zip(texts, found, strict=True):
        alone = new_tokenizer()
        own = alone.encode_batch([text])[0]
        assert np.array_equal(tokenizer.table[np.array(ids)], alone.table[np.array(own)])


def test_a_server_forgets_words_that_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(word_characters, "_MANY", 4)
    monkeypatch.setattr(word_characters, "time", SimpleNamespace(monotonic=lambda: now))
    tokenizer = new_tokenizer()
    tokenizer.forgets_after_s = 60
    kept = "the often"
    for number in range(100):
        now += 20
        texts = [kept, " ".join(f"w{number}x{place}" for place in range(3))]
        for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
            alone = new_tokenizer()
            [own] = alone.encode_batch([text])
            assert tokenizer.decode(ids) == text
            assert np.array_equal(tokenizer.table[np.array(ids)], alone.table[np.array(own)])
    assert tokenizer.encode_batch([kept]) == [[3, 6]], "whoever is asked for keeps its id"
    assert len(tokenizer.table) < 40
    recent = tokenizer.encode_batch([texts[1]])
    now += 59
    tokenizer.encode_batch(["another four words are read"])
    assert tokenizer.tokens(recent[0]) == texts[1].split()


def test_inputs_stand_between_marks() -> None:
    tokenizer = new_tokenizer()
    single, pair, short = tokenizer.encode_inputs([("the cat", None), ("the", "cat ."), ("the cat . .", "cat")], 7)
    assert (single.input_ids, single.token_type_ids, single.truncated) == ([0, 3, 4, 1], [0] * 4, False)
    assert (pair.input_ids, pair.token_type_ids) == ([0, 3, 1, 0, 4, 5, 1], [0] * 3 + [1] * 4)
    assert (short.input_ids, short.truncated) == ([0, 3, 4, 1, 0, 4, 1], True)
    assert tokenizer.decode([3, 4, 5]) == "the cat ."
    with pytest.raises(SettingsError, match="no room for the 4 special tokens"):
        tokenizer.encode_inputs([("a", "b")], 3)


def test_lowercase() -> None:
    tokenizer = new_tokenizer(lowercase=True)
    assert tokenizer.words("The CAT İs") == ["the", "cat", "i̇s"]
    assert tokenizer.fingerprint() != new_tokenizer().fingerprint()


def test_there_is_no_mask() -> None:
    assert new_tokenizer().vocabulary.mask_id is None
    with pytest.raises(ModelError, match="no mask token"):
        _ = new_tokenizer().mask_id


def test_save_and_load(tmp_path: Path) -> None:
    tokenizer = new_tokenizer(lowercase=True, max_characters=20)
    tokenizer.encode_batch(["a word that is met"])
    directory = tmp_path / "made" / "here"
    tokenizer.save(str(directory))
    loaded = load_word_tokenizer(directory)
    assert loaded.token_strings == TOKENIZER_WORDS
    assert (loaded.max_characters, loaded.lowercase) == (20, True)
    assert loaded.fingerprint() == tokenizer.fingerprint()
    assert isinstance(open_tokenizer(directory), WordTokenizer)
    with pytest.raises(ModelError, match=r"here holds a tokenizer of words: open it by unmask\..*\.open_tokenizer$"):
        load_tokenizer(directory)
    assert has_tokenizer(directory)
    assert not has_tokenizer(tmp_path)
    assert loaded.find_role("eos_token") == loaded.eos_id
    assert loaded.find_role("mask_token") is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("words.txt", "<S>\n</S>\n<UNK>\nthe\nthe\n", "line 5: 'the' stands on line 4 already"),
        ("words.txt", "<S>\n</S>\n<UNK>\n\nthe\n", "line 4: '' is no word"),
        ("words.txt", "<S>\n</S>\nthe\n", "lacks <UNK>"),
        ("words.txt", b"\xff", "damaged"),
        ("word_tokenizer.json", "{", "damaged"),
        ("word_tokenizer.json", '{"kind": "word"}', "expected the keys"),
        ("word_tokenizer.json", '{"kind": "word", "max_characters": 2, "lowercase": false}', "max_characters is 2"),
    ],
)
def test_damaged_directories_are_refused(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    new_tokenizer().save(tmp_path)
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ModelError, match=message):
        load_word_tokenizer(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"word_tokenizer\.json"):
        load_word_tokenizer(tmp_path)
    new_tokenizer().save(tmp_path)
    (tmp_path / "words.txt").unlink()
    with pytest.raises(ModelError, match=r"words\.txt"):
        load_word_tokenizer(tmp_path)


def test_the_tokenizer_of_a_run_is_that_of_its_model(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").touch()
    (tmp_path / "model").mkdir()
    new_tokenizer().save(tmp_path / "model")
    assert isinstance(open_tokenizer(tmp_path), WordTokenizer)
    with pytest.raises(SettingsError, match="a tokenizer of words cuts none into pieces"):
        report_tokenizers([tmp_path], [tmp_path / "model" / "words.txt"])
    (tmp_path / "model" / "config.json").touch()
    with pytest.raises(SettingsError, match="it takes any word as it is"):
        extend_tokenizer(tmp_path, tmp_path / "model" / "words.txt", tmp_path / "new")


def test_other_directories_open_as_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n")
    assert isinstance(open_tokenizer(tmp_path), TextTokenizer)


def test_training_takes_the_most_frequent_words() -> None:
    texts = ["b b b a a a c c", "The the , , , , d"]
    tokenizer, report = train_word_tokenizer(texts, TokenizerSettings(vocab_size=8))
    assert tokenizer.token_strings == [*SPECIAL_WORDS, ",", "a", "b", "c"]  # equal counts: in order of their letters
    assert not tokenizer.lowercase
    assert (report.vocab_size, report.asked_vocab_size) == (7, 8)
    assert (report.num_words, report.num_distinct_words, report.unknown_word_count) == (15, 7, 3)
    smaller, _ = train_word_tokenizer(texts, TokenizerSettings(vocab_size=8, lowercase=True))
    assert smaller.token_strings == [*SPECIAL_WORDS, ",", "a", "b", "c", "the"]
    assert "7 entries" in report.summary()


def test_training_refuses_what_it_cannot_do() -> None:
    with pytest.raises(InputError, match=r"no word is in them 2 times.*give more text"):
        train_word_tokenizer(["one two three"], TokenizerSettings())
    others = {"unused_slots": 3, "segmenter": "kiwi", "extra_special_tokens": ["[ENT]"], "alphabet_size": 100}
    others |= {"min_character_count": 1, "min_pair_count": 1, "model_max_length": 128}
    for name, value in others.items():
        with pytest.raises(SettingsError, match=rf"tokenizer\.{name} is not for a tokenizer of words"):
            train_word_tokenizer(["a a"], TokenizerSettings.model_validate({name: value}))
