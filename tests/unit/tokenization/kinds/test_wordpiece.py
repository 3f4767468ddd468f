"""Training WordPiece: a limited alphabet, Google's layout, Hangul whole, and errors that say what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from support.trained import ENGLISH, KOREAN, trained
from unmask.errors import InputError, SettingsError
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.settings import TokenizerSettings


def test_the_vocabulary_begins_with_special_tokens_then_characters() -> None:
    tokenizer = trained(["ab, ab, ab, abc abc abc"], vocab_size=100)
    assert tokenizer.token_strings[:5] == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    # A comma is always a word of its own: it gets no `##,`.
    assert tokenizer.token_strings[5:12] == (",", "a", "b", "c", "##a", "##b", "##c")
    assert tokenizer.token_strings[12:] == ("ab", "abc")


def test_marks_that_stay_decomposed_continue_words_in_the_base() -> None:
    text = " ".join(f"q{mark}a m{mark}" for mark in "\u0307\u0308") * 3  # NFC has a letter for `m` with a dot alone
    base = ("a", "m", "q", "\u0307", "\u0308", "\u1e41", "##a", "##m", "##q", "##\u0307", "##\u0308", "##\u1e41")
    tokenizer = trained([text], vocab_size=5 + len(base), lowercase=False)
    assert tokenizer.token_strings[5:] == base


def test_unused_slots_stand_where_google_put_them() -> None:
    texts = ["ab, ab, ab, abc abc abc"]
    few = trained(texts, vocab_size=100, unused_slots=2)
    assert few.token_strings[:8] == ("[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",")
    many = trained(texts, vocab_size=2000, unused_slots=994, extra_special_tokens=["[ENT]"])
    released = {"[PAD]": 0, "[unused0]": 1, "[unused98]": 99, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
    released |= {"[unused99]": 104, "[unused993]": 998}  # bert-base-uncased
    assert {entry: many.token_strings.index(entry) for entry in released} == released
    assert many.token_strings[999] == "[ENT]"
    assert many.special_ids == (0, 100, 101, 102, 103, 999)
    assert many.encode_batch(["ab [ENT]"], specials_in_text=True) == [[many.token_strings.index("ab"), 999]]


def test_a_further_special_token_cannot_be_a_word() -> None:
    with pytest.raises(SettingsError, match=r"'ENT' is an ordinary word.*as in \[ENT\]"):
        learn_tokenizer(ENGLISH, TokenizerSettings(vocab_size=200, extra_special_tokens=("ENT",)))


def test_a_further_special_token_cannot_be_an_entry_already() -> None:
    def never() -> Iterator[str]:
        raise AssertionError("text is read before the mistake is told")
        yield ""

    for token, texts in (("[MASK]", never()), ("[unused0]", never()), ("##a", ENGLISH)):
        with pytest.raises(SettingsError, match=f"^extra_special_tokens: '{re.escape(token)}' is an entry of the voc"):
            learn_tokenizer(texts, TokenizerSettings(unused_slots=2, extra_special_tokens=(token,)))


def test_the_vocabulary_has_the_size_asked_for_where_the_text_suffices() -> None:
    tokenizer, report = learn_tokenizer(ENGLISH, TokenizerSettings(vocab_size=100))
    assert tokenizer.vocab_size == report.vocab_size == report.asked_vocab_size == 100


def test_a_vocabulary_too_small_for_the_alphabet_is_refused_naming_the_least() -> None:
    with pytest.raises(SettingsError, match=r"set vocab_size to (\d+) at least") as refused:
        learn_tokenizer(ENGLISH, TokenizerSettings(vocab_size=20))
    least = int(str(refused.value).split("set vocab_size to ")[1].split()[0])
    assert trained(ENGLISH, vocab_size=least).vocab_size == least
    with pytest.raises(SettingsError):
        learn_tokenizer(ENGLISH, TokenizerSettings(vocab_size=least - 1))


@pytest.mark.parametrize("texts", [[], [""], [" \n\t", "\u200b\x00"]])
def test_no_text_is_refused(texts: list[str]) -> None:
    with pytest.raises(InputError, match="no text to train on"):
        learn_tokenizer(texts, TokenizerSettings())


def test_a_text_of_rare_characters_alone_is_refused() -> None:
    with pytest.raises(InputError, match="no character is seen 3 times"):
        learn_tokenizer(["abc"], TokenizerSettings())


def test_rare_characters_fall_out_and_are_counted() -> None:
    texts = ["abab abab", "ab☃ab ☃ ab"]
    tokenizer, report = learn_tokenizer(texts, TokenizerSettings(vocab_size=50, min_pair_count=1))
    assert "☃" not in tokenizer.token_strings
    assert report.alphabet_size == 2
    assert (report.num_characters_dropped, report.dropped_character_count) == (1, 2)
    assert report.dropped_character_share == 2 / 16  # 14 letters and 2 snowmen
    # A snowman is a symbol, not punctuation, so `ab☃ab` is one word: it and the lone one are unknown.
    assert (report.num_words, report.num_distinct_words, report.unknown_word_count) == (5, 4, 2)


def test_a_dropped_character_does_not_join_its_neighbours() -> None:
    texts = ["ab", "cd", "ab", "cd", *["b☃c"] * 2, "aaa bbb ccc ddd"]
    tokenizer = trained(texts, vocab_size=100)
    assert "bc" not in tokenizer.token_strings
    assert "ab" in tokenizer.token_strings


def test_the_alphabet_is_larger_where_hangul_is_present() -> None:
    points = [chr(0x0400 + index) for index in range(200)] + [chr(0x0530 + index) for index in range(0x900)]
    letters = [character for character in points if character.isalpha()]
    assert len(letters) > 1100
    many_letters = " ".join(letters * 3)
    settings = TokenizerSettings(vocab_size=10_000, lowercase=False)
    _, without = learn_tokenizer([many_letters], settings)
    assert without.alphabet_size == 1000
    _, some = learn_tokenizer([many_letters + " 국" * 3], settings)
    assert some.alphabet_size == 1000  # under 1 %: a foreign word in a text of another script
    _, present = learn_tokenizer([many_letters + " 국" * 200], settings)
    assert present.alphabet_size > 1100
    _, limited = learn_tokenizer(["aaaa bbb cccccc"], TokenizerSettings(alphabet_size=2))
    assert limited.alphabet_size == 2


def test_words_too_long_to_encode_are_left_out() -> None:
    tokenizer, report = learn_tokenizer(["z" * 3_000_000, "ab ab ab ab"], TokenizerSettings())
    assert report.unknown_word_count == 1
    assert not any(entry.startswith("zz") for entry in tokenizer.token_strings)
    assert tokenizer.encode_batch(["z" * 101]) == [[tokenizer.unk_id]]


def test_uncased_strips_accents_and_leaves_hangul_whole() -> None:
    tokenizer = trained(ENGLISH + KOREAN, vocab_size=2000)
    for text in ("CAFÉ 국민의 자유와", "cafe\u0301 \u1100\u116e\u11a8\u1106\u1175\u11ab의 자유와"):  # composed and not
        (ids,) = tokenizer.encode_batch([text])
        assert tokenizer.decode(ids) == "cafe 국민의 자유와"
    assert not any(0x1100 <= ord(character) <= 0x11FF for entry in tokenizer.token_strings for character in entry)


def test_uncased_keeps_accents_where_they_are_asked_for() -> None:
    texts = ["Café Cafe, यह हिन्दी है ह, น้ำ นำ, Й И й и, です てす"] * 3
    kept, stripped = (trained(texts, vocab_size=200, strip_accents=given) for given in (False, None))
    assert kept.decode(kept.encode_batch(["CAFÉ है น้ำ Й です"])[0]) == "café है น้ำ й です"
    assert stripped.decode(stripped.encode_batch(["CAFÉ है น้ำ Й です"])[0]) == "cafe ह นำ и てす"


def test_cased_keeps_case_and_accents() -> None:
    tokenizer = trained(ENGLISH + KOREAN, vocab_size=2000, lowercase=False)
    text = "The café, 국민의"
    (ids,) = tokenizer.encode_batch([text])
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_batch(["The cafe\u0301, 국민의"]) == [ids]
    assert tokenizer.encode_batch(["the"]) != tokenizer.encode_batch(["The"])


def test_the_report_tells_of_a_sample() -> None:
    texts = ["some words in a text"] * 1000
    _, report = learn_tokenizer(texts, TokenizerSettings(sample_bytes=5000), seed=1)
    assert report.num_documents < report.num_documents_read == 1000
    assert "a sample: 19.5 KiB were read" in report.summary()
