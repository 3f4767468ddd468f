"""How much of some texts a vocabulary covers, and when somebody is warned of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.inference.coverage import Coverage
from unmask.tokenization.kinds.word_characters import SPECIAL_WORDS, WordTokenizer
from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.settings import TokenizerSettings
from unmask.tokenization.tokenizer import load_tokenizer


def test_a_vocabulary_is_warned_of_once_in_a_process(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    other, _ = learn_tokenizer(["a man waits"] * 4, TokenizerSettings(vocab_size=40))
    for tokenizer in (load_tokenizer(tiny_model), load_tokenizer(tiny_model), other, other):
        Coverage(tokenizer, "x.tsv").add_texts([[tokenizer.unk_id] * 3], [])
    assert len(caplog.records) == 2, "one for each vocabulary"


@pytest.mark.parametrize(("unknown", "warnings"), [(0, 0), (5, 0), (6, 1), (100, 1)])
def test_texts_are_warned_of_once_where_over_5_percent_are_unknown(
    tiny_model: Path, caplog: pytest.LogCaptureFixture, unknown: int, warnings: int
) -> None:
    tokenizer = load_tokenizer(tiny_model)
    coverage, known = Coverage(tokenizer, "x.tsv"), tokenizer.encode_batch(["man"])[0][0]
    ids = [tokenizer.unk_id] * unknown + [known] * (100 - unknown)
    for _ in range(3):
        coverage.add_texts([[tokenizer.cls_id, *ids, tokenizer.sep_id]], ["a man", "a ж man"])
    assert (coverage.tokens, coverage.unknown) == (300, 3 * unknown)
    assert len(caplog.records) == warnings
    assert all("such as 'ж': the vocabulary" in record.getMessage() for record in caplog.records)


KOREAN = ["최악이다 영화가 재미있다 ㅋ 웃다"] * 9


def test_a_word_that_one_character_makes_unknown_is_named(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer, _ = learn_tokenizer(KOREAN, TokenizerSettings(vocab_size=60))
    texts = ["영화가 최악이다😡", "영화👍 웃다😡"]
    Coverage(tokenizer, "x.tsv").add_texts(tokenizer.encode_batch(texts), texts)
    [record] = caplog.records
    assert "75 % of the tokens (3 of 4) are [UNK], such as '최악이다😡'" in record.getMessage()
    assert "a blank before a strange sign saves the word beside it" in record.getMessage()
    assert tokenizer.unk_id not in tokenizer.encode_batch(["최악이다"])[0]


def test_texts_that_are_lost_whole_are_counted_however_few(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer, _ = learn_tokenizer(KOREAN, TokenizerSettings(vocab_size=60))
    texts = ["영화가 최악이다", "", "최고다👍", "영화가"]
    rows = [*tokenizer.encode_inputs([(text, None) for text in texts]), *tokenizer.encode_inputs([("웃다", "👍")])]
    for encoded in (tokenizer.encode_batch([*texts, "👍"]), [row.input_ids for row in rows]):
        coverage = Coverage(tokenizer, "x.tsv")
        coverage.add_texts(encoded, [*texts, "웃다", "👍"])
        coverage.note()
        assert coverage.counts.notes == {"texts or windows read as [UNK] alone": 2}
    partly = Coverage(tokenizer, "x.tsv")
    partly.add_texts(tokenizer.encode_batch(["영화가 최악이다😡"]), ["영화가 최악이다😡"])
    assert (partly.unknown, partly.lost) == (1, 0)


def test_no_word_is_unknown_to_a_tokenizer_of_characters() -> None:
    words = Coverage(WordTokenizer([*SPECIAL_WORDS, "a"]), "x.tsv")
    assert words.of_each([[words.tokenizer.unk_id, 3]]) is None


def test_bytes_cover_everything(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer, _ = learn_tokenizer(["a man waits"] * 4, TokenizerSettings(kind="byte_bpe", vocab_size=262))
    coverage = Coverage(tokenizer, "x.tsv")
    coverage.add_texts(tokenizer.encode_batch(["국민"]), ["국민"])
    coverage.note()
    assert not coverage.counts.unknown
    assert not caplog.text
