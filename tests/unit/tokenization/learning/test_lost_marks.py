"""Marks that a vocabulary takes away: told of where a language needs them, and only there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unmask.tokenization.learning.train import learn_tokenizer
from unmask.tokenization.settings import TokenizerSettings


def told(texts: list[str], caplog: pytest.LogCaptureFixture, **settings: object) -> list[str]:
    caplog.clear()
    given = {"min_character_count": 1, "vocab_size": 500, **settings}
    learn_tokenizer(texts, TokenizerSettings.model_validate(given))
    return [record.getMessage() for record in caplog.records]


def test_lost_marks_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = told(["यह है", "यह है, a b c d e"], caplog)  # 11 letters, 2 of them with a mark
    assert message == (
        "18% of the letters lose their marks in this vocabulary, as in BERT's uncased one: 'है' becomes 'ह'. "
        "To keep them, set tokenizer.strip_accents=false, or take --preset bert-cased"
    )
    (message,) = told(["это йод"], caplog, kind="bpe")
    assert message.endswith("'й' becomes 'и'. To keep them, set tokenizer.strip_accents=false")


@pytest.mark.parametrize("text", ["น้ำ นำ", "です", "Tiếng Việt", "ёлка", "أنا"])
def test_every_script_is_looked_at(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert len(told([text], caplog)) == 1


def test_text_that_keeps_its_marks_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    for path in sorted((Path(__file__).parents[4] / "samples" / "text").glob("*.jsonl")):
        texts = [json.loads(line)["text"] for line in path.read_text("utf-8").splitlines()[:20]]
        assert told(texts, caplog, vocab_size=8000) == [], path
    assert told(["I ❤\ufe0f it"] * 3, caplog) == []  # a mark of no letter
    assert told(["a" * 99 + " é"], caplog) == []  # one in a hundred
    others: list[dict[str, object]] = [
        {"strip_accents": False},
        {"strip_accents": True},
        {"lowercase": False},
        {"kind": "byte_bpe"},
    ]
    for settings in others:
        assert told(["यह है"], caplog, **settings) == []
